"""What handlers return and raise, at its worst: it fails for its own message, and for no other."""

import asyncio
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.dispatch.test_handler_pool import Pool, items, run
from waterclock.dispatch.sinks.redis import CALL_BYTES_MAX, RedisSink, _pieces
from waterclock.dispatch.sinks.sink import Writing
from waterclock.dispatch.worker.handlers import PermanentError, reason_of

SINK = RedisSink(None, output="x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value", ["\ud800", {"text": "\ud800"}, {"\ud800": "text"}, {"large": 10**5_000}]
)
def test_what_no_server_can_be_sent_is_refused_before_it_is_in_a_batch(value):
    with pytest.raises(PermanentError):
        SINK.prepare(value)


def test_a_mapping_that_grows_while_it_is_read_is_counted_as_it_was_read():
    class Growing(Mapping[str, int]):
        """Says two fields and has three, as one that another thread adds to may."""

        def __len__(self) -> int:
            return 2

        def __iter__(self) -> Iterator[str]:
            return iter("abc")

        def __getitem__(self, key: str) -> int:
            return 1

    args = SINK.prepare(Growing())

    assert args[0] == len(args) - 1 == 6


def test_a_batch_is_parted_by_bytes_as_well_and_none_is_left_out():
    value = SINK.prepare(b"x" * (CALL_BYTES_MAX // 3))
    count = 10
    batch = Writing(1, [n.to_bytes(16, "big") for n in range(count)], [0] * count, [value] * count)

    groups = SINK._grouped(batch)

    assert [len(rows) for _, rows in groups] == [2, 2, 2, 2, 2]
    assert sorted(row for _, rows in groups for row in rows) == list(range(count))


def test_one_that_is_too_large_goes_alone():
    sizes = [1, CALL_BYTES_MAX + 1, 1]

    assert list(_pieces([0, 1, 2], sizes)) == [[0], [1], [2]]


async def ends_its_task(number: int) -> int:
    if number == 1:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
    if number == 2:
        sys.exit(3)
    return number


def ends_its_thread(number: int) -> int:
    if number == 2:
        sys.exit(3)
    return number


@pytest.mark.parametrize("function", [ends_its_task, ends_its_thread])
def test_a_function_that_cancels_or_exits_fails_alone_and_the_pool_goes_on(function):
    async def story(pool: Pool) -> list[Any]:
        pool.workers.give(items(6))
        return await pool.collected(6)

    found = {int(item[2]): value for item, value in run(function, story, count=1)}

    assert isinstance(found[2], SystemExit)
    assert isinstance(found[1], asyncio.CancelledError) or function is ends_its_thread
    assert [found[n] for n in (0, 3, 4, 5)] == ["0", "3", "4", "5"]


def test_an_error_that_cannot_say_what_it_is_has_its_name_as_the_reason():
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    assert reason_of(Mute()) == ("Mute", False)
