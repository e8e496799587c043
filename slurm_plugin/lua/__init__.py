"""The job_submit plugin that runs inside slurmctld, and the table of settings that it loads."""
