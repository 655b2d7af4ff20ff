"""Members that speak HTTP, over time: events, idleness, nodes that stop, topics that go."""

import asyncio

from tests.server.http_client import RawClient, raw_client, until
from tests.server.served import running_server
from tests.server.test_rest_messages import PATH, consumers_of, poll, polled, taken, values
from waterclock.server.rest import consumers as http_consumers
from waterclock.server.rest.waiters import Listening

EVENTS = "/topics/orders/events?group=g"


async def event(client: RawClient) -> tuple[str, str]:
    """Return id and data of the next event."""
    while True:
        chunk = (await client.chunk()).decode()
        assert chunk, "the stream is over"
        if not chunk.startswith(":"):
            lines = chunk.strip().split("\n")
            return lines[0].removeprefix("id: "), lines[1].removeprefix("data: ")


async def test_events_come_as_they_are_published_and_are_acked_by_lease(tmp_path):
    async with (
        running_server(tmp_path) as it,
        raw_client(it.server.http_port) as listener,
        raw_client(it.server.http_port) as client,
    ):
        listener.send(f"GET {EVENTS} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        _, headers = await listener.head()
        assert headers["content-type"] == "text/event-stream"
        await client.post(PATH, {"value": "one"})
        lease, data = await event(listener)
        assert '"value":"one"' in data
        await client.post("/topics/orders/acks", {"group": "g", "ack": [lease]})
        await client.post(PATH, {"value": "two"})
        assert '"value":"two"' in (await event(listener))[1]

        group = (await client.get("/topics/orders/groups/g")).json()
        assert group["partitions"][0]["committed"] == 1


async def test_a_stream_sends_no_more_than_its_window_until_it_is_answered(tmp_path):
    async with (
        running_server(tmp_path) as it,
        raw_client(it.server.http_port) as listener,
        raw_client(it.server.http_port) as client,
    ):
        await client.post(PATH, {"messages": [{"value": str(i)} for i in range(5)]})
        listener.send(f"GET {EVENTS}&window=2 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await listener.head()
        chunk = b""
        while chunk.count(b"data:") < 2:
            chunk += await listener.chunk()
        (member,) = polled(it)
        await until(lambda: member._waiters)
        assert member.session.credit.held_messages == 2

        await client.post("/topics/orders/acks", {"group": "g", "ack": ["0-1-0-1"]})
        assert (await event(listener))[0] == "0-1-2-1"


async def test_what_is_acked_by_sending_is_done_when_it_was_sent(tmp_path):
    async with (
        running_server(tmp_path) as it,
        raw_client(it.server.http_port) as listener,
        raw_client(it.server.http_port) as client,
    ):
        await client.post(PATH, {"value": "one"})
        listener.send(f"GET {EVENTS}&ack=auto HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await listener.head()
        await event(listener)
        (member,) = polled(it)
        await until(lambda: not member.session.credit.held_messages)


async def test_who_listens_no_more_stands_in_line_no_more(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        async with raw_client(it.server.http_port) as listener:
            listener.send(f"GET {EVENTS} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            await listener.head()
            await until(lambda: any(m._waiters for m in polled(it)))
        await until(lambda: not any(m._waiters for m in polled(it)))
        await client.post(PATH, {"value": "kept"})

        assert values(await taken(client, limit=1)) == ["kept"]


async def test_what_a_listener_was_given_and_did_not_send_comes_again(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        assert values(await taken(client, limit=1, wait="1ms")) == []
        (consumer,) = polled(it)
        listening = Listening(consumer, 10)
        batch = listening.ask()
        await client.post(PATH, {"value": "kept"})
        await until(lambda: batch.is_over)
        listening.close()

        assert values(await taken(client, limit=1)) == ["kept"]


async def test_a_member_that_nobody_asks_leaves_unless_something_is_held(tmp_path, monkeypatch):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await client.post(PATH, {"value": "held"})
        (message,) = await taken(client)
        monkeypatch.setattr(http_consumers, "IDLE_MS", 0)
        members = consumers_of(it)
        members.beat()
        assert polled(it)

        await client.post("/topics/orders/acks", {"group": "g", "ack": [message["lease"]]})
        members.beat()
        await until(lambda: not polled(it))
        view = (await client.get("/topics/orders/groups/g")).json()
        assert view["members"] == []


async def test_a_member_may_leave_with_its_last_answer(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await client.post(PATH, {"messages": [{"value": "a"}, {"value": "b"}]})
        first, _ = await taken(client)
        await client.post(
            "/topics/orders/acks", {"group": "g", "ack": [first["lease"]], "leave": True}
        )
        await until(lambda: not polled(it))

        # What it still held is handed out again at once, uncounted.
        (again,) = await taken(client)
        assert (again["value"], again["attempt"]) == ("b", 1)


async def test_consumers_of_different_names_share_the_partitions(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await client.post("/topics", {"topic": "orders", "partitions": 2})
        await taken(client, consumer="a", wait="0s")
        await taken(client, consumer="b", wait="0s")
        view = (await client.get("/topics/orders/groups/g")).json()

        assert view["members"] == ["a", "b"]


async def test_a_new_group_begins_where_it_is_told(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await client.post(PATH, {"value": "old"})
        assert await taken(client, "late", start="latest", wait="0s") == []
        assert values(await taken(client, "early")) == ["old"]
        assert await taken(client, "future", since="2099-01-01T00:00:00Z", wait="0s") == []


async def test_a_stopping_node_ends_polls_and_streams_and_still_takes_acks(tmp_path):
    async with (
        running_server(tmp_path) as it,
        raw_client(it.server.http_port) as client,
        raw_client(it.server.http_port) as waiter,
        raw_client(it.server.http_port) as listener,
    ):
        await client.post(PATH, {"value": "held"})
        (message,) = await taken(client)
        waiter.send(f"GET {PATH}?group=g HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        listener.send(f"GET {EVENTS} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await listener.head()
        await until(lambda: sum(len(m._waiters) for m in polled(it)) == 2)
        it.home.calls.stop()

        ended = await waiter.answer()
        assert (ended.status, ended.headers["retry-after"]) == (503, "1")
        rest = b""
        while chunk := await listener.chunk():
            rest += chunk
        assert b"event: problem" in rest
        refused = await poll(client)
        assert (refused.status, refused.json()["error"]) == (503, "Stopping")
        acked = await client.post("/topics/orders/acks", {"group": "g", "ack": [message["lease"]]})
        assert acked.status == 200


async def test_a_stopping_node_finishes_what_was_asked_and_takes_nothing_new(tmp_path, monkeypatch):
    async with (
        running_server(tmp_path) as it,
        raw_client(it.server.http_port) as producer,
        raw_client(it.server.http_port) as other,
    ):
        is_open, held = asyncio.Event(), []
        publish = it.server.node.batcher.publish

        async def gated(*given, **named):
            held.append(given)
            await is_open.wait()
            return await publish(*given, **named)

        monkeypatch.setattr(it.server.node.batcher, "publish", gated)
        body = b'{"value": "slow"}'
        head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        producer.send(head.encode() + body)
        await until(lambda: held)
        async with asyncio.TaskGroup() as group:
            stopping = group.create_task(it.server.stop())
            await until(lambda: it.server._http.is_stopping)
            async with raw_client(it.server.http_port) as late:
                refused = await late.post(PATH, {"value": "late"})
                assert (refused.status, refused.json()["error"]) == (503, "Stopping")
            async with raw_client(it.server.http_port) as late:
                assert (await late.get("/health/live")).status == 200
            assert not stopping.done()
            is_open.set()

            assert (await producer.answer()).status == 201
        assert await other.is_closed()


async def test_who_waits_on_a_topic_that_is_deleted_is_told(tmp_path):
    async with (
        running_server(tmp_path) as it,
        raw_client(it.server.http_port) as client,
        raw_client(it.server.http_port) as waiter,
    ):
        waiter.send(f"GET {PATH}?group=g HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await until(lambda: any(m._waiters for m in polled(it)))
        assert (await client.delete("/topics/orders")).status == 204

        assert (await waiter.answer()).status == 404
        await until(lambda: not polled(it))


async def test_polls_of_one_member_take_one_task(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await taken(client, wait="0s")
        tasks = len(asyncio.all_tasks())
        waiters = [raw_client(it.server.http_port) for _ in range(20)]
        clients = [await waiter.__aenter__() for waiter in waiters]
        for one in clients:
            one.send(f"GET {PATH}?group=g HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        (member,) = polled(it)
        await until(lambda: len(member._waiters) == 20)
        assert len(asyncio.all_tasks()) == tasks

        await client.post(PATH, {"messages": [{"value": str(i)} for i in range(200)]})
        counts = [len((await one.answer()).json()["messages"]) for one in clients]
        assert counts == [10] * 20
        for waiter in waiters:
            await waiter.__aexit__(None, None, None)


async def test_a_listener_that_holds_its_window_is_passed_over(tmp_path):
    async with (
        running_server(tmp_path) as it,
        raw_client(it.server.http_port) as listener,
        raw_client(it.server.http_port) as client,
    ):
        await client.post(PATH, {"messages": [{"value": str(n)} for n in range(10)]})
        listener.send(f"GET {EVENTS}&window=1 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await listener.head()
        held, data = await event(listener)
        (member,) = polled(it)
        await until(lambda: member._waiters)
        async with asyncio.timeout(5):
            answer = await client.get(f"{PATH}?group=g&limit=9&wait=30s")
        leases = [one["lease"] for one in answer.json()["messages"]]
        assert values(answer.json()["messages"]) == [str(n) for n in range(1, 10)]

        # What others hold counts for the window; when all is answered, the listener goes on.
        acks = "/topics/orders/acks"
        await client.post(acks, {"group": "g", "ack": leases, "giveBack": [held]})
        async with asyncio.timeout(5):
            _, again = await event(listener)
        assert '"value":"0"' in data
        assert '"value":"0"' in again
