"""The commands `salus` and `salus-acct`. Each command is one file, named after its noun, in the package of its subject.

`main.py` lists the commands of `salus`, `entry.py` defines exit codes, `manual.py` writes the manual pages.
"""
