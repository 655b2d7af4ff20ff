"""Who knows the secret, or shows the right certificate, is let in; everybody else is not."""

import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.server import free_port
from tests.dispatch.certificates import Files, certificates
from tests.dispatch.programs import Fleet, Program, fleet, wait
from tests.dispatch.traffic import numbers, ready, send
from waterclock.dispatch.access import access_of
from waterclock.dispatch.config import DispatcherConfig, WorkerConfig, load_config
from waterclock.dispatch.decoder import Decoder
from waterclock.dispatch.frames import (
    AUTH_BYTES,
    WORKER_READS,
    Auth,
    Close,
    Frame,
    encode_ack_batch,
    encode_auth,
    encode_close,
    encode_hello,
    encode_welcome,
)
from waterclock.dispatch.handshake import Handshake, Role
from waterclock.model.errors import BadConfig

HANDLERS = "tests.dispatch.work_handlers"
NAME = "access"
SECRET = "correct horse battery staple"
HELLO = encode_hello(epoch=0, credit=1_000, name="x")


@pytest.fixture(scope="module")
def programs(server, tmp_path_factory) -> Iterator[Fleet]:
    config = {"redis": [server.address], "prefix": NAME, "output": f"{NAME}-out"}
    with fleet(tmp_path_factory.mktemp(NAME), **config, source=f"{NAME}-in") as programs:
        yield programs


@pytest.fixture(scope="module")
def guarded(programs: Fleet) -> Program:
    """Run a leader that has a secret, with messages that nobody has fetched."""
    dispatcher = programs.start("dispatcher", secret=SECRET)
    ready(dispatcher)
    return dispatcher


@contextmanager
def wire_to(dispatcher: Program) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", dispatcher.said["port"])) as wire:
        wire.settimeout(30)
        yield wire


def all_said(wire: socket.socket) -> list[Frame]:
    """Return what the leader said until it hung up."""
    decoder, frames = Decoder(WORKER_READS), []
    while data := wire.recv(65_536):
        frames += decoder.feed(data)
    return frames


# The secret


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"", "said no hello"),
        (HELLO, "there is a secret here: prove first that you know it"),
        (encode_auth(b"n" * AUTH_BYTES, is_proof=False), "said no hello"),
        (encode_auth(b"n" * AUTH_BYTES, is_proof=True), "a proof before the challenge"),
        (
            encode_auth(b"n" * AUTH_BYTES, is_proof=False)
            + encode_auth(b"p" * AUTH_BYTES, is_proof=True) + HELLO,
            "it does not know the secret",
        ),
        (encode_ack_batch(epoch=0, uuids=[b"u" * 16]), "command 8 is not for this side"),
    ],
    ids=["silent", "hello", "challenge", "proof", "wrong proof", "ack"],
)  # fmt: skip
def test_who_does_not_know_the_secret_gets_a_nonce_and_no_message(
    guarded: Program, look, said: bytes, reason: str
):
    send(look, "stream", f"{NAME}-in", [{"n": 0}])

    with wire_to(guarded) as wire:
        wire.sendall(said)
        challenge, close = all_said(wire)

    assert isinstance(challenge, Auth)
    assert not challenge.is_proof
    assert isinstance(close, Close)
    assert close.reason == reason
    assert guarded.said["workers"] == 0


def test_a_proof_that_was_heard_before_is_of_no_use(guarded: Program):
    heard: list[bytes] = []
    close: Frame | None = None
    for _ in range(2):
        with wire_to(guarded) as wire:
            (challenge,) = Decoder(WORKER_READS).feed(wire.recv(65_536))
            assert isinstance(challenge, Auth)
            worker = Handshake(SECRET.encode(), Role.WORKER, nonce=b"w" * AUTH_BYTES)
            heard.append(worker.heard(challenge))
            wire.sendall(worker.begin() + heard[0])
            if len(heard) == 1:
                assert wire.recv(65_536)[:2] == b"\x01\x0b"  # the leader's own proof
            else:
                close = all_said(wire)[-1]

    assert isinstance(close, Close)
    assert close.reason == "it does not know the secret"


def test_a_stranger_cannot_close_with_an_epoch(guarded: Program):
    epoch = guarded.said["epoch"]
    with wire_to(guarded) as wire:
        wire.sendall(encode_close(epoch=1 << 63, reason="bye"))
        (challenge,) = all_said(wire)

    assert isinstance(challenge, Auth)
    assert guarded.said["epoch"] == epoch


def test_workers_with_the_secret_work_and_others_say_why_not(
    programs: Fleet, guarded: Program, look, tmp_path: Path
):
    wrong = programs.start("worker", secret="another secret of some length")
    none = programs.start("worker")
    log = wrong.log.read_bytes  # of all these programs
    wait(lambda: b"us in yet: it does not know the secret" in log(), what="that one says why")
    wait(lambda: b"us in yet: one side has a secret" in log(), what="that the other does")
    assert guarded.said["workers"] == 0
    wrong.stop()
    none.stop()

    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    worker = programs.start("worker", handler=f"{HANDLERS}:copy", secret=f"@{file}")
    ready(guarded, workers=1)
    send(look, "stream", f"{NAME}-in", [{"n": 7}])
    wait(lambda: 7 in numbers(look, f"{NAME}-out"), what="its message")

    assert worker.stop() == 0
    assert SECRET.encode() not in log()


def test_a_worker_that_listens_takes_leaders_with_the_secret_only(
    server, look, name, tmp_path: Path
):
    config = {"redis": [server.address], "prefix": name, "output": f"{name}-out"}
    with fleet(tmp_path, **config, source=f"{name}-in", secret=SECRET) as programs:
        port = free_port()
        programs.start("worker", handler=f"{HANDLERS}:copy", listen=f"127.0.0.1:{port}")
        dispatcher = programs.start("dispatcher", workers=[f"127.0.0.1:{port}"])
        send(look, "stream", f"{name}-in", [{"n": 1}])
        wait(lambda: dispatcher.count("acked") == 1, what="an acknowledgement")

        with socket.create_connection(("127.0.0.1", port)) as wire:
            wire.settimeout(30)
            epoch = json.loads(look.get(f"{{{name}}}:lock"))["epoch"]
            wire.sendall(
                encode_welcome(epoch=epoch, deadline_ms=1_000, heartbeat_ms=100, silence_ms_max=900)
            )
            said = wire.recv(65_536) + wire.recv(65_536)

    assert b"there is a secret here" in said


# TLS


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Files:
    return certificates(tmp_path_factory.mktemp("certificates"))


def test_with_certificates_both_sides_are_known_and_nothing_older_than_tls_1_3_is_spoken(
    server, look, name, files: Files, tmp_path: Path
):
    config = {"redis": [server.address], "prefix": name, "output": f"{name}-out"}
    with fleet(tmp_path, **config, source=f"{name}-in", **files.settings()) as programs:
        port = free_port()
        dispatcher = programs.start("dispatcher", workers=[f"127.0.0.1:{port}"])
        programs.start("worker", handler=f"{HANDLERS}:copy")
        programs.start("worker", handler=f"{HANDLERS}:copy", listen=f"127.0.0.1:{port}")
        ready(dispatcher, workers=2)
        send(look, "stream", f"{name}-in", ({"n": n} for n in range(100)))
        wait(lambda: dispatcher.count("acked") == 100, what="all of them")

        for at in (dispatcher.said["port"], port):
            assert talks(at, client(files, shows=True)) == "TLSv1.3"
            assert talks(at, client(files, shows=False)) is None
            assert talks(at, client(files, shows=True, most=ssl.TLSVersion.TLSv1_2)) is None
            other = certificates(tmp_path / "others")
            foreign = Files(other.certificate, other.key, files.ca)
            assert talks(at, client(foreign, shows=True)) is None
            with socket.create_connection(("127.0.0.1", at)) as wire:
                wire.settimeout(30)
                wire.sendall(HELLO)
                assert b"\x01\x03" not in wire.recv(1_000)[:2]  # an alert of TLS, no WELCOME


def test_who_does_not_even_hang_up_is_refused_once(server, name, files: Files, tmp_path: Path):
    config = {"redis": [server.address], "prefix": name, **files.settings()}
    with fleet(tmp_path, **config) as programs:
        dispatcher = programs.start("dispatcher", legacy_credit=0)
        ready(dispatcher)
        with silent(dispatcher, files):
            wait(lambda: dispatcher.count("bad_connections") == 1, what="that it is refused")
            with silent(dispatcher, files) as other:
                assert b"said no hello" in other.recv(1_000)  # a second later

            wait(lambda: dispatcher.count("bad_connections") >= 2, what="that this one is, too")
            assert dispatcher.count("bad_connections") == 2


@contextmanager
def silent(dispatcher: Program, files: Files) -> Iterator[ssl.SSLSocket]:
    context = client(files, shows=True)
    with (
        wire_to(dispatcher) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as wire,
    ):
        yield wire


def client(files: Files, *, shows: bool, most: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files.ca)
    if shows:
        context.load_cert_chain(files.certificate, files.key)
    if most is not None:
        context.maximum_version = most
    return context


def talks(port: int, context: ssl.SSLContext) -> str | None:
    """Return the version that a server speaks with us; None if it hangs up."""
    with socket.create_connection(("127.0.0.1", port)) as plain:
        plain.settimeout(30)
        try:
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as wire:
                wire.sendall(b"\x02")  # no frame: a leader and a worker both answer with CLOSE
                return wire.version() if wire.recv(1_000) else None
        except (ssl.SSLError, ConnectionError):
            return None


# Settings


def test_a_secret_or_both_certificates_open_a_port_to_others(files: Files):
    either: list[dict[str, Any]] = [{"secret": SECRET}, files.settings()]
    for settings in either:
        assert DispatcherConfig(host="0.0.0.0", **settings).host == "0.0.0.0"
        assert WorkerConfig(listen="0.0.0.0:1", **settings).listen == "0.0.0.0:1"
    pair: dict[str, Any] = {"certificate": str(files.certificate), "key": str(files.key)}
    with pytest.raises(BadConfig, match="lets in whoever reaches it"):
        DispatcherConfig(host="0.0.0.0", **pair)  # nobody need show anything


def test_silent_workers_prove_nothing_so_a_secret_lets_none_in():
    assert not DispatcherConfig(secret=SECRET).takes_simple_workers
    assert not DispatcherConfig(secret=SECRET, simple_workers="all").takes_simple_workers


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"secret": "too short"}, "dispatch.secret: is too short"),
        ({"secret": "@/no/such/file"}, "dispatch.secret: /no/such/file: No such file"),
        ({"certificate": "/x.pem"}, "dispatch.key: is missing"),
        ({"key": "/x.pem"}, "dispatch.certificate: is missing"),
        ({"certificate": "/x.pem", "key": "/x.key"}, "dispatch.certificate: certificate /x.pem"),
        ({"ca": "/no/such/ca"}, "dispatch.ca: /no/such/ca: No such file"),
        (
            {"certificate": "/x", "key": "/y", "workers": ("h:1",)},
            "dispatch.ca: is needed to know the workers",
        ),
    ],
)
def test_what_cannot_be_right_is_told_before_anything_runs(settings, said):
    with pytest.raises(BadConfig) as caught:
        access_of(DispatcherConfig(**settings), Role.LEADER)

    assert str(caught.value).startswith(f"configuration {said}")


def test_no_repr_shows_a_secret():
    config = DispatcherConfig(secret=SECRET)

    assert SECRET not in repr(config)
    assert SECRET not in repr(access_of(config, Role.LEADER))
    assert SECRET not in repr(WorkerConfig(secret=SECRET))


@pytest.mark.parametrize("planted", ["12345-planted", "12345" * 1_000, 1234567890123456])
def test_no_error_shows_a_secret(planted):
    with pytest.raises(BadConfig) as caught:
        access_of(
            load_config(
                DispatcherConfig, yaml_text=None, environ={}, flags={"dispatch.secret": planted}
            ),
            Role.LEADER,
        )

    assert "12345" not in str(caught.value)
