"""Where two logs part is told by epochs and ends alone, as Raft's log matching has it."""

from hypothesis import given
from hypothesis import strategies as st

from waterclock.cluster.replication.lineage import EpochEnd, EpochStart, Lineage
from waterclock.model.ids import Epoch, Offset

Log = list[tuple[int, int]]
"""The epoch of each offset, and a number that no two entries ever written share."""


def lineage_of(log: Log) -> Lineage:
    starts: list[EpochStart] = []
    for offset, (epoch, _) in enumerate(log):
        if epoch > (starts[-1].epoch if starts else 0):
            starts.append(EpochStart(Epoch(epoch), Offset(offset)))
    return Lineage(tuple(starts), Offset(len(log)))


def same(one: Log, other: Log) -> int:
    """Return how many entries two logs share, by looking at each."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def parting(follower: Lineage, leader: Lineage) -> tuple[int, int]:
    """Return where the follower must cut its log, and how often it asked."""
    claim, asked = follower.last, 1
    while (answer := leader.diverging(claim)) is not None:
        before, claim = claim, follower.retreat(answer)
        assert claim < before, "a claim that was refused is not made again"
        asked += 1
    return claim.end, asked


@st.composite
def replicas(draw: st.DrawFn) -> list[Log]:
    """Logs of three replicas after leaders that came and went, each heard by some only."""
    logs: list[Log] = [[], [], []]
    number = 0
    for epoch in range(draw(st.integers(0, 1)), 12):
        if draw(st.integers(0, 3)) == 0:
            continue  # an epoch that never came to be
        leader = draw(st.integers(0, 2))
        for _ in range(draw(st.integers(1, 3))):
            logs[leader].append((epoch, number))
            number += 1
        for follower in draw(st.sets(st.integers(0, 2))) - {leader}:
            kept = same(logs[follower], logs[leader])
            upto = draw(st.integers(kept, len(logs[leader])))
            logs[follower][kept:] = logs[leader][kept:upto]
    return logs


@given(replicas())
def test_a_replica_cuts_what_its_leader_has_not_and_nothing_else(logs):
    for follower in logs:
        for leader in logs:
            end, _ = parting(lineage_of(follower), lineage_of(leader))
            assert end == same(follower, leader)


@given(replicas(), st.integers(0, 40))
def test_a_log_that_was_cut_has_the_epochs_that_are_left(logs, end):
    for log in logs:
        cut = lineage_of(log[:end])
        assert Lineage.of(lineage_of(log).starts, min(end, len(log))) == cut
        assert cut.begun(Epoch(99), len(log[:end])) == (*cut.starts, (99, len(log[:end])))


def test_the_log_of_the_latest_leader_counts_for_more_than_a_longer_one():
    long, late = lineage_of([(1, n) for n in range(9)]), lineage_of([(1, 0), (2, 1)])

    assert late.last > long.last
    assert lineage_of([]).last == EpochEnd(Epoch(0), Offset(0))


def test_what_was_written_before_the_first_leader_is_compared_too():
    alone = lineage_of([(0, 0), (0, 1), (0, 2)])
    led = lineage_of([(0, 0), (0, 1), (1, 3)])

    assert parting(alone, led) == (2, 2)
    assert parting(lineage_of([]), led) == (0, 1)
    assert parting(led, lineage_of([])) == (0, 2)


def test_one_answer_is_not_enough_after_leaders_that_came_and_went_quickly():
    """KIP-279: the epoch that the leader names is not known to the follower."""
    follower = lineage_of([(1, 0), (1, 1), (1, 2), (3, 3), (5, 4)])
    leader = lineage_of([(1, 0), (2, 10), (4, 11), (6, 12)])

    assert parting(follower, leader) == (1, 4)


def test_an_epoch_that_began_and_has_no_frame_is_begun_over():
    planned = Lineage.of((EpochStart(Epoch(4), Offset(7)),), 7)

    assert planned.last == (0, 7)
    assert planned.begun(Epoch(5), 7) == ((5, 7),)
