"""Jobs that wait for a device, and the devices: Slurm's part of the story.

Jobs stand in a fixed order (by submission, or shortest first for one baseline). Whenever room appears, the first that
fits takes it: smaller ones may fill. There are no reservations. A job goes to the device with most room left, as newer
releases of Slurm do with `SelectTypeParameters=LL_SHARED_GRES`, or to the first that fits, as others do. Each step
costs O(log n), so that clusters can be replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from heapq import heappop, heappush

_NOBODY = 1 << 62


class Spread(StrEnum):
    """Which of several devices with room a job gets."""

    LEAST_LOADED = "least-loaded"
    FIRST = "first"


class Minima:
    """A row of numbers in which the leftmost one that is small enough is found in O(log n)."""

    def __init__(self, size: int) -> None:
        self._width = 1
        while self._width < size:
            self._width *= 2
        self._tree = [_NOBODY] * (2 * self._width)

    def put(self, place: int, value: int) -> None:
        tree, node = self._tree, place + self._width
        tree[node] = value
        node //= 2
        while node:
            least = min(tree[2 * node], tree[2 * node + 1])
            if tree[node] == least:
                break
            tree[node] = least
            node //= 2

    def clear(self, place: int) -> None:
        self.put(place, _NOBODY)

    def first_at_most(self, bound: int) -> int | None:
        """The leftmost place whose value is at most `bound`."""
        tree = self._tree
        if tree[1] > bound:
            return None
        node = 1
        while node < self._width:
            node *= 2
            if tree[node] > bound:
                node += 1
        return node - self._width


def bins_needed(charges: Sequence[int], bin_units: int) -> int:
    """Devices that hold all charges at once, packed first-fit, largest first. A charge over a whole bin is a bug."""
    free = Minima(max(1, len(charges)))
    rooms: list[int] = []
    for charge in sorted(charges, reverse=True):
        assert charge <= bin_units
        place = free.first_at_most(-charge)
        if place is None:
            place = len(rooms)
            rooms.append(bin_units)
        rooms[place] -= charge
        free.put(place, -rooms[place])
    return len(rooms)


class Room:
    """Units free on every device, and which devices of a node are wholly idle."""

    def __init__(
        self, device_count: int, node_count: int, device_units: int, spread: Spread = Spread.LEAST_LOADED
    ) -> None:
        self.device_units = device_units
        self._spread = spread
        self._used = [0] * device_count
        self._node_of = [device * node_count // device_count for device in range(device_count)]
        self._devices_of: list[list[int]] = [[] for _ in range(node_count)]
        for device, node in enumerate(self._node_of):
            self._devices_of[node].append(device)
        self._idle = [len(devices) for devices in self._devices_of]
        self.idle_total = device_count
        self.node_devices_max = max(self._idle)
        # Nodes by how many of their devices are idle; as dictionaries, which keep an order.
        self._nodes_idle: list[dict[int, None]] = [{} for _ in range(self.node_devices_max + 1)]
        for node, idle in enumerate(self._idle):
            self._nodes_idle[idle][node] = None
        self._least_used = [(0, device) for device in range(device_count)]
        self._used_row = Minima(device_count)
        for device in range(device_count):
            self._used_row.put(device, 0)

    def free(self, device: int) -> int:
        return self.device_units - self._used[device]

    def idle_beside(self, device: int) -> int:
        """Wholly idle devices on the node of `device`."""
        return self._idle[self._node_of[device]]

    def take(self, charge: int) -> int | None:
        """Charge the device with most room left, or the first with enough; None where none has enough."""
        if self._spread is Spread.FIRST:
            first = self._used_row.first_at_most(self.device_units - charge)
            if first is not None:
                self.charge(first, charge)
            return first
        heap = self._least_used
        while heap and heap[0][0] != self._used[heap[0][1]]:
            heappop(heap)
        if not heap or heap[0][0] + charge > self.device_units:
            return None
        device = heap[0][1]
        self.charge(device, charge)
        return device

    def charge(self, device: int, units: int) -> None:
        """Take `units` (give them back where negative) on a device."""
        was_idle = self._used[device] == 0
        self._used[device] += units
        assert 0 <= self._used[device] <= self.device_units
        if self._spread is Spread.FIRST:
            self._used_row.put(device, self._used[device])
        else:
            heappush(self._least_used, (self._used[device], device))
        is_idle = self._used[device] == 0
        if was_idle != is_idle:
            self._count_idle(self._node_of[device], 1 if is_idle else -1)

    def _count_idle(self, node: int, change: int) -> None:
        del self._nodes_idle[self._idle[node]][node]
        self._idle[node] += change
        self.idle_total += change
        self._nodes_idle[self._idle[node]][node] = None

    def take_whole(self, count: int) -> list[int] | None:
        """Take `count` idle devices: of the node that they fill best, or of several where no node has so many."""
        if count > self.node_devices_max:
            return self._take_across(count)
        for idle in range(count, self.node_devices_max + 1):
            if self._nodes_idle[idle]:
                return self._take_on(next(iter(self._nodes_idle[idle])), count)
        return None

    def _take_across(self, count: int) -> list[int] | None:
        if self.idle_total < count:
            return None
        taken: list[int] = []
        for idle in range(self.node_devices_max, 0, -1):
            for node in list(self._nodes_idle[idle]):
                if len(taken) < count:
                    taken += self._take_on(node, min(idle, count - len(taken)))
        return taken

    def _take_on(self, node: int, count: int) -> list[int]:
        taken = [device for device in self._devices_of[node] if self._used[device] == 0][:count]
        for device in taken:
            self.charge(device, self.device_units)
        return taken


class Line:
    """Jobs before the devices. Places are numbers from 0; a smaller one goes first."""

    def __init__(self, charges: Sequence[int], device_counts: Sequence[int], room: Room) -> None:
        self._charges, self._device_counts, self._room = charges, device_counts, room
        self._shared, self._on_node, self._across = (Minima(len(charges)) for _ in range(3))
        self.waiting_count = 0

    def submit(self, place: int) -> list[int] | None:
        """The devices that the job gets at once, or None: it waits."""
        taken = self._try(place)
        if taken is None:
            self.waiting_count += 1
            self._row_of(place).put(place, self._demand(place))
        return taken

    def release(self, place: int, devices: list[int]) -> list[tuple[int, list[int]]]:
        """Give a job's devices back; answers who starts now, and where."""
        units = self._charges[place] if self._device_counts[place] == 1 else self._room.device_units
        for device in devices:
            self._room.charge(device, -units)
        started = []
        for device in devices:
            while (begun := self._next(device)) is not None:
                started.append(begun)
        return started

    def _next(self, device: int) -> tuple[int, list[int]] | None:
        room = self._room
        if not self.waiting_count:
            return None
        fits = [
            self._shared.first_at_most(room.free(device)),
            self._on_node.first_at_most(room.idle_beside(device)),
            self._across.first_at_most(room.idle_total),
        ]
        places = [place for place in fits if place is not None]
        if not places:
            return None
        place = min(places)
        self._row_of(place).clear(place)
        self.waiting_count -= 1
        if self._device_counts[place] == 1:
            room.charge(device, self._charges[place])
            return place, [device]
        taken = room.take_whole(self._device_counts[place])
        assert taken is not None
        return place, taken

    def _try(self, place: int) -> list[int] | None:
        count = self._device_counts[place]
        if count > 1:
            return self._room.take_whole(count)
        device = self._room.take(self._charges[place])
        return None if device is None else [device]

    def _demand(self, place: int) -> int:
        count = self._device_counts[place]
        return self._charges[place] if count == 1 else count

    def _row_of(self, place: int) -> Minima:
        count = self._device_counts[place]
        if count == 1:
            return self._shared
        return self._on_node if count <= self._room.node_devices_max else self._across
