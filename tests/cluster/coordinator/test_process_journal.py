"""What processes agreed on stays agreed on over any crash, and what is damaged is refused."""

import asyncio
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.kit.disk import SimulatedFolder
from tests.kit.examples import examples
from tests.storage.stores import disk_of, files_of, flipped
from waterclock.cluster.coordinator.journal_frames import MAGIC, BadJournal, encode_frame, replay
from waterclock.cluster.coordinator.questions import Grant, KeepAlive, Read, Revoke, Watch
from waterclock.cluster.coordinator.requests import (
    Delete,
    Get,
    KeyRange,
    LeaseId,
    Put,
    Revision,
    Txn,
    Unchanged,
    all_below,
    one_key,
)
from waterclock.cluster.coordinator.store import Store
from waterclock.cluster.coordinator.wire import (
    Frames,
    WatchEnded,
    asked_of,
    decode_answer,
    decode_asked,
    encode,
    question_of,
)
from waterclock.model.errors import BadInput, StorageFull
from waterclock.server.cluster.processes import journal as journals
from waterclock.server.cluster.processes.coordinator import ProcessCoordinator
from waterclock.server.cluster.processes.journal import NAME, Journal
from waterclock.server.cluster.processes.service import CoordinatorService, coordinating

BYTES = MAGIC + bytes.fromhex(
    "f3434a46 05000000 302b3a1b 9401009090"
    "f3434a46 18000000 104105dc 949192010a919302c4016b96c4016bc40176020201019001"
)
"""As version 1 draws it, with a lease and a key under it: never change this."""
EVERYTHING = KeyRange(b"\0", b"\xff")


def one_turn(store: Store, rng: Random) -> None:
    """Do some of what processes ask for."""
    leases = sorted(store.moment.leases)
    for _ in range(rng.randint(1, 4)):
        key = rng.choice([b"a", b"b", b"c"])
        match rng.randrange(5):
            case 0:
                leases.append(store.grant(rng.randint(2, 9), now_ms=0).lease)
            case 1 if leases:
                store.revoke(leases.pop(rng.randrange(len(leases))))
            case 2:
                store.write(Txn((), (Delete(one_key(key)),)))
            case _:
                lease = rng.choice([LeaseId(0), *leases])
                store.write(Txn((), (Put(key, rng.randbytes(3), lease),)))


def held(store: Store) -> tuple[Any, ...]:
    store.check_invariants()
    return store.checkpoint()


def saved(journal: Journal, rng: Random) -> None:
    moment = journal.store.moment
    one_turn(journal.store, rng)
    journal.save(journal.store.changes_since(moment))
    if journal.is_long:
        journal.rewrite(journal.store.checkpoint())


@settings(max_examples=examples(60))
@given(seed=st.integers(0, 1 << 32), turns=st.integers(0, 12), is_small=st.booleans())
def test_after_a_crash_all_is_there_that_was_saved(seed, turns, is_small):
    rng, folder = Random(seed), SimulatedFolder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journals, "LONG_BYTES", 100 if is_small else 1 << 20)
        journal = Journal(folder, now_ms=0)
        for _ in range(turns):
            saved(journal, rng)
    before = held(journal.store)

    found: dict[str, Any] = {}

    def crash(_: str) -> None:
        found["under way"] = Journal(folder.crash(rng.randrange), now_ms=0).store

    folder.on_sync = crash
    moment = journal.store.moment
    one_turn(journal.store, rng)
    journal.save(journal.store.changes_since(moment))
    after = held(journal.store)

    assert held(found["under way"]) in (before, after)  # and nobody had heard of it
    folder.on_sync = None
    again = Journal(folder.crash(rng.randrange), now_ms=0)
    assert held(again.store) == after
    saved(again, rng)  # it goes on where it was
    assert held(Journal(again._folder.crash(), now_ms=0).store) == held(again.store)  # type: ignore[attr-defined]


def test_its_bytes_are_those_of_version_1():
    folder = SimulatedFolder()
    journal = Journal(folder, now_ms=0)
    moment = journal.store.moment
    lease = journal.store.grant(10, now_ms=0).lease
    journal.store.write(Txn((), (Put(b"k", b"v", lease),)))
    journal.save(journal.store.changes_since(moment))
    journal.close()

    assert files_of(folder)[NAME] == BYTES
    found = Journal(disk_of({NAME: BYTES}), now_ms=0).store
    assert found.read(EVERYTHING).items == ((b"k", b"v", 2, 2, 1, lease),)


def test_a_torn_tail_is_cut_and_written_over():
    for size in range(len(BYTES) - 20, len(BYTES)):
        folder = disk_of({NAME: BYTES[:size]})
        journal = Journal(folder, now_ms=0)
        assert journal.store.revision == 1
        saved(journal, Random(1))
        assert held(Journal(folder.crash(), now_ms=0).store) == held(journal.store)


def test_a_frame_that_rotted_before_another_is_refused_and_nothing_is_cut():
    second = BYTES + encode_frame(Store().changes_since(Store().moment))
    for at in range(len(MAGIC), len(BYTES)):
        folder = disk_of({NAME: flipped(second, at)})
        with pytest.raises(BadJournal, match="is damaged"):
            Journal(folder, now_ms=0)
        assert files_of(folder)[NAME] == flipped(second, at)


def test_a_full_disk_is_told_and_the_same_can_be_saved_later():
    folder = SimulatedFolder()
    journal = Journal(folder, now_ms=0)
    moment = journal.store.moment
    one_turn(journal.store, Random(3))
    changes = journal.store.changes_since(moment)
    folder.capacity_bytes = len(BYTES) // 2
    with pytest.raises(StorageFull):
        journal.save(changes)

    folder.capacity_bytes = None
    journal.save(changes)

    assert held(Journal(folder.crash(), now_ms=0).store) == held(journal.store)


async def test_a_disk_too_full_for_a_new_journal_leaves_one_that_can_be_read(monkeypatch):
    monkeypatch.setattr(journals, "LONG_BYTES", 0)
    monkeypatch.setattr(journals, "GROWTH", 0)
    folder = SimulatedFolder()
    journal = Journal(folder, now_ms=0)
    async with coordinating(journal) as service:
        client = ProcessCoordinator(service.connect)
        await client.write(Txn((), (Put(b"a", bytes(1_000)),)))
        folder.capacity_bytes = len(files_of(folder)[NAME]) + 200  # a frame, and no second journal

        await client.write(Txn((), (Put(b"b", bytes(50)),)))

        assert held(Journal(folder.crash(), now_ms=0).store) == held(journal.store)
        await client.close()


async def test_a_coordinator_that_was_away_itself_ends_no_lease_for_that(monkeypatch):
    service = CoordinatorService(Journal(SimulatedFolder(), now_ms=0))
    lease = service.store.grant(2, now_ms=0).lease
    for now_ms, is_held in ((60_000, True), (61_999, True), (62_000, False)):
        monkeypatch.setattr(service, "now_ms", partial(int, now_ms))
        await service._turn()
        assert (lease in service.store.moment.leases) == is_held


async def test_a_watch_that_ends_before_it_was_begun_is_told_of_nothing():
    service = CoordinatorService(Journal(SimulatedFolder(), now_ms=0))
    reader, writer = await asyncio.open_unix_connection(sock=await service.connect())
    writer.write(encode(asked_of(1, Watch(EVERYTHING, Revision(1)))) + encode(WatchEnded(1)))
    writer.write(encode(asked_of(2, Txn((), (Put(b"k", b"v", LeaseId(0)),)))))
    working = asyncio.create_task(service.run())
    frames = Frames(1 << 20)
    try:
        answers: list[bytes] = []
        while not answers:
            answers += frames.fed(await reader.read(1 << 16))
    finally:
        working.cancel()
        writer.close()
    assert [decode_answer(each).number for each in answers] == [2]


JUNK = st.binary(max_size=64)


@settings(max_examples=examples(300))
@given(head=st.sampled_from([b"", MAGIC, BYTES]), junk=JUNK, at=st.integers(0, len(BYTES)))
def test_any_bytes_are_a_journal_or_one_error(head, junk, at):
    data = head[:at] + junk + head[at:]
    try:
        found = replay(data, now_ms=0)
    except BadJournal:
        return
    found.store.check_invariants()
    assert found.end <= len(data)


@settings(max_examples=examples(300))
@given(data=JUNK)
@example(data=b"\x91\xa1\x80")
def test_any_bytes_are_a_message_or_one_error(data):
    frames = Frames(1 << 10)
    for decode in (decode_asked, decode_answer, lambda each: question_of(decode_asked(each))):
        try:
            decode(data)
            frames.fed(data)
        except BadInput:
            continue


@pytest.mark.parametrize(
    "question",
    [
        Read(all_below(b"n/")),
        Txn(
            (Unchanged(b"a", Revision(3)),),
            (Put(b"a", b"1", LeaseId(7)), Get(all_below(b"n"))),
            (Delete(one_key(b"b")),),
        ),
        Grant(3),
        KeepAlive(LeaseId(1 << 40)),
        Revoke(LeaseId(2)),
        Watch(all_below(b"n/"), Revision(9)),
    ],
)
def test_a_question_is_read_as_it_was_asked_however_it_comes(question):
    sent = encode(asked_of(5, question)) * 2
    frames, found = Frames(1 << 20), []
    for at in range(len(sent)):
        found += frames.fed(sent[at : at + 1])

    assert [question_of(decode_asked(each)) for each in found] == [question, question]
    with pytest.raises(BadInput, match="at most 10"):
        Frames(10).fed(b"\xff\0\0\0")
