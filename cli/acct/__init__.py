"""`salus-acct`: reports, one job's page, reconciliation with Slurm, and maintenance of the accounting database."""
