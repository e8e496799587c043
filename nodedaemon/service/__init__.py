"""salusd: it carries out what the core decides. `daemon.py` puts the parts together; each room has one subject."""
