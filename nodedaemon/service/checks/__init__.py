"""`salus doctor`: read-only checks, and the self-test, which runs lanes on the node's devices."""
