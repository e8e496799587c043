"""`salus simulate`: the daemon's engine in virtual time, on a synthetic workload or on a recorded journal."""
