"""salusd carries out what the core decides. `daemon.py` puts the parts together; each subpackage has one subject."""
