"""The scripts on a real Redis: what they promise in one step, and whom they refuse."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from waterclock.dispatch.redis.client import RedisClient
from waterclock.dispatch.redis.scripts import (
    BATCHES_DEAD_LETTER,
    BATCHES_REMOVE,
    BATCHES_STORE,
    LEASE_ACQUIRE,
    LEASE_RELEASE,
    LEASE_RENEW,
    PUBLISH_MARKER,
    RAISE_FENCE,
    STREAM_ACK,
    STREAM_CLAIM,
    STREAM_DEAD_LETTER,
    STREAM_READ,
    WRITE,
    Script,
    Stale,
)

FAR_MS = 1 << 42


@pytest.fixture
def run(server):
    """Run a function with a client of our own."""

    def in_a_loop(work: Callable[[RedisClient], Awaitable[Any]]) -> Any:
        async def all_of_it() -> Any:
            redis = RedisClient([server.address])
            try:
                return await work(redis)
            finally:
                redis.close()

        return asyncio.run(all_of_it())

    return in_a_loop


def uuid(number: int) -> bytes:
    return number.to_bytes(16, "big")


# The lease


def test_one_of_two_gets_the_lease_and_the_other_hears_who_has_it_and_how_long(run, name):
    keys = [f"{{{name}}}:lock", f"{{{name}}}:epoch"]

    first = run(lambda r: LEASE_ACQUIRE.answer(r, keys, "here", 7710, "token-a", 5_000))
    second = run(lambda r: LEASE_ACQUIRE.answer(r, keys, "there", 7711, "token-b", 5_000))

    assert first[0] == 1
    assert second[0] == 0
    said = json.loads(second[1])
    assert said == {"host": "here", "port": 7710, "token": "token-a", "epoch": first[1]}
    assert 0 < second[2] <= 5_000


def test_an_epoch_is_above_all_before_also_if_the_server_forgot_them(run, name, look):
    keys = [f"{{{name}}}:lock", f"{{{name}}}:epoch"]
    first = run(lambda r: LEASE_ACQUIRE.answer(r, keys, "h", 1, "a", 5_000))[1]
    look.delete(*keys)  # as a replica that was promoted before it heard of any of this

    second = run(lambda r: LEASE_ACQUIRE.answer(r, keys, "h", 1, "b", 5_000))[1]
    look.delete(keys[0])
    look.set(keys[1], FAR_MS * 2)  # a server whose clock was far ahead
    third = run(lambda r: LEASE_ACQUIRE.answer(r, keys, "h", 1, "c", 5_000))[1]

    assert second >= first
    assert third == FAR_MS * 2 + 1


def test_only_the_holder_renews_and_releases(run, name, look):
    keys = [f"{{{name}}}:lock", f"{{{name}}}:epoch"]
    run(lambda r: LEASE_ACQUIRE.answer(r, keys, "h", 1, "mine", 5_000))

    assert run(lambda r: LEASE_RENEW.answer(r, keys[:1], "other", 60_000)) == 0
    assert look.pttl(keys[0]) <= 5_000
    assert run(lambda r: LEASE_RENEW.answer(r, keys[:1], "mine", 60_000)) == 1
    assert look.pttl(keys[0]) > 5_000
    assert run(lambda r: LEASE_RELEASE.answer(r, keys[:1], "other")) == 0
    assert run(lambda r: LEASE_RELEASE.answer(r, keys[:1], "mine")) == 1
    assert look.get(keys[0]) is None
    assert run(lambda r: LEASE_RENEW.answer(r, keys[:1], "mine", 60_000)) == 0


def test_who_lost_the_answer_may_acquire_anew_with_a_new_epoch(run, name):
    keys = [f"{{{name}}}:lock", f"{{{name}}}:epoch"]

    first = run(lambda r: LEASE_ACQUIRE.answer(r, keys, "h", 1, "mine", 5_000))
    again = run(lambda r: LEASE_ACQUIRE.answer(r, keys, "h", 1, "mine", 5_000))

    assert again[0] == 1
    assert again[1] > first[1]


# Fences


def arguments(name: str) -> dict[Script, tuple[list[str], list[Any]]]:
    """Return what each fenced script may be called with, after the epoch."""
    tag = f"{{{name}}}"
    fence, source, dead = f"{tag}:fence", f"{tag}:source", f"{tag}:dead"
    write = [FAR_MS, 0, 1, uuid(1), 2, "data", "x"]
    return {
        RAISE_FENCE: ([fence], []),
        WRITE: ([fence, f"{tag}:out", f"{tag}:seen"], write),
        PUBLISH_MARKER: ([fence], ["channel", "marker"]),
        STREAM_READ: ([fence, source], ["group", "me", 10]),
        STREAM_CLAIM: ([fence, source], ["group", "me", "0-0", 10]),
        STREAM_ACK: ([fence, source], ["group", 0, "1-1"]),
        STREAM_DEAD_LETTER: ([fence, source, dead], ["group", 0, "1-1", 2, "a", "b"]),
        BATCHES_STORE: ([fence, f"{tag}:p", f"{tag}:z", f"{tag}:at"], ["at", "id", 1, "bytes"]),
        BATCHES_REMOVE: ([fence, f"{tag}:p", f"{tag}:z", f"{tag}:d"], ["id"]),
        BATCHES_DEAD_LETTER: ([fence, f"{tag}:d", dead], ["id", uuid(1), 2, "a", "b"]),
    }


@pytest.mark.parametrize("script", arguments(""), ids=lambda script: script.name)
def test_a_script_refuses_a_lower_epoch_and_changes_nothing(run, name, look, script):
    keys, args = arguments(name)[script]
    look.xgroup_create(f"{{{name}}}:source", "group", mkstream=True)
    run(lambda r: RAISE_FENCE.answer(r, keys[:1], 10))
    before = {key: look.dump(key) for key in look.keys(f"*{name}*")}

    with pytest.raises(Stale, match="epoch 9 is below 10"):
        run(lambda r: script.answer(r, keys, 9, *args))

    assert {key: look.dump(key) for key in look.keys(f"*{name}*")} == before


@pytest.mark.parametrize("script", arguments(""), ids=lambda script: script.name)
def test_a_script_lets_equal_and_higher_epochs_pass_and_learns_the_higher(run, name, look, script):
    keys, args = arguments(name)[script]
    look.xgroup_create(f"{{{name}}}:source", "group", mkstream=True)
    run(lambda r: RAISE_FENCE.answer(r, keys[:1], 10))

    run(lambda r: script.answer(r, keys, 10, *args))
    run(lambda r: script.answer(r, keys, 11, *args))

    assert look.get(keys[0]) == b"11"


def test_an_epoch_of_today_keeps_all_its_digits(run, name, look):
    epoch = 1_794_779_342_669
    run(lambda r: RAISE_FENCE.answer(r, [name], epoch))

    with pytest.raises(Stale, match=f"epoch {epoch - 1} is below {epoch}$"):
        run(lambda r: RAISE_FENCE.answer(r, [name], epoch - 1))


# Writing


def written(look, key: str) -> list[dict[bytes, bytes]]:
    return [fields for _, fields in look.xrange(key)]


def test_a_message_is_written_once_however_often_it_comes(run, name, look):
    keys = [f"{{{name}}}:fence", name, f"{{{name}}}:seen"]
    args: list[Any] = [uuid(1), uuid(2), 2, "data", "one", 4, "data", "two", "more", "words"]

    assert run(lambda r: WRITE.answer(r, keys, 1, FAR_MS, 0, 2, *args)) == b"11"
    assert run(lambda r: WRITE.answer(r, keys, 1, FAR_MS, 0, 2, *args)) == b"00"
    others: list[Any] = [uuid(2), uuid(3), 2, "data", "two", 2, "data", "three"]
    assert run(lambda r: WRITE.answer(r, keys, 2, FAR_MS, 0, 2, *others)) == b"01"

    assert written(look, name) == [
        {b"data": b"one"},
        {b"data": b"two", b"more": b"words"},
        {b"data": b"three"},
    ]


def test_a_message_that_comes_twice_in_one_batch_is_written_once(run, name, look):
    keys = [f"{{{name}}}:fence", name, f"{{{name}}}:seen"]
    args: list[Any] = [uuid(1), uuid(1), 2, "data", "one", 2, "data", "one"]

    assert run(lambda r: WRITE.answer(r, keys, 1, FAR_MS, 0, 2, *args)) == b"10"
    assert look.xlen(name) == 1


def test_a_message_older_than_the_window_is_not_written(run, name, look):
    keys = [f"{{{name}}}:fence", name, f"{{{name}}}:seen"]
    args: list[Any] = [uuid(1), 2, "data", "one"]

    assert run(lambda r: WRITE.answer(r, keys, 1, 1_000, 0, 1, *args)) == b"2"
    assert look.xlen(name) == 0


def test_what_was_seen_is_forgotten_a_minute_after_its_bucket_ends(run, name, look):
    keys = [f"{{{name}}}:fence", name, f"{{{name}}}:seen"]
    ends_ms = int(time.time() * 1_000) + 60_000

    run(lambda r: WRITE.answer(r, keys, 1, ends_ms, 0, 1, uuid(1), 2, "data", "one"))

    assert look.execute_command("PEXPIRETIME", keys[2]) == ends_ms + 60_000


def test_a_whole_batch_of_the_largest_size_fits_into_one_call(run, name, look):
    keys = [f"{{{name}}}:fence", name, f"{{{name}}}:seen"]
    uuids = [uuid(n) for n in range(1_000)]
    args: list[Any] = [word for n in range(1_000) for word in (2, "data", n)]

    assert run(lambda r: WRITE.answer(r, keys, 1, FAR_MS, 0, 1_000, *uuids, *args)) == b"1" * 1_000
    assert look.xlen(name) == 1_000


def test_a_stream_is_kept_at_about_its_length(run, name, look):
    keys = [f"{{{name}}}:fence", name, f"{{{name}}}:seen"]
    uuids = [uuid(n) for n in range(1_000)]
    args: list[Any] = [word for n in range(1_000) for word in (2, "data", n)]

    run(lambda r: WRITE.answer(r, keys, 1, FAR_MS, 100, 1_000, *uuids, *args))

    assert 100 <= look.xlen(name) < 400


# The dead


def test_a_dead_entry_is_dead_lettered_once_and_pending_no_more(run, name, look):
    keys = [f"{{{name}}}:fence", name, f"{{{name}}}:dead"]
    look.xgroup_create(name, "group", mkstream=True)
    entry = look.xadd(name, {"data": "x"})
    run(lambda r: STREAM_READ.answer(r, keys[:2], 1, "group", "me", 10))
    args: list[Any] = ["group", 0, entry, 2, "reason", "poison"]

    assert run(lambda r: STREAM_DEAD_LETTER.answer(r, keys, 1, *args)) == 1
    assert run(lambda r: STREAM_DEAD_LETTER.answer(r, keys, 2, *args)) == 0

    assert written(look, keys[2]) == [{b"reason": b"poison"}]
    assert look.xpending(name, "group")["pending"] == 0


def test_a_message_of_a_stored_batch_is_dead_lettered_once_until_the_batch_is_gone(run, name, look):
    tag = f"{{{name}}}"
    keys = [f"{tag}:fence", f"{tag}:done", f"{tag}:dead"]
    args: list[Any] = ["stored batch", uuid(1), 2, "reason", "poison"]

    assert run(lambda r: BATCHES_DEAD_LETTER.answer(r, keys, 1, *args)) == 1
    assert run(lambda r: BATCHES_DEAD_LETTER.answer(r, keys, 2, *args)) == 0
    assert (
        run(lambda r: BATCHES_DEAD_LETTER.answer(r, keys, 2, "stored batch", uuid(2), *args[2:]))
        == 1
    )
    assert look.hget(keys[1], "stored batch") == uuid(1) + uuid(2)
    assert look.xlen(keys[2]) == 2

    all_keys = [f"{tag}:fence", f"{tag}:batches", f"{tag}:pending", f"{tag}:done"]
    run(lambda r: BATCHES_REMOVE.answer(r, all_keys, 2, "stored batch"))
    assert look.hget(keys[1], "stored batch") is None


def test_entries_that_are_done_are_deleted_if_so_wished(run, name, look):
    keys = [f"{{{name}}}:fence", name]
    look.xgroup_create(name, "group", mkstream=True)
    entries = [look.xadd(name, {"data": n}) for n in range(3)]
    run(lambda r: STREAM_READ.answer(r, keys, 1, "group", "me", 10))

    assert run(lambda r: STREAM_ACK.answer(r, keys, 1, "group", 0, entries[0])) == 1
    assert run(lambda r: STREAM_ACK.answer(r, keys, 1, "group", 1, *entries[1:])) == 2

    assert [entry for entry, _ in look.xrange(name)] == entries[:1]


def test_more_entries_than_lua_takes_arguments_are_acknowledged_at_once(run, name, look):
    keys = [f"{{{name}}}:fence", name]
    look.xgroup_create(name, "group", mkstream=True)
    entries = [look.xadd(name, {"n": n}, id=f"1-{n + 1}") for n in range(10_000)]
    run(lambda r: STREAM_READ.answer(r, keys, 1, "group", "me", 10_000))

    assert run(lambda r: STREAM_ACK.answer(r, keys, 1, "group", 1, *entries)) == 10_000
    assert look.xlen(name) == 0
