"""Schedules that lead a simulated cluster to where one bug shows, which chance hardly ever does.

Each goes well; with the bug planted that it is for, the checkers find it (`plants`). What the seed
still chooses is how long everything takes.
"""

from collections.abc import Callable

from tests.cluster.simulation.topics.stage import Stage
from tests.cluster.simulation.topics.world import Shape, World
from waterclock.cluster.replication.log_view import ReplicaId

Schedule = Callable[[int], World]
SCHEDULES: dict[str, Schedule] = {}


def schedule(play: Schedule) -> Schedule:
    """Put a schedule among the others."""
    SCHEDULES[play.__name__.replace("_", " ")] = play
    return play


@schedule
def a_voter_starts_anew_between_its_promise_and_the_new_leader(seed: int) -> World:
    """It has promised a candidate its epoch, and hears of the old leader first.

    The candidate counts its answer. If the voter forgot the promise, it would help the old leader
    to commit what the new one does not have.
    """
    stage = Stage(seed, Shape())
    stage.store("x")
    old, others = stage.leader, stage.others
    stage.part(old, *others)
    stage.part_from_etcd(old)
    stage.until(lambda: any(stage.hosted(name).core.role == "candidate" for name in others))
    [candidate] = [name for name in others if stage.hosted(name).core.role == "candidate"]
    [voter] = [name for name in others if name != candidate]
    stage.part_from_etcd(candidate)
    campaign = stage.hosted(candidate).core._election.campaign
    assert campaign is not None
    stage.until(lambda: campaign.has_answer_of(stage.hosted(voter).me))
    stage.part(candidate, voter)
    stage.world.kill(voter)
    stage.world.start(voter)
    stage.join(old, voter)
    for number in range(10):
        stage.run(80)
        stage.publish(old, f"y{number}")
    stage.join_etcd(candidate)
    stage.join(candidate, voter)
    stage.run(3_000)
    stage.join_etcd(old)
    stage.join(old, candidate)
    return stage.judge()


@schedule
def a_disk_is_wiped_that_one_of_two_copies_was_on(seed: int) -> World:
    """The other copy is away, and who is left has neither.

    If the empty disk voted as the one before it, the two would make a majority.
    """
    stage = Stage(seed, Shape())
    stage.store("x")
    leader, (copy, empty) = stage.leader, stage.others
    stage.part(leader, empty)
    answers = stage.publish(leader, "y")
    stage.until(lambda: answers == ["acked"])
    stage.world.cut_power(leader)
    stage.world.wipe(copy)
    stage.world.start(copy)
    stage.join(leader, empty)
    stage.run(8_000)
    return stage.judge()


@schedule
def a_log_is_removed_that_was_one_of_two_copies(seed: int) -> World:
    """As above, but the disk is the same, and what was promised is still there."""
    stage = Stage(seed, Shape())
    stage.store("x")
    leader, (copy, empty) = stage.leader, stage.others
    stage.part(leader, empty)
    answers = stage.publish(leader, "y")
    stage.until(lambda: answers == ["acked"])
    stage.world.cut_power(leader)
    stage.world.remove_log(copy, stage.log_id)
    stage.world.start(copy)
    stage.join(leader, empty)
    stage.run(4_000)
    stage.world.kill(copy)  # a second start must know it as well
    stage.world.start(copy)
    stage.run(4_000)
    return stage.judge()


@schedule
def the_log_of_a_leader_is_removed(seed: int) -> World:
    """It is started at once, before anyone takes it for gone: another leads, and it learns."""
    stage = Stage(seed, Shape())
    stage.store("x")
    leader = stage.leader
    stage.world.remove_log(leader, stage.log_id)
    stage.start(leader)
    stage.run(8_000)
    return stage.judge()


@schedule
def a_leader_has_a_learner_and_no_voter(seed: int) -> World:
    """What the two of them have is not committed: the others elect a leader without it."""
    stage = Stage(seed, Shape(nodes=4))
    stage.store("x")
    leader, others = stage.leader, stage.others
    [learner] = [name for name in stage.world.names if name not in (leader, *others)]
    hosted, replica = stage.hosted(leader), ReplicaId(stage.world.replica(learner))
    hosted.tell(hosted.core.add_learner(replica, hosted.now_ms))
    stage.until(lambda: learner in str(stage.record.learners))
    stage.part(leader, *others)
    stage.until(lambda: stage.log_id in stage.process(learner).replicas)
    for number in range(5):
        stage.publish(leader, f"y{number}")
        stage.run(50)
    stage.world.cut_power(leader)
    stage.join(leader, *others)
    stage.led()
    stage.run(1_000)
    return stage.judge()


@schedule
def an_entry_of_an_older_epoch_is_on_a_majority(seed: int) -> World:
    """Raft, figure 8: it is on a majority in (c), and is overwritten in (d)."""
    stage = Stage(seed, Shape(frames_max=1))
    stage.store("x")
    first, others = stage.leader, stage.others
    # (a) It is on the first leader alone,
    stage.hold_frames(first)
    end = stage.end_of(first)
    stage.publish(first, "two")
    stage.until(lambda: stage.end_of(first) > end)
    stage.world.kill(first)
    # (b) which is gone; another one writes something else, on its own, and is gone,
    stage.until(lambda: any(stage.hosted(name).core.role == "leader" for name in others))
    [second] = [name for name in others if stage.hosted(name).core.role == "leader"]
    [voter] = [name for name in others if name != second]
    stage.hold_frames(second)
    stage.until(lambda: stage.hosted(second).is_open)
    stage.publish(second, "three")
    stage.until(lambda: stage.end_of(second) > end + 1)
    stage.world.kill(second)
    # (c) the first leads again, and copies the old entry: now a majority has it,
    stage.start(first)
    stage.hold_frames(first, above=end + 1)
    stage.until(lambda: stage.hosted(first).is_open)
    stage.until(lambda: stage.end_of(voter) > end)
    stage.publish(first, "two")
    stage.run(100)
    stage.publish(first, "two")
    stage.run(100)
    stage.world.kill(first)
    # (d) but the second has a later epoch.
    stage.hold_nothing()
    stage.world.start(second)
    stage.led()
    return stage.judge()


@schedule
def a_leader_sleeps_and_wakes_when_another_leads(seed: int) -> World:
    """A publish of its own epoch is on its way to its disk yet: it must tell nobody of that."""
    stage = Stage(seed, Shape())
    stage.store("x")
    old, others = stage.leader, stage.others
    stage.part(old, *others)
    stage.publish(old, "old")
    stage.process(old).pause()
    stage.until(lambda: any(stage.hosted(name).is_open for name in others))
    [new] = [name for name in others if stage.hosted(name).is_open]
    answers = stage.publish(new, "new")
    stage.until(lambda: answers == ["acked"])
    stage.process(old).resume()
    stage.run(500)
    stage.join(old, *others)
    return stage.judge()


@schedule
def a_leader_that_was_cut_off_follows_another(seed: int) -> World:
    """What it still waits for lost its place to a message of the new leader: that is no ack."""
    stage = Stage(seed, Shape())
    stage.store("x")
    old, others = stage.leader, stage.others
    stage.part(old, *others)
    stage.publish(old, "old")
    stage.until(lambda: any(stage.hosted(name).is_open for name in others))
    [new] = [name for name in others if stage.hosted(name).is_open]
    taken = stage.publish(new, "new")
    stage.until(lambda: taken == ["acked"])
    stage.join(old, *others)
    stage.run(3_000)
    return stage.judge()


@schedule
def a_follower_loses_its_power_before_its_disk_is_done(seed: int) -> World:
    """It has written what the leader sent, and flushed nothing: that is no copy yet."""
    stage = Stage(seed, Shape())
    stage.store("x")
    leader, (slow, away) = stage.leader, stage.others
    end = stage.end_of(leader)
    stage.part(leader, away)
    stage.part(slow, away)
    stage.slow_disk(slow)
    stage.publish(leader, "y")
    stage.until(lambda: stage.hosted(slow).log.end > end)
    stage.run(100)
    stage.world.cut_power(slow)
    stage.world.cut_power(leader)
    stage.slow_disk(slow, flush_ms=(0, 3))
    stage.world.start(slow)
    stage.join(slow, away)
    stage.run(8_000)
    stage.join(leader, away)
    return stage.judge()


@schedule
def etcd_is_restored_from_an_old_copy(seed: int) -> World:
    """It gives an epoch out a second time: who promised it, or led under it, must say no."""
    stage = Stage(seed, Shape())
    stage.store("x")
    world, first, (voter, other) = stage.world, stage.leader, stage.others
    old = world.store.fake.store.snapshot()
    world.kill(other)
    world.kill(first)
    stage.hold_frames(first)
    stage.start(first)
    stage.until(lambda: stage.hosted(first).is_open)
    stage.publish(first, "first")
    stage.run(100)
    for name in (first, voter):
        world.kill(name)
    stage.hold_nothing()
    stage.restore_etcd(old)
    for name in (voter, other):
        world.start(name)
    for number in range(80):
        stage.run(100)
        stage.publish(other, f"other{number}")
    problems, world.problems[:] = list(world.problems), []
    if not problems:
        world.findings.add("untold", "nobody said that the coordinator was restored")
    world.start(first)
    return stage.judge()


@schedule
def a_lost_node_is_replaced_by_one_that_has_nothing_yet(seed: int) -> World:
    """One of two copies is lost, and then the other: who takes its place must have learned."""
    stage = Stage(seed, Shape(nodes=4, replace_after_ms=300))
    stage.store("x")
    world, leader, (empty, lost) = stage.world, stage.leader, stage.others
    stage.hold_frames(leader, to=empty)
    answers = stage.publish(leader, "y")
    stage.until(lambda: answers == ["acked"])
    world.lose(lost)
    stage.hold_frames(leader)
    stage.run(6_000)
    world.cut_power(leader)
    stage.run(6_000)
    return stage.judge()


@schedule
def a_node_joins_and_is_given_its_share(seed: int) -> World:
    """Replicas move to it, one at a time, until all come to rest."""
    shape = Shape(nodes=4, partitions=6, is_joined=True, publishers=1, replace_after_ms=5_000)
    world = World(seed, shape)
    world.timeline.run(12_000)
    world.end()
    process = world.processes["n4"]
    assert process is not None
    load = process.session.view.load()
    if max(load.values()) - min(load.values()) > len(load):
        world.findings.add("uneven", str(load))
    return world
