"""Nchan: publish and long polling in nginx, which keeps the last messages of each channel.

One worker, for a node of ours is one process too; all in memory, as our rings are. Its subscribers
all get every message: it knows no receivers that compete. Each says which message it had last.
"""

import gzip
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.client import Stopwatch
from benchmarks.load import BODY, get, names, play, post, send_all
from benchmarks.peers.cache import Programs, debian
from benchmarks.peers.server import Server, free_port, started
from benchmarks.polling import Setting, hold, match

NAME = "nchan"
NGINX = "usr/sbin/nginx"
MODULE = "usr/lib/nginx/modules/ngx_nchan_module.so"
CHANGES = "usr/share/doc/libnginx-mod-nchan/changelog.Debian.gz"
SETTINGS = """
load_module {module};
daemon off;
worker_processes 1;
worker_rlimit_nofile {files};
pid {folder}/nginx.pid;
error_log {folder}/error.log crit;
events {{ worker_connections {files}; }}
http {{
  access_log off;
  keepalive_timeout 1h;
  keepalive_requests 1000000000;
  nchan_shared_memory_size 1G;
  nchan_message_buffer_length 100;
  nchan_message_timeout 1h;
  nchan_channel_timeout 1h;
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location = /pub {{ nchan_publisher; nchan_channel_id $arg_id; }}
    location = /sub {{
      nchan_subscriber longpoll;
      nchan_subscriber_first_message oldest;
      nchan_channel_id $arg_id;
    }}
    location = /next {{
      nchan_subscriber longpoll;
      nchan_subscriber_first_message newest;
      nchan_channel_id $arg_id;
    }}
  }}
}}
"""
FILES = 16_384
THEIR_FOLDER, OUR_FOLDER = b"/var/lib/nginx/", b"temporary-of-a-"
"""Both of the same length."""


def programs() -> Programs:
    """Fetch it: where nginx is in the system, this module of it need not be."""
    return debian("libnginx-mod-nchan", [NAME])


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    """Run nginx."""
    its, port = programs(), free_port()
    folder.mkdir(parents=True)
    file = folder / "nginx.conf"
    module = _movable(its, MODULE, folder)
    facts = {"module": module, "folder": folder, "port": port, "files": FILES}
    file.write_text(SETTINGS.format(**facts))
    nginx = _movable(its, NGINX, folder)
    command: list[str | Path] = [nginx, "-p", folder, "-c", file, "-e", folder / "error.log"]
    with started(command, folder=folder, port=port, environ=its.environ()) as server:
        server.version = _version(its)
        yield server


def _movable(its: Programs, name: str, folder: Path) -> Path:
    """Copy a part of nginx, and have the copy keep its temporary files in our folder.

    Debian compiles in paths below /var/lib, also into the module, where no setting changes them. A
    path that does not begin with a slash is one in the folder.
    """
    program = Path(its.find(name))
    copy = folder / program.name
    copy.write_bytes(program.read_bytes().replace(THEIR_FOLDER, OUR_FOLDER))
    copy.chmod(0o755)
    return copy


def _version(its: Programs) -> str:
    assert its.root is not None
    with gzip.open(its.root / CHANGES, "rt") as changes:
        found = re.search(r"\((?:\d+:)?(\d+(\.\d+)+)", changes.readline())
    return found.group(1) if found else "unknown"


def publish_to(name: str, body: bytes = BODY) -> bytes:
    """Encode a publish."""
    return post(f"/pub?id={name}", body)


def receive_from(name: str) -> bytes:
    """Encode a long poll that gets the oldest message there is."""
    return get(f"/sub?id={name}")


# Clients


def send(watch: Stopwatch, port: int, *, streams: int, seconds: int) -> None:
    """Publish."""
    play(watch, port, [publish_to(name) for name in names("send", streams)], seconds=seconds)


def receive(watch: Stopwatch, port: int, *, streams: int, seconds: int, messages: int) -> None:
    """Receive a message that is there: its oldest, which stays."""
    found = names("receive", streams)
    send_all(port, [publish_to(name) for name in found])
    play(watch, port, [receive_from(name) for name in found], seconds=seconds)


def send_receive(watch: Stopwatch, port: int, *, streams: int, seconds: int) -> None:
    """Publish to each channel in turn and receive from it."""
    both = [
        request
        for name in names(f"both-{streams}", streams)
        for request in (publish_to(name), receive_from(name))
    ]
    play(watch, port, both, seconds=seconds)


def poll_send(watch: Stopwatch, port: int, *, streams: int, seconds: int) -> None:
    """Wait for the next message of each channel in turn, and publish it."""
    both = [
        request
        for name in names("next", streams)
        for request in (get(f"/next?id={name}"), publish_to(name))
    ]
    play(watch, port, both, seconds=seconds)


# Polls that wait

LAST = re.compile(rb"\r\nLast-Modified: ([^\r]+)\r\n(?:.*\r\n)*?Etag: ([^\r]+)\r\n", re.IGNORECASE)


class NchanTalk:
    """How a subscriber and a publisher talk to it."""

    def send(self, stream: str, body: bytes) -> bytes:
        """Encode a publish."""
        return publish_to(stream, body)

    def poll(self, stream: str, waiter: int, answer: bytes) -> bytes:
        """Encode a poll for what follows an answer."""
        if not answer:
            return receive_from(stream)
        found = LAST.search(answer)
        if found is None:
            raise RuntimeError(f"no message id in {answer!r}")
        headers = b"If-Modified-Since: %b\r\nIf-None-Match: %b\r\n" % found.groups()
        return get(f"/sub?id={stream}", headers)


def broadcast(watch: Stopwatch, port: int, **setting: int) -> None:
    """Publish at a rate to channels on each of which some wait."""
    match(watch, port, NchanTalk(), Setting(**setting, is_broadcast=True))


def waiters(watch: Stopwatch, port: int, *, polls: int) -> None:
    """Let polls wait; tell what the memory grew by."""
    hold(watch, port, NchanTalk(), polls=polls)
