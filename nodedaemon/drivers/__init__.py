"""Interfaces to the system, one per file: CUDA, NVML, host memory, processes, cgroups, MPS, Slurm. No decisions."""
