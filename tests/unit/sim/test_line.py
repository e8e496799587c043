"""Slurm's part: who starts where, when room appears."""

from nodedaemon.sim.line import Line, Minima, Room, Spread, bins_needed


def line_of(charges, device_counts=None, *, devices=1, nodes=1, units=10):
    room = Room(devices, nodes, units)
    return Line(charges, device_counts or [1] * len(charges), room), room


def test_the_leftmost_small_enough_value_is_found():
    row = Minima(5)
    for place, value in enumerate([7, 3, 5, 3, 9]):
        row.put(place, value)
    assert row.first_at_most(4) == 1
    row.clear(1)
    assert row.first_at_most(4) == 3
    assert row.first_at_most(6) == 2
    assert row.first_at_most(2) is None


def test_charges_are_packed_largest_first():
    assert bins_needed([6, 5, 4, 3, 2], 10) == 2
    assert bins_needed([6, 6, 6], 10) == 3
    assert bins_needed([], 10) == 0


def test_a_job_goes_to_the_least_loaded_device():
    line, _ = line_of([4, 4, 4], devices=2)
    assert [line.submit(place) for place in range(3)] == [[0], [1], [0]]


def test_without_spreading_a_job_goes_to_the_first_device_with_room():
    line = Line([4, 4, 4, 2], [1] * 4, Room(2, 1, 10, Spread.FIRST))
    assert [line.submit(place) for place in range(4)] == [[0], [0], [1], [0]]
    assert line.release(0, [0]) == []


def test_a_smaller_job_fills_what_the_first_in_line_cannot_use():
    line, _ = line_of([6, 8, 3])
    assert line.submit(0) == [0]
    assert line.submit(1) is None
    assert line.submit(2) == [0]


def test_room_goes_to_the_first_in_line_that_fits_it():
    line, _ = line_of([6, 3, 8, 5, 4])
    assert line.submit(0) == [0]
    assert line.submit(1) == [0]
    assert [line.submit(place) for place in (2, 3, 4)] == [None, None, None]
    assert line.release(0, [0]) == [(3, [0])]
    assert line.release(1, [0]) == [(4, [0])]
    assert line.release(3, [0]) == []
    assert line.release(4, [0]) == [(2, [0])]


def test_a_job_of_two_devices_takes_idle_ones_of_one_node():
    line, room = line_of([1, 0, 1], [1, 2, 1], devices=4, nodes=2)
    assert line.submit(0) == [0]
    assert line.submit(1) == [2, 3]
    assert room.idle_total == 1
    assert line.submit(2) == [1]


def test_a_job_larger_than_a_node_takes_devices_of_several():
    line, _ = line_of([0, 0], [3, 2], devices=4, nodes=2)
    assert line.submit(0) == [0, 1, 2]
    assert line.submit(1) is None
    assert line.release(0, [0, 1, 2]) == [(1, [0, 1])]


def test_a_waiting_job_of_several_devices_starts_when_its_node_is_idle():
    line, _ = line_of([5, 5, 0], [1, 1, 2], devices=2, nodes=1)
    assert line.submit(0) == [0]
    assert line.submit(1) == [1]
    assert line.submit(2) is None
    assert line.release(0, [0]) == []
    assert line.release(1, [1]) == [(2, [0, 1])]
