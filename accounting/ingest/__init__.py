"""Writing: how the records of daemons and of Slurm become rows. Every write may be repeated without effect."""
