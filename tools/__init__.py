"""Generators of files that are written from the code or from measurements. Nothing here is installed."""
