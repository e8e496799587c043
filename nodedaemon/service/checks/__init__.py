"""`salus doctor`: checks that only look, and the self-test that runs lanes on the node's own devices."""
