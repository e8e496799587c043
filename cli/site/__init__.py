"""Commands about a whole site: configuration, profiles, the demo, and a private Slurm cluster."""
