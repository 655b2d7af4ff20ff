"""Stored streams where it gets difficult: shared by nodes, restored, no room, half answered."""

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.kit.clock import ManualClock
from tests.server.http_client import until
from tests.server.test_stream_events import listening
from tests.server.test_streams_api import Streaming, streaming
from waterclock.model.errors import StoreUnavailable
from waterclock.model.sections import StreamsConfig
from waterclock.model.units import MIB
from waterclock.node.streams import store_poller
from waterclock.stores.base import Page

LONG = "timeout=50s"


def shared(folder: Path) -> StreamsConfig:
    return StreamsConfig(store=f"sqlite://{folder}/shared.sqlite")


async def token_of(it: Streaming, stream: str, message: object) -> str:
    token: str = (await it.store(stream, message)).json()["resumeToken"]
    return token


async def test_a_message_is_stored_whatever_room_there_is_in_memory(tmp_path):
    async with streaming(tmp_path, streams=StreamsConfig(bytes_max=1 * MIB)) as it:
        stored = [await it.store(f"s{n}", "x" * 400_000, messageUuid=f"m{n}") for n in range(4)]

        assert [each.status for each in stored] == [201] * 4
        for n in range(4):
            found = (await it.receive(f"s{n}", "resumeToken=earliest")).json()
            assert found["messageUuid"] == f"m{n}"


async def test_a_token_ahead_of_the_store_is_gone_and_nothing_is_passed_over(tmp_path):
    async with streaming(tmp_path) as it:
        tokens = [await token_of(it, "s", n) for n in range(5)]
    shutil.rmtree(tmp_path / "streams")
    async with streaming(tmp_path) as it:
        empty = await it.receive("s", f"resumeToken={tokens[2]}&{LONG}")
        assert (empty.status, empty.json()["missed"]) == (410, 0)
        for n in range(3):
            await it.store("s", f"new {n}")

        gone = await it.receive("s", f"resumeToken={tokens[4]}&{LONG}")
        assert (gone.status, gone.json()["missed"]) == (410, 0)
        again = gone.json()["resumeToken"]
        found = (await it.receive("s", f"resumeToken={again}&limit=9")).json()
        assert [each["message"] for each in found["messages"]] == [f"new {n}" for n in range(3)]

        listener = await listening(it, "streamId=s", last_id=tokens[4])
        lost, *rest = await listener.events(4)
        assert (lost.name, lost.data) == ("gone", {"missed": 0})
        assert [each.data["message"] for each in rest] == [f"new {n}" for n in range(3)]


async def test_an_id_stored_again_after_its_message_expired_is_new_and_can_be_read(tmp_path):
    clock = ManualClock(1_800_000_000_000)
    async with streaming(tmp_path, clock=clock) as it:
        first = (await it.store("s", "old", messageUuid="u", ttl="10s")).json()
        clock.advance(10_000)
        assert (await it.receive("s", "resumeToken=earliest&timeout=0s")).status == 424

        again = (await it.store("s", "new", messageUuid="u", ttl="10s")).json()

        assert (first["position"], first["isNew"]) == (1, True)
        assert (again["position"], again["isNew"]) == (2, True)
        for token in ("earliest", first["resumeToken"]):
            found = (await it.receive("s", f"resumeToken={token}")).json()
            assert (found["message"], found["messageUuid"]) == ("new", "u")


async def test_who_waits_is_told_also_by_the_repeat_of_a_message_whose_answer_was_lost(
    tmp_path, monkeypatch
):
    async with streaming(tmp_path) as it:
        token = await token_of(it, "s", "one")
        waiting = await it.polling("s", f"resumeToken={token}&{LONG}")
        its_store = it.node.persister._store
        store = its_store.store

        async def losing(*arguments, **options):
            await store(*arguments, **options)
            monkeypatch.setattr(its_store, "store", store)
            raise StoreUnavailable("the answer was lost")

        monkeypatch.setattr(its_store, "store", losing)
        assert (await it.store("s", "two", messageUuid="u2")).status == 503
        again = await it.store("s", "another body", messageUuid="u2")

        assert not again.json()["isNew"]
        assert (await waiting).json()["message"] == "two"


@pytest.mark.parametrize("path", ["sendAndStore", "send"])
async def test_who_waits_gets_a_stored_message_also_if_its_sender_has_gone(
    tmp_path, path, monkeypatch
):
    async with streaming(tmp_path) as it:
        waiting = await it.polling("s", LONG)
        its_store, go_on, asked = it.node.persister._store, asyncio.Event(), []
        store = its_store.store

        async def slow(*arguments, **options):
            asked.append(arguments)
            await go_on.wait()
            return await store(*arguments, **options)

        monkeypatch.setattr(its_store, "store", slow)
        data = b'{"streamId":"s","message":"m","writeToDB":true}'
        if path == "sendAndStore":
            data = b'{"streamId":"s","message":"m"}'
        sender = await it.connection()
        head = f"POST /streams/{path} HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Content-Length: {len(data)}\r\n\r\n"
        connected = len(it.served.server._http.connections)
        sender.send(head.encode() + data)
        await until(lambda: asked)
        sender.writer.close()
        await until(lambda: len(it.served.server._http.connections) < connected)
        go_on.set()

        assert (await waiting).json()["message"] == "m"


async def test_who_waits_for_anything_gets_a_message_whose_first_answer_was_lost(
    tmp_path, monkeypatch
):
    async with streaming(tmp_path) as it:
        waiting = await it.polling("s", LONG)
        its_store = it.node.persister._store
        store = its_store.store

        async def losing(*arguments, **options):
            await store(*arguments, **options)
            monkeypatch.setattr(its_store, "store", store)
            raise StoreUnavailable("the answer was lost")

        monkeypatch.setattr(its_store, "store", losing)
        statuses = [(await it.store("s", "m", messageUuid="u")).status for _ in range(2)]

        assert statuses == [503, 201]
        assert (await asyncio.wait_for(waiting, 10)).json()["message"] == "m"


async def test_a_message_sent_and_stored_again_is_not_sent_again(tmp_path):
    async with streaming(tmp_path) as it:
        for _ in range(2):
            sent = await it.send("s", "m", messageUuid="u", writeToDB=True)
            assert sent.status == 200
        assert (await it.receive("s")).json()["message"] == "m"
        assert (await it.receive("s", "timeout=1ms")).status == 424


async def test_a_message_stored_while_a_reader_reads_is_not_passed_over(tmp_path, monkeypatch):
    async with streaming(tmp_path) as it:
        token = await token_of(it, "s", "one")
        it.host.delete("s")
        persister = it.node.persister
        read = persister.read

        async def slow(stream: str, *, after: int, limit: int) -> Page:
            page = await read(stream, after=after, limit=limit)
            monkeypatch.setattr(persister, "read", read)
            await it.store(stream, "two")
            it.host.delete(stream)
            return page

        monkeypatch.setattr(persister, "read", slow)
        found = await it.receive("s", f"resumeToken={token}&{LONG}")

        assert found.json()["message"] == "two"


async def test_nodes_that_share_a_store_share_tokens_and_hear_of_each_others_messages(tmp_path):
    config = shared(tmp_path)
    async with (
        streaming(tmp_path / "a", streams=config) as a,
        streaming(tmp_path / "b", streams=config) as b,
    ):
        token = await token_of(a, "s", "one")
        early = await b.receive("s", "resumeToken=earliest")
        assert early.json()["resumeToken"] == token
        waiting = await b.polling("s", f"resumeToken={token}&{LONG}")
        await a.store("s", "two")
        await a.store("s", "three")

        assert (await waiting).json()["message"] == "two"
        listener = await listening(b, "streamId=s", last_id=token)
        assert await listener.messages(2) == ["two", "three"]
        await until(lambda: b.host.table.waiting)
        await a.store("s", "four")
        assert await listener.messages(1) == ["four"]
    async with streaming(tmp_path / "c", streams=config) as c:
        found = (await c.receive("s", f"resumeToken={token}&limit=9")).json()
        assert [each["message"] for each in found["messages"]] == ["two", "three", "four"]


async def test_the_store_is_asked_once_for_all_who_wait_in_a_stream(tmp_path, monkeypatch):
    monkeypatch.setattr(store_poller, "POLL_S", 0.01)

    async with streaming(tmp_path, streams=shared(tmp_path)) as it:
        token = await token_of(it, "s", "one")
        polls = [await it.polling("s", f"resumeToken={token}&{LONG}") for _ in range(5)]
        persister, asked = it.node.persister, 0
        read = persister.read

        async def counted(*arguments, **options):
            nonlocal asked
            asked += 1
            if asked == 2:
                raise StoreUnavailable("for a moment")
            return await read(*arguments, **options)

        monkeypatch.setattr(persister, "read", counted)
        rounds = it.node.store_poller.rounds
        await until(lambda: it.node.store_poller.rounds >= rounds + 4)
        assert asked in (3, 4, 5)
        await it.store("s", "two")
        assert {(await poll).json()["message"] for poll in polls} == {"two"}


async def test_until_the_store_is_open_a_token_of_another_node_is_not_called_forged(tmp_path):
    config = shared(tmp_path)
    async with streaming(tmp_path / "a", streams=config) as a:
        token = await token_of(a, "s", "one")
    async with streaming(tmp_path / "b", streams=config) as b:
        b.node.stream_tokens._keyed.popitem()
        b.node.persister._is_open = False
        found = await b.receive("s", f"resumeToken={token}&{LONG}")
        heard = await b.get(f"/streams/events?streamId=s&resumeToken={token}")

        assert [each.status for each in (found, heard)] == [503, 503]


@pytest.mark.parametrize("path", ["receive", "events"])
async def test_nobody_reads_the_key_of_the_tokens(tmp_path, path):
    async with streaming(tmp_path, streams=shared(tmp_path)) as it:
        name = "%00waterclock"
        read = await it.get(f"/streams/{path}?streamId={name}&resumeToken=earliest&timeout=1ms")
        written = await it.store("\x00waterclock", "mine")
        deleted = await it.post(f"/streams/{name}", "DELETE")

        assert [each.status for each in (read, written, deleted)] == [400] * 3


async def test_a_named_consumer_moves_only_past_what_it_has_confirmed(tmp_path):
    async with streaming(tmp_path) as it:
        for n in range(5):
            await it.send("live", n)
            await it.store("stored", n)
        for stream in ("live", "stored"):
            asks = "consumerId=ada&limit=3&resumeToken="
            first, again = [await it.receive(stream, f"{asks}confirmed") for _ in range(2)]
            page = first.json()
            assert [each["message"] for each in page["messages"]] == [0, 1, 2]
            assert again.json() == page
            token = page["messages"][1]["resumeToken"]
            page = (await it.receive(stream, f"{asks}{token}")).json()
            assert [each["message"] for each in page["messages"]] == [2, 3, 4]
            facts = (await it.get(f"/streams/{stream}")).json()
            assert facts["consumers"] == {"ada": 2}
            page = (await it.receive(stream, f"{asks}confirmed")).json()
            assert [each["message"] for each in page["messages"]] == [2, 3, 4]
        bad = await it.receive("live", "resumeToken=confirmed")
        assert (bad.status, bad.json()["field"]) == (400, "resumeToken")


async def test_who_waits_to_confirm_is_given_what_comes_and_again_until_it_does(tmp_path):
    async with streaming(tmp_path) as it:
        waiting = await it.polling("s", "consumerId=ada&resumeToken=confirmed")
        await it.send("s", "one")
        assert (await waiting).json()["message"] == "one"
        again = (await it.receive("s", "consumerId=ada&resumeToken=confirmed")).json()
        assert again["message"] == "one"
        token = again["resumeToken"]
        waiting = await it.polling("s", f"consumerId=ada&resumeToken={token}")
        await asyncio.gather(waiting, it.send("s", "two"))
        assert (await it.get("/streams/s")).json()["consumers"] == {"ada": 1}
