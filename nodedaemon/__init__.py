"""What runs on a node: the pure core, the daemon around it, the simulator, and what is handed to a job's process."""
