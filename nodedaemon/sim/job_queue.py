"""Jobs that wait for a device, and the units that are free on each device: what Slurm does in a real cluster.

The queue has a fixed order: by submission, or the shortest job first for one baseline. Whenever units become free, the
first job that fits gets them, so smaller jobs may fill gaps. There are no reservations. A job goes to the device with
the most units left, as newer releases of Slurm do with `SelectTypeParameters=LL_SHARED_GRES`, or to the first that
fits, as older ones do. Each operation costs O(log n), so that the history of a cluster can be replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from heapq import heappop, heappush

#: The value of an empty place: larger than every bound.
_EMPTY = 1 << 62


class Spread(StrEnum):
    """Which device a job gets if it fits on several."""

    LEAST_LOADED = "least-loaded"
    FIRST = "first"


class MinimumTree:
    """A row of numbers. It finds the leftmost number that is small enough in O(log n)."""

    def __init__(self, size: int) -> None:
        self._width = 1
        while self._width < size:
            self._width *= 2
        self._tree = [_EMPTY] * (2 * self._width)

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
        self.put(place, _EMPTY)

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
    """Devices that hold all charges at once, packed first-fit, the largest first. No charge may exceed `bin_units`."""
    tree = MinimumTree(max(1, len(charges)))
    free_units: list[int] = []
    for charge in sorted(charges, reverse=True):
        assert charge <= bin_units
        place = tree.first_at_most(-charge)
        if place is None:
            place = len(free_units)
            free_units.append(bin_units)
        free_units[place] -= charge
        tree.put(place, -free_units[place])
    return len(free_units)


class DevicePool:
    """The free units of every device, and the devices that are completely idle."""

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
        # Nodes by the number of their idle devices. Dictionaries serve as sets that keep an order.
        self._nodes_idle: list[dict[int, None]] = [{} for _ in range(self.node_devices_max + 1)]
        for node, idle in enumerate(self._idle):
            self._nodes_idle[idle][node] = None
        self._least_used = [(0, device) for device in range(device_count)]
        self._used_row = MinimumTree(device_count)
        for device in range(device_count):
            self._used_row.put(device, 0)

    def free(self, device: int) -> int:
        return self.device_units - self._used[device]

    def idle_beside(self, device: int) -> int:
        """The number of completely idle devices on the node of `device`."""
        return self._idle[self._node_of[device]]

    def allocate(self, charge: int) -> int | None:
        """Charge the device with the most free units, or the first with enough. Returns None if none has enough."""
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
        """Use `units` of a device, or free them if the number is negative."""
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

    def allocate_whole(self, count: int) -> list[int] | None:
        """Use `count` idle devices of the node with the fewest that suffice, or of several nodes if none has enough."""
        if count > self.node_devices_max:
            return self._allocate_across(count)
        for idle in range(count, self.node_devices_max + 1):
            if self._nodes_idle[idle]:
                return self._allocate_on(next(iter(self._nodes_idle[idle])), count)
        return None

    def _allocate_across(self, count: int) -> list[int] | None:
        if self.idle_total < count:
            return None
        taken: list[int] = []
        for idle in range(self.node_devices_max, 0, -1):
            for node in list(self._nodes_idle[idle]):
                if len(taken) < count:
                    taken += self._allocate_on(node, min(idle, count - len(taken)))
        return taken

    def _allocate_on(self, node: int, count: int) -> list[int]:
        taken = [device for device in self._devices_of[node] if self._used[device] == 0][:count]
        for device in taken:
            self.charge(device, self.device_units)
        return taken


class JobQueue:
    """Jobs that wait for devices. Places are numbers from 0; the smaller one goes first."""

    def __init__(self, charges: Sequence[int], device_counts: Sequence[int], pool: DevicePool) -> None:
        self._charges, self._device_counts, self._pool = charges, device_counts, pool
        self._shared, self._on_node, self._across = (MinimumTree(len(charges)) for _ in range(3))
        self.waiting_count = 0

    def submit(self, place: int) -> list[int] | None:
        """The devices that the job gets at once, or None if it must wait."""
        taken = self._try(place)
        if taken is None:
            self.waiting_count += 1
            self._row_of(place).put(place, self._demand(place))
        return taken

    def release(self, place: int, devices: list[int]) -> list[tuple[int, list[int]]]:
        """Free the devices of a job. Returns the places of the jobs that start now, with their devices."""
        units = self._charges[place] if self._device_counts[place] == 1 else self._pool.device_units
        for device in devices:
            self._pool.charge(device, -units)
        started = []
        for device in devices:
            while (start := self._next(device)) is not None:
                started.append(start)
        return started

    def _next(self, device: int) -> tuple[int, list[int]] | None:
        pool = self._pool
        if not self.waiting_count:
            return None
        fits = [
            self._shared.first_at_most(pool.free(device)),
            self._on_node.first_at_most(pool.idle_beside(device)),
            self._across.first_at_most(pool.idle_total),
        ]
        places = [place for place in fits if place is not None]
        if not places:
            return None
        place = min(places)
        self._row_of(place).clear(place)
        self.waiting_count -= 1
        if self._device_counts[place] == 1:
            pool.charge(device, self._charges[place])
            return place, [device]
        taken = pool.allocate_whole(self._device_counts[place])
        assert taken is not None
        return place, taken

    def _try(self, place: int) -> list[int] | None:
        count = self._device_counts[place]
        if count > 1:
            return self._pool.allocate_whole(count)
        device = self._pool.allocate(self._charges[place])
        return None if device is None else [device]

    def _demand(self, place: int) -> int:
        count = self._device_counts[place]
        return self._charges[place] if count == 1 else count

    def _row_of(self, place: int) -> MinimumTree:
        count = self._device_counts[place]
        if count == 1:
            return self._shared
        return self._on_node if count <= self._pool.node_devices_max else self._across
