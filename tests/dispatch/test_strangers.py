"""What somebody who is no worker of ours can do at the port of a leader: next to nothing.

One dispatcher serves all of it, for none of these may hurt it.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.peers.server import free_port
from tests.dispatch.programs import Program, fleet, wait
from tests.dispatch.traffic import ready, send
from waterclock.cli.app import app
from waterclock.dispatch.config import DispatcherConfig, WorkerConfig
from waterclock.dispatch.core.lease import DOUBT_MS, Ask, Call, Lease, LeaseConfig
from waterclock.dispatch.decoder import Decoder
from waterclock.dispatch.frames import (
    WORKER_READS,
    Close,
    Frame,
    ProcessBatch,
    Welcome,
    encode_close,
    encode_credit,
    encode_hello,
)
from waterclock.dispatch.links import printable
from waterclock.model.errors import BadConfig

NAME = "strangers"
CREDIT_MAX = 10


@pytest.fixture(scope="module")
def dispatcher(server, tmp_path_factory) -> Iterator[Program]:
    """Run a leader for all of these."""
    config = {"redis": [server.address], "prefix": NAME, "output": f"{NAME}-out"}
    with fleet(tmp_path_factory.mktemp(NAME), **config, source=f"{NAME}-in") as programs:
        leader = programs.start("dispatcher", credit_max=CREDIT_MAX, lease_ms=60_000)
        ready(leader)
        yield leader


class Stranger:
    """A connection to the leader."""

    def __init__(self, wire: socket.socket) -> None:
        self._wire = wire
        self._decoder = Decoder(WORKER_READS)
        self._frames: list[Frame] = []

    def say(self, *frames: bytes) -> None:
        self._wire.sendall(b"".join(frames))

    def heard(self) -> Iterator[Frame]:
        """Yield what the leader says until it hangs up."""
        while True:
            while self._frames:
                yield self._frames.pop(0)
            if not (data := self._wire.recv(65_536)):
                return
            self._frames += self._decoder.feed(data)

    def next(self, kind: type[Frame]) -> Frame:
        return next(frame for frame in self.heard() if isinstance(frame, kind))


@contextmanager
def stranger(dispatcher: Program) -> Iterator[Stranger]:
    with socket.create_connection(("127.0.0.1", dispatcher.said["port"])) as wire:
        wire.settimeout(30)
        yield Stranger(wire)


@pytest.mark.parametrize("epoch", [(1 << 63), (1 << 64) - 1])
def test_a_hello_with_a_huge_epoch_is_refused_and_deposes_nobody(dispatcher: Program, epoch):
    before = dispatcher.said["epoch"]

    with stranger(dispatcher) as wire:
        wire.say(encode_hello(epoch=epoch, credit=1, name="x"))
        (said,) = wire.heard()

    assert said == Close(before, f"epoch {epoch} is above ours, {before}")
    assert leads_still(dispatcher) == before


def test_a_close_with_a_huge_epoch_deposes_nobody(dispatcher: Program):
    before = dispatcher.said["epoch"]

    with stranger(dispatcher) as wire:
        wire.say(encode_close(epoch=1 << 63, reason="bye"))
        assert list(wire.heard()) == []

    assert leads_still(dispatcher) == before


def leads_still(dispatcher: Program) -> int:
    """Return the epoch under which a worker is welcomed after all that was said before."""
    with stranger(dispatcher) as wire:
        wire.say(encode_hello(epoch=0, credit=0, name="witness"))
        welcome = wire.next(Welcome)
        assert isinstance(welcome, Welcome)
        return welcome.epoch


@pytest.mark.parametrize("is_later", [False, True], ids=["in the hello", "later"])
def test_a_worker_that_asks_for_everything_gets_its_share(
    dispatcher: Program, look, is_later: bool
):
    with stranger(dispatcher) as wire:
        epoch = dispatcher.said["epoch"]
        wire.say(encode_hello(epoch=0, credit=0 if is_later else 1_000_000, name="greedy"))
        if is_later:
            wire.say(encode_credit(epoch=epoch, credit=1_000_000))
        wire.next(Welcome)
        send(look, "stream", f"{NAME}-in", ({"n": n} for n in range(100)))
        wait(lambda: dispatcher.said["queued"] >= 90, what="the rest waits")
        batch = wire.next(ProcessBatch)

        assert isinstance(batch, ProcessBatch)
        assert dispatcher.said["pending"] <= CREDIT_MAX


def test_a_worker_never_holds_more_than_half_of_the_leaders_memory():
    config = DispatcherConfig(queue_messages_max=1_000, credit_max=1_000_000)

    assert config.worker_credit_max == 500


# Who is let in


def test_only_this_machine_is_let_in_unless_it_is_said():
    assert DispatcherConfig().host == "127.0.0.1"
    assert WorkerConfig().metrics_host == "127.0.0.1"
    for host in ("127.0.0.2", "::1", "localhost"):
        DispatcherConfig(host=host)
        WorkerConfig(listen=f"{host}:1")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "redis.example", "localhost.evil"])
def test_a_port_that_others_reach_must_be_asked_for(host):
    with pytest.raises(BadConfig, match=r"dispatch\.host: .* lets in whoever reaches it"):
        DispatcherConfig(host=host)
    with pytest.raises(BadConfig, match=r"worker\.listen: .* lets in whoever reaches it"):
        WorkerConfig(listen=f"{host}:7711")

    assert DispatcherConfig(host=host, is_insecure=True).host == host
    assert WorkerConfig(listen=f"{host}:7711", is_insecure=True).listen == f"{host}:7711"


def test_who_says_nothing_is_a_worker_on_loopback_only():
    assert DispatcherConfig().takes_simple_workers
    assert not DispatcherConfig(host="0.0.0.0", is_insecure=True).takes_simple_workers
    everywhere = DispatcherConfig(host="0.0.0.0", is_insecure=True, simple_workers="all")
    assert everywhere.takes_simple_workers


@pytest.mark.parametrize(
    ("settings", "host"), [({}, "127.0.0.2"), ({"metrics_host": "127.0.0.3"}, "127.0.0.3")]
)
def test_metrics_are_served_where_the_dispatcher_listens_and_an_open_port_is_said(
    server, name, tmp_path: Path, settings, host
):
    port = free_port()
    with fleet(tmp_path, redis=[server.address], prefix=name) as programs:
        dispatcher = programs.start(
            "dispatcher", host="127.0.0.2", is_insecure=True, metrics_port=port, **settings
        )
        ready(dispatcher)

        served = [at for at in ("127.0.0.1", "127.0.0.2", "127.0.0.3") if is_open(at, port)]

    assert served == [host]
    assert b"insecure port=0 whoever_reaches_it_can=take_messages" in dispatcher.log.read_bytes()


def is_open(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


@pytest.mark.parametrize(
    ("command", "setting"),
    [
        (["dispatch", "--host", "0.0.0.0"], "dispatch.host"),
        (["worker", "--set", "listen=0.0.0.0:7711"], "worker.listen"),
    ],
)
def test_the_command_line_says_what_an_open_port_needs(command, setting):
    said = CliRunner().invoke(app, command)

    assert said.exit_code == 2
    assert setting in said.output
    assert "--insecure" in said.output


# What they say of epochs is asked of Redis


def test_a_leader_that_is_doubted_asks_redis_and_not_more_often_than_it_may():
    lease = Lease(LeaseConfig(lease_ms=2_000), None)  # type: ignore[arg-type]
    assert lease.tick(1_000) == [Ask(Call.ACQUIRE, 1_000)]
    lease.acquired(7, asked_ms=1_000, now_ms=1_001)

    lease.doubted(1_002)
    assert lease.next_deadline() == 1_000 + DOUBT_MS
    lease.doubted(1_050)
    assert lease.tick(1_100) == [Ask(Call.RENEW, 1_100)]
    lease.doubted(1_100)
    assert lease.tick(1_101) == []

    lease.renewed(asked_ms=1_100, now_ms=1_102)
    assert lease.is_held(1_102)
    lease.doubted(1_300)
    assert lease.tick(1_300) == [Ask(Call.RENEW, 1_300)]


def test_a_standby_that_is_doubted_asks_for_nothing():
    lease = Lease(LeaseConfig(), None)  # type: ignore[arg-type]

    lease.doubted(1_000)

    assert lease.next_deadline() == 0


# What they say goes to the log


def test_what_they_say_stays_on_one_line_of_the_log(dispatcher: Program):
    forged = "x\n2026-01-01 00:00:00 waterclock forged epoch=1\r\x1b[2J\u2028\x85"
    with stranger(dispatcher) as wire:
        wire.say(encode_close(epoch=0, reason=forged))
        assert list(wire.heard()) == []

    wait(lambda: b"worker_closes" in dispatcher.log.read_bytes(), what="it is logged")
    lines = [line for line in dispatcher.log.read_text().splitlines() if "forged epoch=1" in line]
    assert all("worker_closes" in line for line in lines)
    assert len(lines) == 1
    assert len(printable(forged).splitlines()) == 1
    assert printable("Grüße, 水") == "Grüße, 水"
