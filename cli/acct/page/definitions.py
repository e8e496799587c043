"""The definitions at the end of the page; docs/accounting.md says the same at length, and a test compares the names."""

DEFINITIONS = (
    ("held", "elapsed x gres/salus count, as sacct -D counts it; suspended time stands apart"),
    ("busy", "each instant with k running iterations on a device gives 1/k to each"),
    ("occupied", "busy, and the device's idle time split by charge among the jobs that are there"),
    ("alone", "iterations x the profile's solo iteration time + time outside iterations; n/a if unknown"),
    ("efficiency", "busy / occupied"),
    ("sharing gain", "alone / occupied; jobs that merely take turns gain nothing"),
    ("memory saved", "the sum of the jobs' peaks over what was really held, over time"),
    ("wait", "from eligible to start in Slurm's queue"),
    ("slowdown", "elapsed / alone"),
    ("Jain", "(Σx)² / (n Σx²) of x = achieved / entitled, one x a job; 1 is even"),
)
