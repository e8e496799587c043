"""Formats that several programs share. Each format has one owner here; messages.py and pages.py are generated."""
