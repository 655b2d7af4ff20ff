"""What every coordinator does, the fake, a real etcd and that of processes alike: one suite."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest

from benchmarks.peers.cache import Absent
from tests.cluster.coordinator.etcd_servers import EtcdMember, programs, running
from tests.cluster.coordinator.worlds import EtcdWorld, FakeWorld, ProcessWorld, World
from tests.stores.servers.registry import reason_to_skip
from waterclock.cluster.coordinator.coordinator import Coordinator
from waterclock.cluster.coordinator.errors import (
    Compacted,
    CoordinatorUnavailable,
    LeaseNotFound,
    RevisionWentBack,
)
from waterclock.cluster.coordinator.requests import (
    ABSENT,
    OPERATIONS_MAX,
    REQUEST_BYTES_MAX,
    Delete,
    Event,
    Get,
    LeaseId,
    Put,
    Revision,
    Txn,
    Unchanged,
    WatchBatch,
    all_below,
    one_key,
)

_numbers = count(1)


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMember]:
    try:
        programs()
    except Absent as absent:
        pytest.skip(reason_to_skip("debian", absent))
    with running(tmp_path_factory.mktemp("etcd")) as members:
        yield members[0]


@pytest.fixture(params=["fake", "etcd", "processes"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "fake":
        yield FakeWorld(seed=17)
        return
    folder = request.getfixturevalue("tmp_path")
    if request.param == "etcd":
        yield EtcdWorld(request.getfixturevalue("member"), folder)
        return
    world = ProcessWorld(folder)
    yield world
    world.go_away()


@pytest.fixture
def below() -> bytes:
    """Give each test keys of its own: they share an etcd."""
    return b"test-%d/" % next(_numbers)


def put(key: bytes, value: bytes = b"", lease: int = 0) -> Txn:
    return Txn(success=(Put(key, value, LeaseId(lease)),))


async def values(client: Coordinator, below: bytes) -> dict[bytes, bytes]:
    found = await client.read(all_below(below))
    return {each.key.removeprefix(below): each.value for each in found.items}


async def events_until(batches: AsyncIterator[WatchBatch], last: bytes) -> list[Event]:
    """Return all changes up to the one of a key."""
    events: list[Event] = []
    async for batch in batches:
        assert batch.events
        events += batch.events
        if any(each.key == last for each in batch.events):
            return events
    raise AssertionError("a watch does not end")


async def test_a_key_is_read_as_it_was_put(world, below):
    async with world.client() as client:
        before = (await client.read(all_below(below))).revision
        first = await client.write(put(below + b"b", b"1"))
        second = await client.write(put(below + b"b", b"2"))
        await client.write(put(below + b"a"))

        found = await client.read(all_below(below))

        assert (first.revision, second.revision) == (before + 1, before + 2)
        assert found.revision == before + 3
        assert [each.key for each in found.items] == [below + b"a", below + b"b"]
        assert found.items[1] == (below + b"b", b"2", before + 1, before + 2, 2, 0)


async def test_of_many_who_create_a_key_one_does(world, below):
    async with world.client() as one, world.client() as other:
        mine = [
            client.write(
                Txn(
                    (Unchanged(below, ABSENT),),
                    (Put(below, b"%d" % number),),
                    (Get(one_key(below)),),
                )
            )
            for number, client in enumerate([one, other] * 5)
        ]
        answers = await asyncio.gather(*mine)

        winners = [number for number, each in enumerate(answers) if each.succeeded]
        assert len(winners) == 1
        stored = b"%d" % winners[0]
        assert [each.reads[0][0].value for each in answers if not each.succeeded] == [stored] * 9
        assert (await one.read(one_key(below))).items[0].value == stored


async def test_no_increment_is_lost_between_clients_that_swap(world, below):
    async def increment(client: Coordinator) -> None:
        while True:
            items = (await client.read(one_key(below))).items
            now, revision = (items[0].value, items[0].mod_revision) if items else (b"0", ABSENT)
            swap = Txn((Unchanged(below, revision),), (Put(below, b"%d" % (int(now) + 1)),))
            if (await client.write(swap)).succeeded:
                return

    async with world.client() as one, world.client() as other:
        await asyncio.gather(*(increment(client) for client in [one, other] * 6))

        assert (await one.read(one_key(below))).items[0].value == b"12"


async def test_a_transaction_whose_condition_fails_changes_nothing(world, below):
    async with world.client() as client:
        before = await client.write(put(below + b"k", b"1"))
        conditions = (
            Unchanged(below + b"k", before.revision),
            Unchanged(below + b"other", Revision(3)),
        )
        answer = await client.write(Txn(conditions, (Put(below + b"k", b"2"),)))

        assert answer == (before.revision, False, ())
        assert await values(client, below) == {b"k": b"1"}


async def test_128_operations_happen_at_one_moment(world, below):
    keys = [below + b"%03d" % number for number in range(OPERATIONS_MAX)]
    conditions = tuple(Unchanged(key, ABSENT) for key in keys)
    async with world.client() as client:
        before = (await client.read(all_below(below))).revision
        async with client.watch(all_below(below), from_revision=Revision(before + 1)) as batches:
            answer = await client.write(Txn(conditions, tuple(Put(key, b"1") for key in keys)))
            batch = await anext(batches)

        assert answer == (before + 1, True, ())
        assert [each.key for each in batch.events] == keys
        assert {each.revision for each in batch.events} == {before + 1}
        again = await client.write(Txn(conditions, (Delete(all_below(below)),)))
        assert not again.succeeded
        assert len((await client.read(all_below(below))).items) == OPERATIONS_MAX


async def test_operations_of_a_transaction_see_those_before_them(world, below):
    a, b = below + b"a", below + b"b"
    async with world.client() as client:
        await client.write(put(a, b"1"))
        steps = (Get(all_below(below)), Put(b, b"2"), Delete(one_key(a)), Get(all_below(below)))
        answer = await client.write(Txn((), steps))

        assert [[each.key for each in read] for read in answer.reads] == [[a], [b]]
        assert answer.reads[1][0].mod_revision == answer.revision


async def test_a_transaction_of_a_mebibyte_is_taken(world, below):
    async with world.client() as client:
        await client.write(put(below, bytes(REQUEST_BYTES_MAX - len(below))))

        assert len((await client.read(one_key(below))).items[0].value) > 1_000_000


async def test_deleting_what_is_not_there_changes_no_revision(world, below):
    async with world.client() as client:
        before = (await client.read(one_key(below))).revision

        assert await client.write(Txn((), (Delete(all_below(below)),))) == (before, True, ())


async def test_a_lease_that_nobody_keeps_alive_takes_its_keys_with_it(world, below):
    a, b, stays = below + b"a", below + b"b", below + b"c"
    async with world.client() as client:
        lease, ttl_s = await client.grant(1)
        keys = (Put(b, b"", lease), Put(a, b"", lease), Put(stays, b""))
        put_at = (await client.write(Txn((), keys))).revision
        async with client.watch(all_below(below), from_revision=Revision(put_at + 1)) as batches:
            batch = await anext(batches)

        assert ttl_s >= 1
        assert batch.events == (Event(put_at + 1, a, None), Event(put_at + 1, b, None))
        assert await values(client, below) == {b"c": b""}
        with pytest.raises(LeaseNotFound, match=f"{lease:016x}"):
            await client.keep_alive(lease)
        with pytest.raises(LeaseNotFound):
            await client.revoke(lease)


async def test_who_holds_a_lease_learns_that_it_was_ended(world, below):
    async with world.client() as holder, world.client() as other:
        lease, ttl_s = await holder.grant(60)
        await holder.write(put(below, b"", lease))
        assert await holder.keep_alive(lease) == (lease, ttl_s)

        await other.revoke(lease)

        with pytest.raises(LeaseNotFound):
            await holder.keep_alive(lease)
        both = Txn((), (Put(below + b"x", b""), Put(below, b"", lease)))
        with pytest.raises(LeaseNotFound, match=f"{lease:016x}"):
            await holder.write(both)
        assert await values(holder, below) == {}


async def test_a_key_put_without_its_lease_outlives_it(world, below):
    async with world.client() as client:
        lease, _ = await client.grant(60)
        await client.write(put(below, b"1", lease))
        await client.write(put(below, b"2"))
        await client.revoke(lease)

        assert await values(client, below) == {b"": b"2"}


async def test_a_watch_from_the_past_tells_every_change_once_and_in_order(world, below):
    end = below + b"end"
    async with world.client() as writer, world.client() as watcher:
        start = (await writer.read(all_below(below))).revision + 1
        for number in range(5):
            await writer.write(put(below + b"k", b"%d" % number))
        async with watcher.watch(all_below(below), from_revision=Revision(start)) as batches:
            await writer.write(Txn((), (Delete(one_key(below + b"k")),)))
            await writer.write(put(b"elsewhere"))
            await writer.write(put(end))
            events = await events_until(batches, end)

        assert [each.revision - start for each in events] == [0, 1, 2, 3, 4, 5, 7]
        contents = [each.item and each.item.value for each in events]
        assert contents == [b"0", b"1", b"2", b"3", b"4", None, b""]


async def test_a_watch_behind_the_compaction_is_told_and_goes_on_after_a_read(world, below):
    end = below + b"end"
    async with world.client() as client:
        start = (await client.write(put(below, b"1"))).revision
        await client.write(put(below, b"2"))
        last = (await client.write(Txn((), (Delete(one_key(below)),)))).revision
        world.compact(last)

        for wanted in (start, last):  # from the very revision a delete could be missed
            async with client.watch(all_below(below), from_revision=wanted) as batches:
                with pytest.raises(Compacted) as error:
                    await anext(batches)
            assert (error.value.wanted, error.value.compacted) == (wanted, last)

        found = await client.read(all_below(below))
        after = Revision(found.revision + 1)
        async with client.watch(all_below(below), from_revision=after) as batches:
            await client.write(put(end))
            assert [each.key for each in await events_until(batches, end)] == [end]


async def test_a_coordinator_that_is_away_answers_nothing_and_forgets_nothing(world, below):
    async with world.client() as client, world.client(is_impatient=True) as impatient:
        await client.write(put(below, b"1"))
        world.go_away()
        for question in (
            impatient.read(one_key(below)),
            impatient.write(put(below, b"2")),
            impatient.grant(60),
            impatient.keep_alive(LeaseId(7)),
            impatient.revoke(LeaseId(7)),
        ):
            with pytest.raises(CoordinatorUnavailable):
                await question

        world.come_back()

        assert await values(client, below) == {b"": b"1"}


async def test_a_lease_outlives_a_restart_of_the_coordinator(world, below):
    async with world.client() as client:
        lease, ttl_s = await client.grant(60)
        await client.write(put(below, b"", lease))
        world.go_away()
        world.come_back()

        assert await client.keep_alive(lease) == (lease, ttl_s)
        await client.revoke(lease)
        assert await values(client, below) == {}


async def test_a_watch_goes_on_after_a_restart_and_misses_nothing(world, below):
    end = below + b"end"
    async with world.client() as writer, world.client() as watcher:
        start = (await writer.read(all_below(below))).revision + 1
        async with watcher.watch(all_below(below), from_revision=Revision(start)) as batches:
            await writer.write(put(below + b"k", b"0"))
            events = [*(await anext(batches)).events]
            await writer.write(put(below + b"k", b"1"))
            world.go_away()
            world.come_back()
            await writer.read(all_below(below))
            await writer.write(put(below + b"k", b"2"))
            await writer.write(put(end))
            events += await events_until(batches, end)

        assert [each.revision - start for each in events] == [0, 1, 2, 3]


async def test_what_was_asked_of_a_stalled_coordinator_may_happen_later(world, below):
    async with world.client() as client, world.client(is_impatient=True) as impatient:
        before = (await client.write(put(below, b"1"))).revision
        await impatient.read(one_key(below))
        world.stall()
        swap = Txn((Unchanged(below, before),), (Put(below, b"2"),))
        with pytest.raises(CoordinatorUnavailable):
            await impatient.write(swap)
        world.resume()

        # It happened or it did not; who asks again under the same condition decides it.
        again = await client.write(swap)
        assert again.succeeded or again.revision == before + 1
        assert await values(client, below) == {b"": b"2"}


async def test_a_coordinator_restored_from_an_old_copy_is_refused(world, below):
    async with world.client() as client, world.client() as watcher, world.client() as other:
        world.keep_copy()
        copied = (await client.read(one_key(below))).revision
        await client.write(put(below, b"1"))
        after = Revision(copied + 1)
        async with other.watch(all_below(below), from_revision=after) as batches:
            await anext(batches)
            await client.write(put(below, b"2"))
            await anext(batches)
        async with watcher.watch(all_below(below), from_revision=after) as batches:
            await events_until(batches, below)
            world.restore_copy()

            with pytest.raises(RevisionWentBack) as error:
                await events_until(batches, b"no key")
            assert (error.value.seen, error.value.found) == (copied + 2, copied)
        with pytest.raises(RevisionWentBack):
            await client.read(one_key(below))
        async with world.client() as fresh:
            # Whoever is new cannot know.
            assert await values(fresh, below) == {}
            await fresh.write(put(below, b"3"))
        with pytest.raises(RevisionWentBack):
            await other.read(one_key(below))  # it saw the last revision by its watch alone
        for question in (client.read(one_key(below)), client.grant(60), client.write(put(below))):
            with pytest.raises(RevisionWentBack):
                await question
