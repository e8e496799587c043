"""A private, real Slurm cluster as one tree of processes under one directory, for demo, tests and development.

Nothing is installed, no systemd is asked, no port is fixed and no system user is created; two clusters run side by
side. `control` is what callers use; `supervisor` is the process that owns all the others.
"""
