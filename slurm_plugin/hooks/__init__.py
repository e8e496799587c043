"""Slurm's Prolog and Epilog for Salus, run as root by slurmd once per job.

Standard library only and Python 3.8 syntax: slurmd runs these files with the node's own Python, without our packages.
"""
