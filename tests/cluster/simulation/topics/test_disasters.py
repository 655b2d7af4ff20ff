"""What happens to all of a simulated cluster: its power fails, or its etcd comes back old."""

import pytest

from tests.cluster.simulation.topics.world import World
from waterclock.cluster.coordinator.store import Store


@pytest.mark.parametrize("seed", range(1, 3))
def test_nothing_acknowledged_is_lost_when_the_power_of_all_nodes_fails_again_and_again(seed):
    world = World(seed)
    world.faults.do_only("power cut of all")

    world.run()

    assert str(world.findings) == "nothing found"
    assert world.faults.done["power cut of all"] > 3
    assert world.counts["publishes acked"]


def test_a_new_disk_whose_first_sync_fails_ends_the_process_and_it_is_started_again():
    """Seed 3088 of the first thousands: the process died while it made its file of promises."""
    world = World(1)
    assert world.copies == 3
    world.faults.do_only("link broken")
    world.wipe("n1")
    world.machines["n1"].own.fail_next_sync()

    world.start("n1")
    assert world.processes["n1"] is None
    world.run()

    assert str(world.findings) == "nothing found"
    assert world.counts["processes ended by their disk"] == 1


@pytest.mark.parametrize("seed", range(1, 3))
def test_an_etcd_that_was_restored_from_an_old_copy_is_refused_and_nothing_is_lost(seed):
    world = World(seed)
    world.timeline.run(1_500)
    old = world.store.fake.store.snapshot()
    _let_others_lead(world)
    newest = world.store.fake.store.snapshot()

    _restore(world, old)
    world.timeline.run(9_000)
    # Those that knew better are gone: what is on their disks must be enough to refuse.
    _restart(world)
    world.timeline.run(15_000)
    leaders = [world.leader(log_id) for log_id in world.log_ids]
    _restore(world, newest)
    _restart(world)
    world.timeline.run(18_000)
    world.is_loaded = False
    world.timeline.run(30_000)
    world._finish()

    assert set(world.findings) == {"problem"}, str(world.findings)
    assert leaders.count(None) > 0


def _let_others_lead(world: World) -> None:
    """Kill each leader, so that the epochs rise."""
    for log_id in world.log_ids:
        leader = world.leader(log_id)
        if leader is not None:
            world.kill(leader.process.name)
    world.timeline.run(5_500)
    for name in world.names:
        world.start(name)
    world.timeline.run(6_000)


def _restore(world: World, copy: Store) -> None:
    world.store.pass_time()
    world.store.fake.restore(copy)
    world.store.wake()


def _restart(world: World) -> None:
    for name in world.names:
        world.kill(name)
        world.start(name)
