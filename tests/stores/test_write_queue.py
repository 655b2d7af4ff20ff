"""The queue of writes to a stream, and which calls go together: decided without a database."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.model.errors import StoreUnavailable
from waterclock.stores.base import Record, Stored
from waterclock.stores.dynamodb.items import ACTIONS_MAX, INLINE_BYTES_MAX, in_transactions
from waterclock.stores.write_queue import Entry, Known, WriteQueues, place_entries, write_in_chunks

S = b"s"


class Database:
    """Keeps ids in order; answers as many writes as it is allowed to."""

    def __init__(self, *, answers=1_000):
        self.ids: dict[bytes, Known] = {}
        self.writes: list[list[bytes]] = []
        self.answers = asyncio.Semaphore(answers)
        self.is_away = False

    async def write(self, stream, entries):
        assert stream == S
        self.writes.append([entry.key for entry in entries])
        placed = place_entries(entries, self.ids, len(self.ids))
        for row in placed.new_rows:
            position = placed.stored[row].position
            self.ids[entries[row].key] = Known(position, entries[row].token)
        await self.answers.acquire()
        if self.is_away:
            raise StoreUnavailable("away")
        return placed.stored


def open_up(database):
    for _ in range(100):
        database.answers.release()


def records(*ids):
    return [Record(id_, b"") for id_ in ids]


async def start(queues, tasks, *calls):
    """Begin calls in order, and let each come as far as it can."""
    begun = [tasks.create_task(queues.store(S, records(*ids), now_ms=0)) for ids in calls]
    for _ in range(5):
        await asyncio.sleep(0)
    return begun


async def test_those_who_wait_go_together_and_each_gets_its_own_answers():
    database = Database(answers=0)
    queues = WriteQueues(database.write, records_max=10, bytes_max=10)
    async with asyncio.TaskGroup() as tasks:
        begun = await start(queues, tasks, "a", "bc", "cd")
        assert database.writes == [[b"a"]]
        open_up(database)

    assert database.writes == [[b"a"], [b"b", b"c", b"c", b"d"]]
    assert [task.result() for task in begun] == [
        [Stored(1, True)],
        [Stored(2, True), Stored(3, True)],
        [Stored(3, False), Stored(4, True)],
    ]


async def test_no_more_go_together_than_the_limit_allows():
    database = Database(answers=0)
    queues = WriteQueues(database.write, records_max=3, bytes_max=10)
    async with asyncio.TaskGroup() as tasks:
        await start(queues, tasks, "a", "bc", "d", "efgh", "i")
        open_up(database)

    assert database.writes == [[b"a"], [b"b", b"c", b"d"], [b"e", b"f", b"g", b"h"], [b"i"]]


async def test_when_a_writing_call_is_cancelled_those_written_with_it_still_count_as_new():
    database = Database(answers=0)
    queues = WriteQueues(database.write, records_max=10, bytes_max=10)
    async with asyncio.TaskGroup() as tasks:
        first, writing, waiting = await start(queues, tasks, "a", "b", "c")
        # The first is done, the second writes the third too and is stopped half-way.
        database.answers.release()
        await first
        await asyncio.sleep(0)
        assert database.writes == [[b"a"], [b"b", b"c"]]
        writing.cancel()
        await asyncio.wait([writing])
        open_up(database)

    assert writing.cancelled()
    assert waiting.result() == [Stored(3, True)]
    assert queues._queues == {}


async def test_every_call_written_together_fails_and_the_next_call_works():
    database = Database(answers=0)
    queues = WriteQueues(database.write, records_max=10, bytes_max=10)
    database.is_away = True
    calls = [queues.store(S, records(id_), now_ms=0) for id_ in "abc"]
    answers = asyncio.gather(*calls, return_exceptions=True)
    await asyncio.sleep(0)
    open_up(database)
    problems = await answers

    assert [str(problem) for problem in problems] == ["away"] * 3
    assert len({id(problem) for problem in problems}) == 3
    database.is_away = False
    assert await queues.store(S, records("d"), now_ms=0) == [Stored(4, True)]


def entries_of(keys, token=b"t"):
    return [Entry(key, Record("x", b""), token, 0) for key in keys]


def test_what_the_same_call_stored_before_counts_as_new_once():
    known = {b"a": Known(7, b"t"), b"b": Known(8, b"other")}

    placed = place_entries(entries_of([b"a", b"b", b"c", b"a"]), known, 9)

    assert placed.stored == [
        Stored(7, True),
        Stored(8, False),
        Stored(10, True),
        Stored(7, False),
    ]
    assert placed.new_rows == [2]
    assert placed.last == 10


@given(st.lists(st.binary(min_size=1, max_size=1)), st.integers(1, 5))
async def test_written_in_chunks_or_at_once_the_answers_are_the_same(keys, size):
    chunked, whole = Database(), Database()
    entries = entries_of(keys)

    def chunks(unique):
        return [unique[start : start + size] for start in range(0, len(unique), size)]

    answers = await write_in_chunks(entries, chunks, lambda chunk: chunked.write(S, chunk))
    assert answers == await whole.write(S, entries)


@given(st.lists(st.sampled_from([0, 1_000, INLINE_BYTES_MAX, INLINE_BYTES_MAX + 1]), max_size=150))
def test_transactions_are_within_the_limits_of_dynamodb_and_leave_nothing_out(sizes):
    bodies = {size: bytes(size) for size in set(sizes)}
    entries = [
        Entry(str(number).encode(), Record("x", bodies[size]), b"t", 0)
        for number, size in enumerate(sizes)
    ]

    chunks = [list(chunk) for chunk in in_transactions(entries)]

    assert [entry for chunk in chunks for entry in chunk] == entries
    for chunk in chunks:
        lengths = [len(entry.record.body) for entry in chunk]
        inline = [length for length in lengths if length <= INLINE_BYTES_MAX]
        assert 1 + 2 * len(inline) + 3 * (len(lengths) - len(inline)) <= ACTIONS_MAX
        assert sum(inline) < 4_000_000


@pytest.mark.parametrize("count", [49, 50])
def test_fifty_messages_and_the_head_are_one_too_many_for_a_transaction(count):
    entries = entries_of([str(number).encode() for number in range(count)])

    assert len(list(in_transactions(entries))) == (1 if count == 49 else 2)
