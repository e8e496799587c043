"""Slurm jobs on this node: who they are, Prolog files, orphans, time limits."""
