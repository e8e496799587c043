"""etc/salus.conf -> frozen dataclasses. Nobody else reads the file."""
