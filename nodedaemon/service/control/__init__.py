"""Requests from hooks and commands, status, metrics, systemd, and the active configuration."""
