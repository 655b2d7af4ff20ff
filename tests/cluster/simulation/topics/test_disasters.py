"""What happens to all of a simulated cluster, or to a disk before it is used."""

import pytest

from tests.cluster.simulation.topics.world import Shape, World


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
    world = World(1, Shape(publishers=2))
    world.faults.do_only("link broken")
    world.wipe("n1")
    world.machines["n1"].own.fail_next_sync()

    world.start("n1")
    assert world.processes["n1"] is None
    world.run()

    assert str(world.findings) == "nothing found"
    assert world.counts["processes ended by their disk"] == 1
