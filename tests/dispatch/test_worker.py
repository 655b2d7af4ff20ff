"""A worker and a leader made by hand: which frames it obeys, and which it refuses.

The worker is a process; the test is its leader, at the port the worker listens on.
"""

import itertools
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

import pytest

from benchmarks.peers.server import free_port
from tests.dispatch.programs import Fleet, fleet, wait
from waterclock.dispatch.decoder import Decoder
from waterclock.dispatch.frames import (
    ACK_BATCH,
    CLOSE,
    CREDIT,
    HEARTBEAT,
    HELLO,
    NACK,
    PROGRESS,
    AckBatch,
    Close,
    Credit,
    Frame,
    Heartbeat,
    Hello,
    Nack,
    Progress,
    encode_heartbeat,
    encode_process_batch,
    encode_process_message,
    encode_welcome,
)
from waterclock.dispatch.redis.keys import Keys, beside

HANDLERS = "tests.dispatch.work_handlers"
READS = (HELLO, CREDIT, PROGRESS, NACK, ACK_BATCH, CLOSE, HEARTBEAT)
_numbers = itertools.count(1)


F = TypeVar("F", bound=Frame)


class HandmadeLeader:
    """A connection to a worker, in the role of a leader."""

    def __init__(
        self, wire: socket.socket, *, epoch: int, take_lock: Callable[[int], None]
    ) -> None:
        self.epoch = epoch
        self._take_lock = take_lock
        self._wire = wire
        self._wire.settimeout(30)
        self._decoder = Decoder(READS)
        self._frames: list[Frame] = []

    def close(self) -> None:
        """Hang up."""
        self._wire.close()

    def welcome(
        self, *, deadline_ms: int = 60_000, heartbeat_ms: int = 10_000,
        silence_ms_max: int = 60_000, is_elected: bool = True,
    ) -> None:  # fmt: skip
        """Answer the worker's hello, as the holder of the lock."""
        if is_elected:
            self.take_lock()
        self.send(
            encode_welcome(
                epoch=self.epoch, deadline_ms=deadline_ms, heartbeat_ms=heartbeat_ms,
                silence_ms_max=silence_ms_max,
            )
        )  # fmt: skip

    def take_lock(self) -> None:
        """Let Redis say that it leads."""
        self._take_lock(self.epoch)

    def send(self, frame: bytes) -> None:
        """Send a frame."""
        self._wire.sendall(frame)

    def hand(self, *bodies: bytes, epoch: int | None = None) -> list[bytes]:
        """Hand out messages that were born now; return their uuids."""
        uuids = [next(_numbers).to_bytes(16, "big") for _ in bodies]
        self.send(
            encode_process_batch(
                epoch=self.epoch if epoch is None else epoch, deliveries=1, uuids=uuids,
                births_ms=[time.time_ns() // 1_000_000] * len(bodies), bodies=bodies,
            )
        )  # fmt: skip
        return uuids

    def next(self, kind: type[F]) -> F:
        """Return the next frame of a kind; others are passed over."""
        while True:
            while self._frames:
                frame = self._frames.pop(0)
                if isinstance(frame, kind):
                    return frame
            data = self._wire.recv(65_536)
            assert data, f"hung up before any {kind}"
            self._frames += self._decoder.feed(data)

    def is_hung_up_on(self) -> bool:
        """Return once the worker has closed the connection."""
        try:
            while self._wire.recv(65_536):
                pass
        except ConnectionResetError:
            pass
        return True


@pytest.fixture
def programs(server, name, tmp_path):
    """Give what starts workers with keys of their own."""
    config = {"redis": [server.address], "prefix": name, "output": f"{name}-out"}
    with fleet(tmp_path, **config) as programs:
        yield programs


Led = Callable[..., AbstractContextManager[HandmadeLeader]]


@pytest.fixture
def led(look, name) -> Led:
    """Give what connects to a worker as its leader."""

    def take_lock(epoch: int) -> None:
        # Nobody listens at that port: the worker is to take the leader that dials it.
        value = {"host": "127.0.0.1", "port": 1, "token": "t", "epoch": epoch}
        look.set(Keys(name).lock, json.dumps(value))

    @contextmanager
    def connected(port: int, *, epoch: int) -> Iterator[HandmadeLeader]:
        def is_there() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        wait(is_there, what="a worker that listens")
        wire = socket.create_connection(("127.0.0.1", port))
        leader = HandmadeLeader(wire, epoch=epoch, take_lock=take_lock)
        try:
            hello = leader.next(Hello)
            assert isinstance(hello, Hello)
            yield leader
        finally:
            leader.close()

    return connected


def test_a_worker_says_hello_and_acknowledges_what_it_wrote(programs: Fleet, led: Led, look, name):
    port = free_port()
    programs.start("worker", handler=f"{HANDLERS}:copy", listen=f"127.0.0.1:{port}", name="w-1")

    with led(port, epoch=5) as leader:
        leader.welcome()
        uuids = leader.hand(b'{"n": 1}', b'{"n": 2}')
        acked: set[bytes] = set()
        while len(acked) < 2:
            frame = leader.next(AckBatch)
            assert isinstance(frame, AckBatch)
            assert frame.epoch == 5
            acked |= set(frame.uuids)

    assert acked == set(uuids)
    assert look.xlen(f"{name}-out") == 2


def test_a_worker_that_its_leader_dials_too_hangs_up_once_all_is_answered(
    programs: Fleet, led: Led, look, name
):
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as server:
        value = {"host": "127.0.0.1", "port": server.getsockname()[1], "token": "t", "epoch": 5}
        look.set(Keys(name).lock, json.dumps(value))
        programs.start("worker", handler=f"{HANDLERS}:slow", listen=f"127.0.0.1:{port}")
        server.settimeout(30)
        dialled = HandmadeLeader(server.accept()[0], epoch=5, take_lock=lambda epoch: None)
        dialled.welcome(is_elected=False)
        uuids = dialled.hand(b'{"n": 1, "seconds": 0.5}')

        with led(port, epoch=5) as leader:
            leader.welcome(is_elected=False)

            while dialled.next(Credit).credit:
                pass
            assert dialled.next(AckBatch).uuids == uuids
            assert dialled.is_hung_up_on()
            assert leader.hand(b'{"n": 2}') == leader.next(AckBatch).uuids
        dialled.close()


def test_frames_of_an_older_leader_are_refused_counted_and_answered(
    programs: Fleet, led: Led, look, name
):
    port = free_port()
    worker = programs.start("worker", handler=f"{HANDLERS}:copy", listen=f"127.0.0.1:{port}")

    with led(port, epoch=5) as old, led(port, epoch=6) as new:
        old.welcome()
        old.hand(b'{"n": 1}')
        old.next(AckBatch)
        new.welcome()
        new.hand(b'{"n": 2}')
        new.next(AckBatch)
        old.hand(b'{"n": 3}', b'{"n": 4}')  # it slept, and does not know

        said = old.next(Close)
        assert said == Close(6, "epoch 5 is over")
        assert old.is_hung_up_on()
        new.hand(b'{"n": 5}')
        new.next(AckBatch)

    wait(lambda: worker.count("refused_messages") == 2, what="that they are counted")
    assert worker.count("refused_frames") == 1
    assert sorted(int(f[b"n"]) for _, f in look.xrange(f"{name}-out")) == [1, 2, 5]


def test_a_leader_that_comes_with_an_old_epoch_is_told_so(programs: Fleet, led: Led):
    port = free_port()
    programs.start("worker", handler=f"{HANDLERS}:copy", listen=f"127.0.0.1:{port}")

    with led(port, epoch=6) as new:
        new.welcome()
        new.hand(b'{"n": 1}')
        new.next(AckBatch)
        with led(port, epoch=5) as old:
            old.welcome(is_elected=False)
            assert old.next(Close) == Close(6, "epoch 5 is over")


def test_a_write_under_an_epoch_that_is_over_is_refused_by_redis_and_not_acknowledged(
    programs: Fleet, led: Led, look, name
):
    port = free_port()
    worker = programs.start("worker", handler=f"{HANDLERS}:copy", listen=f"127.0.0.1:{port}")
    look.set(beside(f"{name}-out", f"fence:{name}"), 7)  # a leader that this worker has not met

    with led(port, epoch=5) as leader:
        leader.welcome()
        leader.hand(b'{"n": 1}')
        assert isinstance(leader.next(Close), Close)

    wait(lambda: worker.count("refused_writes") == 1, what="that it is counted")
    assert look.xlen(f"{name}-out") == 0


def test_a_message_born_before_the_window_is_given_back_for_good(
    programs: Fleet, led: Led, look, name
):
    port = free_port()
    programs.start("worker", handler=f"{HANDLERS}:copy", listen=f"127.0.0.1:{port}")

    with led(port, epoch=5) as leader:
        leader.welcome()
        leader.send(
            encode_process_batch(
                epoch=5, deliveries=1, uuids=[b"u" * 16], births_ms=[1_000], bodies=[b'{"n": 1}'],
            )
        )  # fmt: skip
        frame = leader.next(Nack)

    assert frame == Nack(5, [b"u" * 16], "older than the dedup window", True)
    assert look.xlen(f"{name}-out") == 0


def test_reasons_are_given_and_say_whether_a_retry_helps(programs: Fleet, led: Led):
    port = free_port()
    programs.start("worker", handler=f"{HANDLERS}:picky", listen=f"127.0.0.1:{port}")

    with led(port, epoch=5) as leader:
        leader.welcome()
        for body, reason, is_permanent in (
            (b'{"do": "permanent"}', "PermanentError: cannot be", True),
            (b'{"do": "always"}', "ValueError: not this time", False),
        ):
            uuids = leader.hand(body)
            assert leader.next(Nack) == Nack(5, uuids, reason, is_permanent)


def test_credit_grows_with_what_gets_done(programs: Fleet, led: Led):
    port = free_port()
    programs.start(
        "worker", handler=f"{HANDLERS}:copy", listen=f"127.0.0.1:{port}", concurrency=2, credit=64
    )

    with led(port, epoch=5) as leader:
        leader.welcome()
        for _ in range(20):
            leader.hand(*[b'{"n": 1}'] * 16)
        frame = leader.next(Credit)

    assert frame == Credit(5, 32)


def test_a_worker_that_works_says_so_and_one_that_idles_sends_signs_of_life(
    programs: Fleet, led: Led
):
    port = free_port()
    programs.start("worker", handler=f"{HANDLERS}:slow", listen=f"127.0.0.1:{port}")

    with led(port, epoch=5) as leader:
        leader.welcome(deadline_ms=400, heartbeat_ms=200)
        assert leader.next(Heartbeat) == Heartbeat(5)
        uuids = leader.hand(b'{"n": 1, "seconds": 1}')
        assert leader.next(Progress) == Progress(5, uuids)
        assert leader.next(AckBatch) == AckBatch(5, uuids)


def test_a_leader_that_falls_silent_is_left(programs: Fleet, led: Led):
    port = free_port()
    programs.start("worker", handler=f"{HANDLERS}:copy", listen=f"127.0.0.1:{port}")

    with led(port, epoch=5) as leader:
        leader.welcome(deadline_ms=400, heartbeat_ms=100, silence_ms_max=300)
        leader.send(encode_heartbeat(epoch=5))
        assert leader.is_hung_up_on()


def test_the_simple_frame_is_not_for_a_worker_that_said_hello(programs: Fleet, led: Led):
    port = free_port()
    programs.start("worker", handler=f"{HANDLERS}:copy", listen=f"127.0.0.1:{port}")

    with led(port, epoch=5) as leader:
        leader.welcome()
        uuid = bytes.fromhex("0123456789ab4def8123456789abcdef")
        leader.send(encode_process_message(uuid, b"{}"))
        assert leader.next(Close) == Close(5, "a worker that says hello takes batches")


def test_garbage_from_a_leader_ends_the_connection_and_not_the_worker(programs: Fleet, led: Led):
    port = free_port()
    programs.start("worker", handler=f"{HANDLERS}:copy", listen=f"127.0.0.1:{port}")

    with led(port, epoch=5) as leader:
        leader.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        assert isinstance(leader.next(Close), Close)
    with led(port, epoch=5) as leader:
        leader.welcome()
        leader.hand(b'{"n": 1}')
        leader.next(AckBatch)


@pytest.mark.parametrize("epoch", [0, 1 << 63])
def test_a_leader_that_redis_does_not_know_is_left_and_locks_nobody_out(
    programs: Fleet, led: Led, look, name, epoch
):
    port = free_port()
    programs.start("worker", handler=f"{HANDLERS}:copy", listen=f"127.0.0.1:{port}")

    with led(port, epoch=epoch) as fake, led(port, epoch=5) as leader:
        fake.welcome(is_elected=False)
        fake.hand(b'{"n": 666}')
        leader.welcome()
        leader.hand(b'{"n": 1}')

        leader.next(AckBatch)
        assert fake.next(Close) == Close(5, f"epoch {epoch} is not that of the lock")

    assert [int(fields[b"n"]) for _, fields in look.xrange(f"{name}-out")] == [1]


def test_a_leader_is_believed_once_the_lock_has_its_epoch(programs: Fleet, led: Led):
    port = free_port()
    programs.start("worker", handler=f"{HANDLERS}:copy", listen=f"127.0.0.1:{port}")

    with led(port, epoch=5) as leader:
        leader.welcome(is_elected=False)
        uuids = leader.hand(b'{"n": 1}')
        leader.take_lock()

        assert leader.next(AckBatch) == AckBatch(5, uuids)
