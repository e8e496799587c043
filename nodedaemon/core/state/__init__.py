"""The state of the engine: sessions, lanes and waiters, with snapshots, read-only views and invariants.

Only `Engine.handle` and the round change it. Add a fact here if a decision needs it.
"""
