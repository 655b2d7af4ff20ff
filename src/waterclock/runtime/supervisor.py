"""Telling the supervisor that started this process how far it is: ready, reloading, stopping.

The protocol is that of systemd (sd_notify(3)): datagrams of lines `NAME=value` to the socket that
`NOTIFY_SOCKET` names. Without that variable nobody asked to be told.
"""

import logging
import os
import socket
import time

log = logging.getLogger(__name__)


def tell_ready() -> None:
    """Say that requests are served: for the first time, or after `tell_reloading`."""
    _tell("READY=1")


def tell_reloading() -> None:
    """Say that settings are being read again. You must say `tell_ready` when that is done."""
    _tell(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1_000}")


def tell_stopping() -> None:
    """Say that the process has begun to end."""
    _tell("STOPPING=1")


def _tell(lines: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address[0] == "@":  # a name of Linux's abstract namespace
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.setblocking(False)
            channel.sendto(lines.encode(), address)
    except OSError as error:
        # A node that runs is worth more than one that is known to; the supervisor's own time limit
        # decides what to do about it.
        log.warning("supervisor_not_told error=%s", error)
