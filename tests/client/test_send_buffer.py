"""SendBuffer is given first come, first served, and never lost by those who stop waiting."""

import asyncio

from waterclock.client.producer.send_buffer import SendBuffer


async def test_who_finds_no_room_waits_for_it():
    buffer = SendBuffer(10)
    assert buffer.take_nowait(10)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(buffer.take(5))
        await asyncio.sleep(0)
        assert not waiting.done()
        buffer.give(10)


async def test_nobody_passes_those_who_wait():
    buffer = SendBuffer(10)
    buffer.take_nowait(10)
    order: list[str] = []

    async def take(name: str, size: int) -> None:
        await buffer.take(size)
        order.append(name)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(take("large", 9))
        tasks.create_task(take("small", 1))
        await asyncio.sleep(0)
        buffer.give(2)
        # There is room for one, but the large one came first.
        assert not buffer.take_nowait(1)
        buffer.give(8)
        # Both are let in, and have not run yet.
        assert not buffer.take_nowait(0)

    assert order == ["large", "small"]


async def test_what_is_larger_than_the_room_is_let_in_alone():
    buffer = SendBuffer(10)
    await buffer.take(100)
    assert not buffer.take_nowait(1)
    buffer.give(100)
    assert buffer.take_nowait(1)
    assert not buffer.take_nowait(100)


async def test_room_is_not_lost_by_a_waiter_who_is_cancelled():
    buffer = SendBuffer(10)
    buffer.take_nowait(10)
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(buffer.take(10))
        second = tasks.create_task(buffer.take(10))
        admitted = tasks.create_task(buffer.take(1))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        buffer.give(10)
        second.cancel()  # let in already, but not yet run
        await asyncio.wait([second])
        await admitted
    buffer.give(1)
    assert buffer.take_nowait(10)
