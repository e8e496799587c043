"""Durable state: journal files, the shell's state, and the one path by which an event reaches the engine."""
