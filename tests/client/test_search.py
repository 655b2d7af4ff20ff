"""Messages of a key, found by a node for a client."""

import asyncio

import pytest

from tests.server.served import running_server
from waterclock.client._sync.client import connect_blocking
from waterclock.client.client import connect
from waterclock.client.settings import ClientSettings
from waterclock.model.errors import UnknownTopic
from waterclock.node.replay import key_search


@pytest.mark.parametrize("is_native", [False, True])
async def test_messages_of_a_key_are_found_with_how_far_it_was_looked(tmp_path, is_native):
    settings = ClientSettings(native=is_native)
    async with (
        running_server(tmp_path) as it,
        connect(it.server.addresses.grpc, settings) as client,
    ):
        for number, key in enumerate((b"ada", b"bob", b"ada")):
            await client.publish("orders", b"%d" % number, key=key, headers={"h": b"1"})
        connection = client._connection
        await connection.settle_link()
        assert (connection.native.channel(connection.address) is not None) is is_native
        found = await client.find_messages("orders", 0, b"ada")
        first = await client.find_messages("orders", 0, b"ada", count=1)
        before = await client.find_messages("orders", 0, b"ada", offset=1, end_offset=2)

        assert [(each.offset, each.value, each.key) for each in found.messages] == [
            (0, b"0", b"ada"),
            (2, b"2", b"ada"),
        ]
        assert found.messages[0].headers == {"h": b"1"}
        assert (found.looked_at, found.next_offset, found.is_at_end) == (3, 3, True)
        assert [each.offset for each in first.messages] == [0]
        assert (first.looked_at, first.next_offset, first.is_at_end) == (1, 1, False)
        assert (before.messages, before.next_offset) == ([], 2)
        with pytest.raises(UnknownTopic):
            await client.find_messages("nobody", 0, b"ada")


async def test_another_call_goes_on_where_one_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(key_search, "ROWS_MAX", 1)
    async with running_server(tmp_path) as it, connect(it.server.addresses.grpc) as client:
        for key in (b"bob", b"ada", b"ada"):
            # Too large to go out together, so each is a batch of its own.
            await client.publish("orders", bytes(700_000), key=key)
        offsets, at, is_at_end = [], 0, False
        while not is_at_end:
            found = await client.find_messages("orders", 0, b"ada", offset=at)
            assert found.next_offset > at, "it goes on"
            at, is_at_end = found.next_offset, found.is_at_end
            offsets.append([each.offset for each in found.messages])

    assert offsets == [[], [1], [2]]


async def test_a_program_without_a_loop_finds_them_too(tmp_path):
    def program(address: str) -> None:
        with connect_blocking(address) as client:
            client.publish("orders", b"x", key=b"ada")
            found = client.find_messages("orders", 0, b"ada")
            assert [each.value for each in found.messages] == [b"x"]

    async with running_server(tmp_path) as it:
        await asyncio.to_thread(program, it.server.addresses.grpc)
