"""The simulator: runs the core on a workload in virtual time, so that a policy can be judged before it is used.

Lanes, grants and admission are the core's own code; only the passing of time and Slurm's queue are modelled here.
"""
