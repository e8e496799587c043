"""Reads reports, charts and job pages, limited to what the viewer may see. `values.py` defines what callers get."""
