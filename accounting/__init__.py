"""Usage accounting: what is measured, how it is stored, and what is reported. No other package contains SQL.

The modules here are what other packages use: records that daemons send, the meter of salusd, profiles, and the
questions that commands ask. `storage` holds the database, `ingest` writes to it, `reports` reads from it.
"""
