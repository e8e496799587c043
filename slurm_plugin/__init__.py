"""Salus's side of Slurm: the service beside slurmctld, Slurm's plugins and hooks, and a private cluster for tests."""
