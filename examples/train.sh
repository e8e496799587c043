#!/bin/bash
#SBATCH --job-name=cnn
#SBATCH --gres=salus:1
#SBATCH --time=00:10:00
# Submit with: sbatch examples/train.sh [--iterations N ...]
# Slurm runs a copy of this script, so the script finds the example through the directory in which sbatch was called.
cd "${SLURM_SUBMIT_DIR:-.}" || exit 1
exec "${PYTHON:-python3}" examples/cnn.py "$@"
