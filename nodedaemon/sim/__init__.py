"""The simulator: runs the core on a workload in virtual time, so that you can evaluate a policy before you use it.

Lanes, grants and admission are the core's own code; only the passing of time and Slurm's queue are modelled here.
"""
