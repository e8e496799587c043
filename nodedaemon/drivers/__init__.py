"""One foreign thing per file: CUDA, NVML, host memory, processes, cgroups, MPS, Slurm's commands. No decisions."""
