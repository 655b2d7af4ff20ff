"""Workers that show the credential of a node: who may consume the source is let in, until that is
revoked."""

import socket
import ssl
from pathlib import Path

import pytest

from tests.dispatch.programs import fleet, wait
from tests.dispatch.traffic import ready, send
from waterclock.dispatch.access import access_of_dispatcher, access_of_worker
from waterclock.dispatch.config import DispatcherConfig, WorkerConfig
from waterclock.dispatch.credentials import AskedToken, KnownWorkers
from waterclock.dispatch.decoder import Decoder
from waterclock.dispatch.frames import (
    AUTH_BYTES,
    WORKER_READS,
    Auth,
    Close,
    Token,
    encode_hello,
    encode_token,
)
from waterclock.model.errors import BadConfig, NotAuthenticated
from waterclock.model.units import DAY_MS
from waterclock.runtime.clock import SystemClock
from waterclock.security.credential import Credential
from waterclock.security.folder import Grant, SecureFolder
from waterclock.security.rights import parse_rights
from waterclock.security.tls import client_context


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> SecureFolder:
    folder = SecureFolder(tmp_path_factory.mktemp("data") / "secure")
    folder.make(grpc_port=1, http_port=2, now_ms=SystemClock().now_ms())
    return folder


def credential_of(folder: SecureFolder, name: str, consume: str) -> Credential:
    now_ms = SystemClock().now_ms()
    grant = Grant(rights=parse_rights({"consume": [consume]}), expires_ms=now_ms + DAY_MS)
    credential = folder.add(name, grant, now_ms=now_ms, is_replacing=True)
    assert credential is not None
    return credential


@pytest.mark.parametrize(
    ("consume", "is_let_in"),
    [("*", True), ("readings:workers", True), ("readings:others", False), ("orders", False)],
)
def test_who_may_consume_the_source_in_the_group_is_let_in(folder, consume, is_let_in):
    token = credential_of(folder, "one", consume).token
    asked = KnownWorkers(folder.path, source="readings", group="workers").handshake()
    assert asked.begin() == b""
    if is_let_in:
        assert asked.heard(Token(token)) == b""
    else:
        with pytest.raises(NotAuthenticated, match="one has no right to consume"):
            asked.heard(Token(token))
    assert asked.is_done is is_let_in


def test_what_is_no_good_token_is_refused(folder):
    known = KnownWorkers(folder.path, source="readings", group="workers")
    token = credential_of(folder, "two", "*").token
    for step in (Token("no token"), Token(token), Auth(False, b"n" * AUTH_BYTES)):
        with pytest.raises(NotAuthenticated):  # the folder is older than that principal
            known.handshake().heard(step)


async def test_a_change_of_the_folder_is_seen_and_who_is_revoked_is_told(folder):
    known = KnownWorkers(folder.path, source="readings", group="workers")
    token = credential_of(folder, "three", "*").token
    await known.look()
    asked = known.handshake()
    asked.heard(Token(token))
    with pytest.raises(NotAuthenticated, match="once"):
        asked.heard(Token(token))
    asked.recheck()

    folder.revoke("three")
    await known.look()

    with pytest.raises(NotAuthenticated, match="revoked"):
        asked.recheck()
    AskedToken(known).recheck()  # of nobody there is nothing to say


def test_settings_that_do_not_go_together_are_refused(folder, tmp_path):
    credential = credential_of(folder, "four", "*").encode()
    with pytest.raises(BadConfig, match="goes without"):
        WorkerConfig(credential=credential, secret="a secret of some length")
    with pytest.raises(BadConfig, match="goes without"):
        WorkerConfig(credential=credential, listen="127.0.0.1:1")
    with pytest.raises(BadConfig, match="goes without"):
        DispatcherConfig(secure=str(folder.path), secret="a secret of some length")
    DispatcherConfig(secure=str(folder.path), host="0.0.0.0")  # others may reach it

    with pytest.raises(BadConfig, match=r"dispatch\.secure"):
        access_of_dispatcher(DispatcherConfig(secure=str(tmp_path / "none")))
    with pytest.raises(BadConfig, match=r"worker\.credential") as refused:
        access_of_worker(WorkerConfig(credential=credential[:-400]))
    assert credential[20:40] not in str(refused.value)
    assert credential not in repr(WorkerConfig(credential=credential))


def said_to(port: int, ca_pem: bytes, frames: bytes) -> bytes:
    """Return all that a leader says until it hangs up."""
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        client_context(ca_pem).wrap_socket(plain, server_hostname="127.0.0.1") as wire,
    ):
        wire.settimeout(30)
        wire.sendall(frames)
        said = b""
        while data := wire.recv(65_536):
            said += data
        return said


def test_a_worker_with_a_credential_works_until_it_is_revoked(
    server, look, name, folder, tmp_path: Path
):
    config = {"redis": [server.address], "prefix": name, "output": f"{name}-out"}
    credential = credential_of(folder, "worker", f"{name}-in:waterclock")
    hello = encode_hello(epoch=0, credit=1_000, name="x")
    with fleet(tmp_path, **config) as programs:
        dispatcher = programs.start("dispatcher", source=f"{name}-in", secure=str(folder.path))
        worker = programs.start("worker", credential=credential.encode())
        ready(dispatcher, workers=1)
        send(look, "stream", f"{name}-in", [{"n": 1}])
        wait(lambda: dispatcher.count("acked") == 1, what="an acknowledgement")
        port = dispatcher.said["port"]

        for frames, reason in (
            (hello, "a credential is asked for here: show it first"),
            (encode_token("none") + hello, "what was sent is no credential"),
        ):
            (close,) = Decoder(WORKER_READS).feed(said_to(port, credential.ca_pem, frames))
            assert isinstance(close, Close)
            assert close.reason == reason
        with pytest.raises(ssl.SSLError):
            ssl.get_server_certificate(
                ("127.0.0.1", port), ca_certs=str(server_of_others(tmp_path))
            )
        folder.rotate(now_ms=SystemClock().now_ms())
        folder.revoke("worker")
        wait(lambda: dispatcher.said["workers"] == 0, what="that it is hung up on")
        wait(lambda: b"revoked" in worker.log.read_bytes(), what="that it says why")
        log = worker.log.read_text()
        assert (
            ssl.get_server_certificate(("127.0.0.1", port)) in folder.node_certificate.read_text()
        )
    assert credential.token.rpartition(".")[2] not in log


def server_of_others(folder: Path) -> Path:
    other = SecureFolder(folder / "other")
    other.make(grpc_port=1, http_port=2, now_ms=SystemClock().now_ms())
    return other.ca
