import asyncio

import pytest

from tests.node.record_logs import RecordReplica, replicas, share
from waterclock.model.errors import Fenced, NotLeader, PartitionFaulty, StorageFailed


def listened(replica: RecordReplica, prefix: str = "") -> list[tuple[str, bytes | None]]:
    """Return what is told of a replica's records from now on."""
    heard: list[tuple[str, bytes | None]] = []
    replica.metadata.on_committed(prefix, lambda name, value: heard.append((name, value)))
    return heard


async def test_a_leader_knows_at_once_what_it_wrote_and_others_once_it_is_committed():
    with replicas() as (leader, follower):
        leader.metadata.write({"a": b"1"})
        follower.copy(leader)
        follower.commit(leader.store.end - 1)

        assert (leader.records, follower.records) == ({"a": b"1"}, {})
        share([leader, follower])
        assert follower.records == {"a": b"1"}


async def test_changes_are_told_everywhere_in_order_and_once_they_are_committed():
    with replicas() as (leader, follower):
        heard = listened(leader, "t/"), listened(follower, "t/")
        leader.metadata.write({"t/1": b"a", "t/2": b"b", "other": b"x"})
        assert heard == ([], [])
        share([leader, follower])
        leader.metadata.write({"t/1": None})
        share([leader, follower])

        assert heard[0] == [("t/1", b"a"), ("t/2", b"b"), ("t/1", None)]
        assert heard[1] == heard[0]


async def test_what_one_listener_cannot_do_keeps_nobody_from_hearing_of_the_rest(caplog):
    def faulty(name: str, value: bytes | None) -> None:
        raise PartitionFaulty(f"{name} cannot be done")

    with replicas() as (leader, follower):
        for replica in (leader, follower):
            replica.metadata.on_committed("t/", faulty)
        heard = listened(leader), listened(follower)
        leader.metadata.write({"t/1": b"a", "t/2": b"b", "other": b"x"})
        share([leader, follower])

        assert heard[0] == heard[1] == [("t/1", b"a"), ("t/2", b"b"), ("other", b"x")]
        problems = [each.message for each in caplog.records if "record_not_applied" in each.message]
        wanted = [f"record_not_applied name=t/{n} error=t/{n} cannot be done" for n in "12"]
        assert problems == 2 * wanted


async def test_a_listener_that_meets_a_disk_that_failed_is_not_passed_over():
    def failed(name: str, value: bytes | None) -> None:
        raise StorageFailed("the disk did")

    with replicas() as (leader, follower):
        follower.metadata.on_committed("", failed)
        leader.metadata.write({"a": b"1"})
        follower.copy(leader)
        with pytest.raises(StorageFailed):
            follower.commit()


async def test_a_follower_that_comes_late_hears_of_what_is_left():
    with replicas() as (leader, follower):
        heard = listened(follower)
        leader.metadata.write({"a": b"1", "b": b"1"})
        leader.metadata.write({"a": None})
        leader.metadata.write({"b": b"2"})
        share([leader, follower])

        assert heard == [("b", b"2")]


async def test_only_the_leader_writes():
    with replicas() as (leader, follower):
        with pytest.raises(NotLeader, match="__meta"):
            follower.metadata.write({"a": b"1"})
        leader.turn("closed")
        with pytest.raises(NotLeader):
            await leader.metadata.put("a", b"1")


async def test_who_won_the_lead_writes_once_all_before_is_committed():
    with replicas() as (leader, follower):
        leader.metadata.write({"a": b"old leader's"})
        follower.copy(leader)
        won: list[bool] = []
        follower.metadata.on_leading.append(won.append)

        follower.lead(2)
        assert not follower.metadata.is_leading
        follower.commit(follower.store.end - 1)
        assert (follower.records, won) == ({"a": b"old leader's"}, [])
        follower.commit()

        assert won == [True]
        follower.metadata.write({"a": b"new"})
        assert follower.records == {"a": b"new"}


async def test_what_a_deposed_leader_wrote_and_nobody_committed_is_taken_back():
    with replicas() as (leader, follower):
        heard = listened(leader)
        leader.metadata.write({"a": b"1", "b": b"1"})
        share([leader, follower])
        leader.metadata.write({"a": b"2", "c": b"2"})
        leader.metadata.write({"a": b"3", "b": None})
        lost: list[bool] = []
        leader.metadata.on_leading.append(lost.append)

        leader.turn("follower")

        assert lost == [False]
        assert leader.records == {"a": b"1", "b": b"1"}
        assert heard == [("a", b"1"), ("b", b"1")]


async def test_what_was_taken_back_stands_again_if_it_was_committed_after_all():
    with replicas() as (leader, follower):
        leader.metadata.write({"a": b"1"})
        follower.copy(leader)
        leader.turn("follower")
        assert leader.records == {}
        follower.lead(2)
        share([follower, leader])

        assert leader.records == follower.records == {"a": b"1"}


async def test_a_writer_hears_that_the_lead_was_lost_before_its_record_was_committed():
    with replicas() as (leader, follower):
        writing = asyncio.ensure_future(leader.metadata.put("a", b"1"))
        await asyncio.sleep(0)
        end = leader.store.end
        leader.turn("follower")
        follower.lead(2)
        follower.commit()
        follower.metadata.write({"b": b"another's"})
        follower.commit()
        leader.truncate(end - 1)
        leader.copy(follower)
        leader.commit()

        with pytest.raises(Fenced):
            await writing
        assert leader.records == {"b": b"another's"}


async def test_who_waits_only_after_the_lead_was_lost_and_won_again_is_told_of_no_others_record():
    with replicas() as (leader, follower):
        written = leader.metadata.write({"a": b"1"})
        end = leader.store.end
        leader.turn("follower")
        follower.lead(2)
        follower.commit()
        follower.metadata.write({"b": b"another's"})
        follower.commit()
        leader.truncate(end - 1)
        leader.copy(follower)
        leader.lead(3)
        leader.commit()

        assert leader.metadata.is_leading
        assert leader.store.acknowledged_end >= end
        with pytest.raises(Fenced):
            await leader.metadata.wait_flushed(written)
        assert leader.records == {"b": b"another's"}


async def test_who_waits_only_after_the_log_was_closed_hears_that_it_may_be_written():
    with replicas(1) as (leader,):
        written = leader.metadata.write({"a": b"1"})
        leader.turn("closed")

        with pytest.raises(Fenced):
            await leader.metadata.wait_flushed(written)


async def test_a_lead_that_is_won_twice_keeps_what_was_written_between():
    with replicas(1) as (leader,):
        leader.metadata.write({"a": b"1"})
        leader.lead(2)
        assert not leader.metadata.is_leading
        leader.commit()

        assert leader.metadata.is_leading
        assert leader.records == {"a": b"1"}


async def test_a_log_opened_anew_forgets_nothing_before_it_is_told_what_is_committed():
    with replicas() as (leader, follower):
        leader.metadata.write({"a": b"1", "b": b"1"})
        share([leader, follower])
        leader.metadata.write({"never": b"committed"})
        follower.copy(leader)
        heard = listened(follower)

        follower.truncate(follower.store.end - 1)
        assert follower.records == {"a": b"1", "b": b"1"}
        follower.commit()

        assert follower.records == {"a": b"1", "b": b"1"}
        assert heard == []


async def test_a_copy_whose_tombstones_were_compacted_away_ends_what_they_ended(monkeypatch):
    monkeypatch.setattr("waterclock.node.metadata.HISTORY_BYTES_MIN", 1)
    with replicas() as (leader, follower):
        leader.metadata.write({"a": b"1", "b": b"x" * 1_000})
        share([leader, follower])
        leader.metadata.write({"a": None, "b": b"2"})
        leader.commit()
        heard = listened(follower)
        await leader.metadata.compact()
        # The leader's files replace the follower's, as an installed segment does.
        follower.close()
        follower.store, follower.log, follower.flush_queue = (
            leader.store,
            leader.log,
            leader.flush_queue,
        )
        follower.turn("follower")

        assert follower.records == {"b": b"2"}
        assert heard == [("a", None), ("b", b"2")]


async def test_history_with_records_that_are_not_committed_is_not_compacted(monkeypatch):
    monkeypatch.setattr("waterclock.node.metadata.HISTORY_BYTES_MIN", 1)
    with replicas() as (leader, follower):
        for number in range(10):
            leader.metadata.write({"a": b"%d" % number + b"x" * 100})
        share([leader, follower])
        leader.metadata.write({"a": b"not committed"})
        before = leader.store.segments[0].header.generation

        await leader.metadata.compact()

        assert leader.store.segments[0].header.generation == before


async def test_records_of_kinds_that_nobody_knows_are_kept_and_told_to_nobody():
    with replicas() as (leader, follower):
        heard = listened(follower, "topic/")
        leader.metadata.write({"of a later release/1": b"\xff", "topic/a": b"{}"})
        share([leader, follower])

        assert heard == [("topic/a", b"{}")]
        assert follower.metadata.get("of a later release/1") == b"\xff"
