"""`up --processes` is one node to its clients: by one address, also while a process comes back."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import waterclock
from waterclock.client.streams.http_pool import HttpPool
from waterclock.client.streams.http_request import HttpRequest
from waterclock.server.cluster.ownership import RingOwnership

PORTS = ("--grpc-port", "0", "--http-port", "0")
PUBLISHED, BEFORE_KILL, LATER = 400, 40, 8
SENT, CONNECTION_SENDS = 96, 6
"""To a stream, which holds 100, and over one connection: enough for it to be handed."""


class Running(NamedTuple):
    """Processes, and what they said of themselves."""

    process: "subprocess.Popen[str]"
    shown: dict[str, Any]

    @property
    def address(self) -> str:
        found: str = self.shown["grpc_address"]
        return found

    async def get(self, path: str) -> tuple[int, bytes]:
        """Ask whichever process takes the connection."""
        with closing(HttpPool(self.shown["http_address"], connections_max=1)) as pool:
            answer = await pool.ask(HttpRequest("GET", path), timeout_s=10)
        return answer.status, answer.body

    async def receive_all(self, stream: str) -> dict[str, Any]:
        """Take what is in a stream, by whichever process."""
        asked = HttpRequest("GET", "/streams/receive", {"streamId": stream, "limit": "1000"})
        with closing(HttpPool(self.shown["http_address"], connections_max=1)) as pool:
            answer = await pool.ask(asked, timeout_s=10)
        assert answer.status == 200, answer.body
        found: dict[str, Any] = json.loads(answer.body)
        return found

    async def until_whole(self) -> None:
        """Return when all processes are ready, as any of them says."""
        while (await self.get("/health/ready"))[0] != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    def line_beginning(self, beginning: str) -> str:
        """Return the next line on stderr that begins so."""
        assert self.process.stderr is not None
        return next(line for line in self.process.stderr if line.startswith(beginning))


def command(data: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "waterclock", "up", "--json", "--data", str(data), *PORTS, *words]


@contextmanager
def processes(data: Path) -> Iterator[Running]:
    with subprocess.Popen(
        command(data, "--processes", "2"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            yield Running(process, json.loads(process.stdout.readline()))
        finally:
            process.kill()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Return processes that tests share; at the end, they stop in good order."""
    with processes(tmp_path_factory.mktemp("processes")) as found:
        yield found
        found.process.send_signal(signal.SIGTERM)
        _, complaints = found.process.communicate(timeout=60)
        assert found.process.returncode == 0, complaints
        assert "Traceback" not in complaints


def test_a_program_is_told_of_all_by_one_address(running):
    first, second = running.shown["processes"]

    assert running.shown["is_formed"] is True
    assert first["grpc_address"] == second["grpc_address"] == running.address
    assert first["own_http_address"] != second["own_http_address"]
    assert Path(first["data_folder"]) == Path(running.shown["data_folder"])
    assert Path(second["data_folder"]).parts[-2:] == ("processes", "2")


async def test_metrics_are_those_of_all_whichever_is_asked(running):
    status, text = await running.get("/metrics")

    assert status == 200
    assert text.count(b"# TYPE process_cpu_seconds_total ") == 1
    for number in (1, 2):
        assert b'process_cpu_seconds_total{process="process-%d"}' % number in text


async def test_streams_and_stored_streams_are_found_through_any_process(running):
    for number in range(4):  # some are owned by the one, some by the other
        async with waterclock.connect(running.address) as client:
            await client.streams.send(f"live-{number}", number)
            await client.streams.send_and_store(f"kept-{number}", number)
        async with waterclock.connect(running.address) as client:
            received = await client.streams.receive(f"live-{number}", timeout=5.0)
            assert received is not None
            assert received.value == number


@pytest.mark.parametrize("name", ["one", "two", "three", "four"])
async def test_a_connection_goes_to_the_process_that_has_its_stream(running, name):
    """Some of these streams are of the one process, some of the other."""
    with closing(HttpPool(running.shown["http_address"], connections_max=1)) as pool:

        async def ask(request: HttpRequest) -> dict[str, Any]:
            answer = await pool.ask(request, timeout_s=10)
            assert answer.status == 200, answer.body
            found: dict[str, Any] = json.loads(answer.body)
            return found

        async def exchange(count: int) -> None:
            for number in range(count):
                body = json.dumps({"streamId": name, "message": number}).encode()
                await ask(HttpRequest("POST", "/streams/send", body=body))
            poll = HttpRequest("GET", "/streams/receive", {"streamId": name})
            assert [(await ask(poll))["message"] for _ in range(count)] == [*range(count)]

        await exchange(10)
        ownership = RingOwnership("process-1")
        ownership.update({"process-1": "", "process-2": ""})

        assert (await ask(HttpRequest("GET", "/node")))["name"] == ownership.ring.owner(name)
        await exchange(10)


async def test_a_killed_process_comes_back_with_all_it_acknowledged(running):
    victim = running.shown["processes"][1]["pid"]
    acked: list[bytes] = []
    async with waterclock.connect(running.address) as client:
        await client.topics.create("orders", partitions=4)
        due = datetime.now(UTC) + timedelta(seconds=2)
        for number in range(LATER):
            value = b"later %d" % number
            await client.publish("orders", value, key=b"%d" % number, at=due)

        async def publish(start: int) -> None:
            for number in range(start, PUBLISHED, 8):
                value = b"now %d" % number
                await client.publish("orders", value, key=b"%d" % (number % 16))
                acked.append(value)
                if len(acked) == BEFORE_KILL:
                    os.kill(victim, signal.SIGKILL)

        await asyncio.gather(*map(publish, range(8)))
        early, found = [], set()
        wanted = {*acked, *(b"later %d" % number for number in range(LATER))}
        async with asyncio.timeout(60), client.subscribe("orders", group="g") as messages:
            async for message in messages:
                if (message.value or b"").startswith(b"later") and datetime.now(UTC) < due:
                    early.append(message.value)
                found.add(message.value)
                await message.ack()
                if found >= wanted:
                    break

    assert len(acked) == PUBLISHED
    assert early == []
    assert "was killed (SIGKILL); it is started again" in running.line_beginning("process-2 was")
    assert "is back" in running.line_beginning("process-2 is")
    await running.until_whole()


async def test_a_process_killed_while_connections_are_handed_costs_connections_only(tmp_path):
    """Streams that the other process has lose nothing that was acknowledged."""
    ownership = RingOwnership("process-1")
    ownership.update({"process-1": "", "process-2": ""})
    acked: dict[str, set[int]] = {f"handed-{number}": set() for number in range(8)}
    kept = [name for name in acked if ownership.ring.owner(name) == "process-1"]
    assert 0 < len(kept) < len(acked)
    with processes(tmp_path) as running:
        is_killed = False

        async def send(pool: HttpPool, name: str, number: int) -> None:
            nonlocal is_killed
            body = json.dumps({"streamId": name, "message": number}).encode()
            request = HttpRequest("POST", "/streams/send", body=body)
            if (await pool.ask(request, timeout_s=10)).status == 200:
                acked[name].add(number)
            if not is_killed and sum(map(len, acked.values())) == BEFORE_KILL:
                is_killed = True
                os.kill(running.shown["processes"][1]["pid"], signal.SIGKILL)

        async def send_all(name: str) -> None:
            for start in range(0, SENT, CONNECTION_SENDS):
                if is_killed and name not in kept:
                    return
                # A connection goes with its process; the next one is new.
                with (
                    closing(HttpPool(running.shown["http_address"], connections_max=1)) as pool,
                    suppress(waterclock.WaterclockError),
                ):
                    for number in range(start, start + CONNECTION_SENDS):
                        await send(pool, name, number)

        await asyncio.gather(*map(send_all, acked))
        assert "is back" in running.line_beginning("process-2 is")
        await running.until_whole()
        for name in kept:
            assert acked[name]
            body = await running.receive_all(name)
            assert {each["message"] for each in body["messages"]} >= acked[name]


def test_a_node_alone_is_refused_the_folder(running):
    data = Path(running.shown["data_folder"])

    alone = subprocess.run(command(data), capture_output=True, text=True, timeout=60)

    assert alone.returncode != 0
    assert "is shared by processes: start it with --processes" in alone.stderr
    assert alone.stderr.count("\n") == 1
