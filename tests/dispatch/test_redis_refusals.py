"""What Redis refuses is told as it is, and changes nothing that was not asked for."""

import asyncio

import pytest

from waterclock.dispatch.redis.client import RedisClient
from waterclock.dispatch.redis.link import (
    RedisAddress,
    RedisRefused,
    connect,
    without_password,
)
from waterclock.dispatch.redis.scripts import STREAM_DEAD_LETTER, STREAM_READ
from waterclock.model.errors import BadInput


@pytest.mark.parametrize(
    "text",
    [
        "redis://:secret@host/x", "redis://:sec#ret@host", "redis://:secret@host:port",
        "redis://user:secret@host?db=2", "http://user:secret@host", "redis://:secret@[::1",
        "user:secret@", "redis://u:secret@host/1#secret",
    ],
)  # fmt: skip
def test_no_password_is_in_the_words_about_a_bad_address(text):
    with pytest.raises(BadInput) as caught:
        RedisAddress.parse(text)

    assert "secret" not in str(caught.value).replace("#secret", "")
    assert caught.value.__cause__ is None


def test_an_address_is_shown_without_what_lets_us_in():
    assert without_password("rediss://user:pa@ss@host:1/2") == "rediss://***@host:1/2"
    assert without_password("host:1") == "host:1"


async def test_a_command_that_cannot_be_packed_leaves_the_answers_with_those_who_asked(
    server, name
):
    link = await connect(RedisAddress.parse(server.address))
    with pytest.raises(UnicodeEncodeError):
        link.call("SET", name, "\ud800")
    first, second = link.call("SET", name, "mine"), link.call("GET", name)
    assert await first == b"OK"
    assert await second == b"mine"
    link.close()


def test_a_user_without_the_channel_hears_why(server, name, look):
    look.acl_setuser(name, enabled=True, passwords=["+word"], commands=["+@all"], keys=["*"])
    try:

        async def story() -> None:
            address = RedisAddress.parse(f"redis://{name}:word@{server.address}")
            link = await connect(address)
            heard: list[object] = []
            with pytest.raises(RedisRefused, match="NOPERM"):
                await link.subscribe("channel", on_replies=heard.extend)
            await link.closed
            assert not heard

        asyncio.run(story())
    finally:
        look.acl_deluser(name)


def test_a_user_who_needs_no_password_is_let_in_by_name(server, name, look):
    look.acl_setuser(name, enabled=True, nopass=True, commands=["+acl|whoami", "+info", "+role"])
    try:

        async def story() -> None:
            redis = RedisClient([f"redis://{name}@{server.address}"])
            assert await redis.call("any", "ACL", "WHOAMI") == name.encode()
            redis.close()

        asyncio.run(story())
    finally:
        look.acl_deluser(name)


async def test_a_message_that_cannot_be_dead_lettered_is_still_pending(server, name, look):
    keys = [f"{{{name}}}:fence", name, f"{{{name}}}:dead"]
    look.xgroup_create(name, "group", mkstream=True)
    entry = look.xadd(name, {"data": "x"})
    look.set(keys[2], "somebody else's")

    redis = RedisClient([server.address])
    await STREAM_READ.answer(redis, keys[:2], 1, "group", "me", 10)
    with pytest.raises(RedisRefused, match="WRONGTYPE"):
        await STREAM_DEAD_LETTER.answer(redis, keys, 1, "group", 0, entry, 2, "reason", "poison")
    redis.close()
    assert look.xpending(name, "group")["pending"] == 1
