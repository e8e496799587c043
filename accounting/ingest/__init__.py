"""Stores the records of daemons and of Slurm as rows. Repeating a write changes nothing."""
