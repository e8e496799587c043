"""The decisions of Salus, as pure code.

No module of this package reads a clock, does I/O or uses randomness. `Engine.handle(event, now_ns)` takes an event and
returns the commands to carry out. The daemon, the simulator and the tests drive the same engine (docs/architecture.md).
"""
