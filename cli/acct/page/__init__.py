"""The HTML report of `salus-acct report --html`: one file per chart, and `page.py`, which puts them together."""
