"""The decisions of Salus, as pure code.

Nothing below this package reads a clock, opens a file or rolls dice: `Engine.handle(event, now_ns)` takes what happened
and returns what is to be done. The daemon, the simulator and the tests drive the same engine (docs/architecture.md).
"""
