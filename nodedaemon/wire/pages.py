"""The layout of the pages that salusd shares with sessions: offsets in bytes.

Written by tools/layouts.py from salus_pages.h: change the C side, then run `make layouts`.
"""

import enum

PAGE_BYTES = 4096
PAGE_VERSION = 1
UNLIMITED = 0xFFFFFFFF
SLOT_COUNT = 63
EPOCH_SHIFT = 16
EPOCH_MASK = 0xFFFFFFFFFFFF
STATE_MASK = 255
SEQUENCE_MASK = 65280
SEQUENCE_STEP = 256
UPPER_SHIFT = 32
LOWER_MASK = 0xFFFFFFFF
SLOT_BYTES = 64


class GateState(enum.IntEnum):
    """What a session does, according to its gate page."""

    OUT = 0
    WAITING = 1
    RUNNING = 2
    IDLE = 3
    REVOKED = 4


class GatePageOffset:
    """Of struct salus_gate_page."""

    MAGIC = 0
    VERSION = 4
    SESSION = 8
    LEASE = 64
    GRANT = 72
    LANE = 80
    LANE_EPOCH = 88
    SUCCESSOR = 96
    LAUNCH = 104
    STATE = 128
    ITERATION_COUNT = 192
    STARTED_COUNT = 200
    BOUNDARY_NS = 208
    RETURNED_EPOCH = 216
    RETURNED_COUNTS = 224


class TurnSlotOffset:
    """Of struct salus_turn_slot."""

    WAKE_COUNT = 0
    SLEEPERS = 4
    OFFER = 8
    CPU = 16
    IS_STARTED_DUE = 20


class TurnPageOffset:
    """Of struct salus_turn_page."""

    MAGIC = 0
    VERSION = 4
    SLOTS = 64
