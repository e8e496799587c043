"""A private, real Slurm cluster as one tree of processes under one directory, for demo, tests and development.

Nothing is installed, systemd is not used, no port is fixed and no system user is created; two clusters can run side by
side. `control` is what callers use; `supervisor` is the process that owns all the others.
"""
