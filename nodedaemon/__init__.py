"""Everything that runs on a node: the pure core, the daemon around it, the simulator, and the code that jobs load."""
