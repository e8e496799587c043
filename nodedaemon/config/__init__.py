"""Reads salus.conf into frozen dataclasses. No other package reads the file.

    loaded = load(locate(path_or_none))     # Config, or Rejected with every finding
    config = load_or_raise(locate(None))    # for programs that need a configuration
    settings = config.for_node("gpu01")     # typed: settings.lanes.lane_reserve_bytes, settings.order.policy, ...
    devices = config.devices_of("gpu01")    # from DeviceName records

`keys.py` lists the keys with their defaults, `grammar.py` parses the syntax, `check.py` finds contradictions.
"""

from nodedaemon.config.effective import changed_keys
from nodedaemon.config.keys import Settings
from nodedaemon.config.limits import device_limits, lane_reserve_bytes, weight_of
from nodedaemon.config.loading import Rejected, UnreadableError, load, load_or_raise, locate, parse
from nodedaemon.config.records import Config

__all__ = [
    "Config",
    "Rejected",
    "Settings",
    "UnreadableError",
    "changed_keys",
    "device_limits",
    "lane_reserve_bytes",
    "load",
    "load_or_raise",
    "locate",
    "parse",
    "weight_of",
]
