"""The blocking client does what the other does, for programs without an event loop."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from tests.client.fake_node import fake_node
from tests.node.snapshot_writing import write_snapshot
from tests.server.served import running_server
from waterclock.client._sync.client import BlockingClient, connect_blocking
from waterclock.client.client import Client
from waterclock.client.loop_thread import LoopThread
from waterclock.client.settings import ClientSettings
from waterclock.model.errors import BadInput, Closed, NodeFailed, UnknownTopic, Unreachable
from waterclock.model.message import Message
from waterclock.model.views import WriteState
from waterclock.node.replay.snapshots import FOLDER


def with_node(folder: Path, program: Callable[[str], None]) -> None:
    """Run a program that blocks beside a node."""

    async def test() -> None:
        async with running_server(folder) as served:
            await asyncio.to_thread(program, served.server.addresses.grpc)

    asyncio.run(test())


def test_publishing_and_consuming_without_a_loop(tmp_path):
    def program(address: str) -> None:
        with connect_blocking(address) as client:
            receipt = client.publish("orders", b"0", key=b"k", headers={"a": b"1"})
            client.publish_many("orders", [Message(b"1"), Message(b"2")])
            client.publish_arrow("orders", pa.record_batch({"value": [b"3"]}))
            assert (receipt.offset, receipt.is_new) == (0, True)

            seen = []
            with client.subscribe("orders", group="billing", prefetch=2) as messages:
                for message in messages:
                    seen.append(message.value)
                    assert message.ack()
                    if len(seen) == 4:
                        break
                assert messages.partitions == [0]
                assert messages.member
            assert seen == [b"0", b"1", b"2", b"3"]
            assert client.groups.get("orders", "billing").lag == 0

    with_node(tmp_path, program)


def test_a_subscription_needs_no_with(tmp_path):
    def program(address: str) -> None:
        with connect_blocking(address) as client:
            client.publish("orders", b"x")
            for message in client.subscribe("orders", group="billing"):
                message.ack()
                break
            for batch in client.subscribe("orders", group="audit").batches():
                assert batch.rows.column("value").to_pylist() == [b"x"]
                batch.ack()
                break
            client.publish("orders", b"y")

    with_node(tmp_path, program)


async def test_a_loop_that_was_left_goes_on_with_the_next_message():
    async with fake_node() as node:

        def program() -> None:
            with connect_blocking(node.address) as client:
                client.publish_many("orders", [Message(b"%d" % number) for number in range(10)])
                with client.subscribe("orders", group="billing") as messages:
                    for message in messages:
                        message.ack()
                        if message.offset == 3:
                            break
                    assert [next(iter(messages)).offset for _ in range(2)] == [4, 5]
                    assert next(messages.batches()).offsets.tolist() == [6, 7, 8, 9]

        await asyncio.to_thread(program)


async def test_iterators_of_several_threads_share_no_message():
    async with fake_node() as node:

        def program() -> None:
            with connect_blocking(node.address) as client:
                client.publish_many("orders", [Message(b"0"), Message(b"1")])
                with client.subscribe("orders", group="billing") as messages:
                    one, other = iter(messages), iter(messages)
                    first = next(one)
                    client.publish("orders", b"2")
                    assert [first.offset, next(other).offset, next(one).offset] == [0, 2, 1]

        await asyncio.to_thread(program)


def test_everything_else_has_its_twin(tmp_path):
    def program(address: str) -> None:
        with connect_blocking(address) as client:
            client.topics.create("orders", partitions=1)
            assert client.topics.update("orders", retention="1d").retention == timedelta(days=1)
            later = client.publish("orders", b"later", at="+1h")
            other = client.publish("orders", b"other", at="+2h")
            assert [each.offset for each in client.scheduled("orders", page_size=1)] == [0, 1]
            assert [each.offset for each in client.scheduled()] == [0, 1]
            assert [each.count for each in client.count_scheduled_by_topic()] == [2]
            assert client.reschedule("orders", later, at="+3h") == "moved"
            assert client.reschedule_many("orders", [later], at="+3h") == ["moved"]
            assert client.cancel("orders", later.message_id) == "cancelled"
            assert client.cancel_many("orders", [other]) == ["cancelled"]
            assert client.cancel_where("orders", everything=True).matched == 0
            assert sum(each.count for each in client.count_scheduled()) == 0
            repeated = client.repeat("tidy", "orders", b"x", every="1h")
            assert [each.name for each in client.recurrences()] == [repeated.name]
            assert client.pause_repeating(repeated).is_paused
            assert client.resume_repeating("tidy").next == repeated.next
            assert client.stop_repeating("tidy")

            client.publish("orders", b"now")
            assert [message.value for message in client.replay("orders")] == [b"now"]
            assert client.fetch("orders", 0, 0).table().num_rows == 1
            assert [topic.name for topic in client.topics.list()] == ["orders"]
            assert client.topics.get("orders").name == "orders"
            assert client.topics.find_offsets("orders", since="-1h") == {0: 0}
            assert client.groups.list() == []
            assert list(client.dead_letters.list("orders")) == []
            assert client.dead_letters.count("orders") == 0
            assert client.dead_letters.redrive("orders") == 0
            assert client.dead_letters.purge("orders") == 0
            assert client.replays.list() == []
            assert not client.replays.delete("none")
            assert client.write_registry.begin("orders", "q", 0, 0).state is WriteState.NEW
            assert client.write_registry.finish("orders", "q", 0, 0, rows=2) is WriteState.DONE
            assert client.write_registry.commit("orders", "q", 0)
            assert [each.committed for each in client.write_registry.list("orders")] == [0]
            assert client.write_registry.abandon("orders", "q")
            snapshot = write_snapshot(tmp_path / FOLDER, {0: (0, 1, [])})
            assert client.snapshots.register("orders", snapshot).name == "s1"
            assert [each.rows for each in client.snapshots.list("orders")] == [0]
            assert list(client.replay("orders", compacted=True))
            assert client.snapshots.delete("orders", "s1")
            assert client.node().name == "test"
            client.topics.delete("orders")

    with_node(tmp_path, program)


def test_the_twins_have_the_same_names():
    def names(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert names(BlockingClient) - {"close"} == names(Client)
    made, twin = Client("localhost"), BlockingClient("localhost")
    for part in ("topics", "groups", "dead_letters", "replays", "write_registry", "snapshots"):
        assert names(type(getattr(made, part))) == names(type(getattr(twin, part)))


async def test_threads_share_batches():
    async with fake_node() as node:

        def program() -> None:
            with connect_blocking(node.address) as client:
                threads = [
                    threading.Thread(target=client.publish, args=("orders", b"%d" % number))
                    for number in range(20)
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()

        await asyncio.to_thread(program)
        assert len(node.topics["orders"].rows) == 20


async def test_a_message_may_be_acked_on_another_thread():
    async with fake_node() as node:

        def program() -> None:
            with connect_blocking(node.address) as client:
                client.publish_many("orders", [Message(b"x")] * 10)
                with client.subscribe("orders", group="billing") as messages:
                    for message in messages:
                        thread = threading.Thread(target=message.ack)
                        thread.start()
                        thread.join()
                        if message.offset == 9:
                            break

        await asyncio.to_thread(program)
        assert node.groups["orders", "billing"].done == {*range(10)}


def test_errors_are_raised_where_the_call_was_made(tmp_path):
    def program(address: str) -> None:
        with connect_blocking(address) as client:
            with pytest.raises(BadInput):
                client.publish("no such!", b"x")
            with pytest.raises(UnknownTopic):
                client.topics.get("none")
            with pytest.raises(UnknownTopic):
                list(client.replay("none"))

    with_node(tmp_path, program)


async def test_a_node_that_is_not_there_is_told_of():
    async with fake_node() as node:
        pass

    def program() -> None:
        settings = ClientSettings(connect_timeout_ms=50)
        with connect_blocking(node.address, settings):
            pass

    with pytest.raises(Unreachable):
        await asyncio.to_thread(program)


def test_what_fails_while_closing_is_raised_where_the_program_closes():
    @contextlib.asynccontextmanager
    async def client() -> AsyncIterator[None]:
        yield
        raise NodeFailed("it hung up first")

    loop = LoopThread(client())
    loop.start()

    with pytest.raises(NodeFailed, match="it hung up first"):
        loop.stop()
    loop.stop()


async def test_a_replay_that_was_left_ends_quietly_after_its_client():
    async with fake_node() as node:

        def program() -> None:
            with connect_blocking(node.address) as client:
                client.publish_many("orders", [Message(b"0"), Message(b"1")])
                messages = client.replay("orders")
                assert next(messages).value == b"0"
            del messages

        await asyncio.to_thread(program)


def test_a_closed_client_says_so_and_closes_again_quietly():
    client = connect_blocking("localhost:1")
    assert repr(client) == "<BlockingClient of localhost:1, not open>"
    with pytest.raises(Closed):
        client.publish("orders", b"x")
    client.close()
    client.close()


async def test_a_program_that_forgets_to_close_ends_all_the_same(tmp_path):
    async with running_server(tmp_path) as served:
        program = (
            "import waterclock\n"
            f"client = waterclock.connect_blocking({served.server.addresses.grpc!r})\n"
            "client.__enter__()\n"
            "client.publish('orders', b'x')\n"
            "messages = iter(client.subscribe('orders', group='billing'))\n"
            "print(next(messages).value)\n"
        )
        assert await output_of(program) == (0, "b'x'\n", "")


async def output_of(program: str) -> tuple[int | None, str, str]:
    import sys

    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=-1, stderr=-1
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()
