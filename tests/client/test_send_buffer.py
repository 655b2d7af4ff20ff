"""SendBuffer is given first come, first served, and never lost by those who stop waiting."""

import asyncio

from waterclock.client.producer.send_buffer import SendBuffer


async def test_who_finds_no_room_waits_for_it():
    room = SendBuffer(10)
    assert room.take_nowait(10)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(room.take(5))
        await asyncio.sleep(0)
        assert not waiting.done()
        room.give(10)


async def test_nobody_passes_those_who_wait():
    room = SendBuffer(10)
    room.take_nowait(10)
    order: list[str] = []

    async def take(name: str, size: int) -> None:
        await room.take(size)
        order.append(name)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(take("large", 9))
        tasks.create_task(take("small", 1))
        await asyncio.sleep(0)
        room.give(2)
        # There is room for one, but the large one came first.
        assert not room.take_nowait(1)
        room.give(8)
        # Both are let in, and have not run yet.
        assert not room.take_nowait(0)

    assert order == ["large", "small"]


async def test_what_is_larger_than_the_room_is_let_in_alone():
    room = SendBuffer(10)
    await room.take(100)
    assert not room.take_nowait(1)
    room.give(100)
    assert room.take_nowait(1)
    assert not room.take_nowait(100)


async def test_room_is_not_lost_by_a_waiter_who_is_cancelled():
    room = SendBuffer(10)
    room.take_nowait(10)
    async with asyncio.TaskGroup() as tasks:
        impatient = tasks.create_task(room.take(10))
        patient = tasks.create_task(room.take(10))
        admitted = tasks.create_task(room.take(1))
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.sleep(0)
        room.give(10)
        patient.cancel()  # let in already, but not yet run
        await asyncio.wait([patient])
        await admitted
    room.give(1)
    assert room.take_nowait(10)
