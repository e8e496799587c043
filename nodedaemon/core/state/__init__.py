"""What the engine keeps: sessions, lanes and waiters, with snapshots, read-only views and the invariants of it all.

Only `Engine.handle` and the round change it. Add a fact here if a decision needs it.
"""
