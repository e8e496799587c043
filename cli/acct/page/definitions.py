"""The definitions at the end of the page. docs/accounting.md has them in full; a test compares the names."""

DEFINITIONS = (
    ("held", "elapsed time x gres/salus count, as in sacct -D, without suspended time"),
    ("busy", "time with a running iteration; if k iterations run on a device at the same time, each counts 1/k"),
    ("occupied", "busy time plus the device's idle time, divided among the jobs present in proportion to their charge"),
    ("alone", "iterations x the profile's solo iteration time + time outside iterations; n/a if unknown"),
    ("efficiency", "busy / occupied"),
    ("sharing gain", "alone / occupied; jobs that only take turns gain nothing"),
    ("memory saved", "the sum of the jobs' peaks minus the memory that was held, over time"),
    ("wait", "time in Slurm's queue, from eligible to start"),
    ("slowdown", "elapsed / alone"),
    ("Jain", "(Σx)² / (n Σx²) with x = achieved / entitled of each job; 1 is perfectly fair"),
)
