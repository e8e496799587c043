"""salus-admitd, the admission service beside slurmctld: its server, its decisions and its background work.

Decisions are pure (decision, jobdesc, catalog); the other modules do the input and output.
Slurm is called through slurm_plugin.slurm only.
"""
