"""Calls on a thread of their own: in order, and served also while a callback waits for the loop."""

import asyncio
import threading

import pytest

from waterclock.burrow.kafka.client_thread import ClientThread


async def test_calls_are_made_in_their_order_on_one_thread():
    made: list[int] = []
    threads: set[int] = set()

    def call(number: int) -> int:
        made.append(number)
        threads.add(threading.get_ident())
        return number * 2

    thread = ClientThread("test")
    answers = [thread.call(call, number) for number in range(100)]
    assert await asyncio.gather(*answers) == [number * 2 for number in range(100)]
    thread.end()
    assert made == list(range(100))
    assert len(threads) == 1


async def test_an_error_comes_to_whoever_waits_and_the_next_call_is_made():
    thread = ClientThread("test")
    with pytest.raises(ZeroDivisionError):
        await thread.call(lambda: 1 / 0)
    assert await thread.call(lambda: "alive") == "alive"
    thread.end()


async def test_a_callback_that_waits_for_the_loop_serves_what_the_loop_asks_for():
    made: list[str] = []

    thread = ClientThread("test")

    async def revoke() -> str:
        await thread.call(made.append, "commit in the callback")
        return "revoked"

    def poll() -> str:
        made.append("poll")
        answer = thread.wait_for(revoke())
        made.append("poll ends")
        return answer

    polling = thread.call(poll)
    waiting = thread.call(made.append, "commit that was queued")
    assert await polling == "revoked"
    await waiting
    await thread.call(made.append, "next")
    thread.end()
    assert made == [
        "poll", "commit that was queued", "commit in the callback", "poll ends", "next",
    ]  # fmt: skip


async def test_a_call_nobody_waits_for_any_more_is_still_made():
    made: list[str] = []

    thread = ClientThread("test")
    gate = threading.Event()
    thread.call(gate.wait)
    thread.call(made.append, "done").cancel()
    gate.set()
    await thread.call(made.append, "after")
    thread.end()
    assert made == ["done", "after"]
