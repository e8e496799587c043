"""salusd: carries out what the core decides. `daemon.py` assembles the parts; each subpackage has one subject."""
