"""Salus's side of Slurm: what runs beside slurmctld, inside its plugins, and in its hooks. One room per process."""
