"""PyTorch: its events, the signature of a model, and its CUDA memory. Only hooks.py imports from torch."""
