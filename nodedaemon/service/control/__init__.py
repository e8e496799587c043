"""Requests of hooks and commands, status, metrics, systemd, and the configuration in force."""
