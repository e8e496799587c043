"""Which job starts, and on which device, when units become free."""

from nodedaemon.sim.job_queue import DevicePool, JobQueue, MinimumTree, Spread, bins_needed


def queue_of(charges, device_counts=None, *, devices=1, nodes=1, units=10):
    pool = DevicePool(devices, nodes, units)
    return JobQueue(charges, device_counts or [1] * len(charges), pool), pool


def test_the_leftmost_value_that_is_small_enough_is_found():
    row = MinimumTree(5)
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
    queue, _ = queue_of([4, 4, 4], devices=2)
    assert [queue.submit(place) for place in range(3)] == [[0], [1], [0]]


def test_without_spreading_a_job_goes_to_the_first_device_that_fits():
    queue = JobQueue([4, 4, 4, 2], [1] * 4, DevicePool(2, 1, 10, Spread.FIRST))
    assert [queue.submit(place) for place in range(4)] == [[0], [0], [1], [0]]
    assert queue.release(0, [0]) == []


def test_a_smaller_job_fills_units_that_the_first_in_the_queue_cannot_use():
    queue, _ = queue_of([6, 8, 3])
    assert queue.submit(0) == [0]
    assert queue.submit(1) is None
    assert queue.submit(2) == [0]


def test_free_units_go_to_the_first_job_in_the_queue_that_fits():
    queue, _ = queue_of([6, 3, 8, 5, 4])
    assert queue.submit(0) == [0]
    assert queue.submit(1) == [0]
    assert [queue.submit(place) for place in (2, 3, 4)] == [None, None, None]
    assert queue.release(0, [0]) == [(3, [0])]
    assert queue.release(1, [0]) == [(4, [0])]
    assert queue.release(3, [0]) == []
    assert queue.release(4, [0]) == [(2, [0])]


def test_a_job_of_two_devices_gets_idle_devices_of_one_node():
    queue, pool = queue_of([1, 0, 1], [1, 2, 1], devices=4, nodes=2)
    assert queue.submit(0) == [0]
    assert queue.submit(1) == [2, 3]
    assert pool.idle_total == 1
    assert queue.submit(2) == [1]


def test_a_job_larger_than_a_node_gets_devices_of_several_nodes():
    queue, _ = queue_of([0, 0], [3, 2], devices=4, nodes=2)
    assert queue.submit(0) == [0, 1, 2]
    assert queue.submit(1) is None
    assert queue.release(0, [0, 1, 2]) == [(1, [0, 1])]


def test_a_waiting_job_of_several_devices_starts_when_its_node_is_idle():
    queue, _ = queue_of([5, 5, 0], [1, 1, 2], devices=2, nodes=1)
    assert queue.submit(0) == [0]
    assert queue.submit(1) == [1]
    assert queue.submit(2) is None
    assert queue.release(0, [0]) == []
    assert queue.release(1, [1]) == [(2, [0, 1])]
