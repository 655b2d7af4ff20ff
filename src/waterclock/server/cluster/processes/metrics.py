"""Metrics of all processes in one answer, whichever of them is asked: each with a label `process`.

Behind a port that processes share a scrape reaches any of them, and counters would seem to jump. So
the one that is asked asks the others. One that is away is missing until it is back, as a target of
its own would be.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from waterclock.model.errors import NotLeader, Unreachable
from waterclock.server.cluster.calls.whole_answer import Lost
from waterclock.server.cluster.cluster import Cluster
from waterclock.server.http.messages import Request, Response
from waterclock.server.http.operations import Operation

PATH: Final = "/metrics"
ASK_S: Final = 5.0
_SAMPLE = re.compile(rb"^([^\s{]+)(\{?)", re.MULTILINE)
_FAMILY = re.compile(rb"^# HELP ", re.MULTILINE)


def own_metrics(operations: Iterable[Operation]) -> list[Operation]:
    """Return what a process answers to others that ask for its metrics."""
    return [each for each in operations if each.path == PATH]


def of_all(operations: Sequence[Operation], cluster: Cluster, me: str) -> list[Operation]:
    """Return operations as a process offers them to clients: with the metrics of all."""
    return [
        replace(each, handler=_AllMetrics(each, cluster, me).answer) if each.path == PATH else each
        for each in operations
    ]


class _AllMetrics:
    def __init__(self, own: Operation, cluster: Cluster, me: str) -> None:
        self._own = own
        self._cluster = cluster
        self._me = me

    async def answer(self, request: Request) -> Response:
        """Answer with the metrics of all processes that can be asked."""
        names = sorted(self._cluster.peers.linked)
        others = await asyncio.gather(*(self._asked(each, request) for each in names))
        own: Any = self._own.handler(request)
        mine: Response = await own
        found = {self._me: mine.body}
        found |= {name: other.body for name, other in zip(names, others, strict=True) if other}
        return Response(200, merged(found), mine.content_type)

    async def _asked(self, name: str, request: Request) -> Response | None:
        forwarder = self._cluster.forwarder
        if forwarder is None:
            return None
        try:
            async with asyncio.timeout(ASK_S):
                answer = await forwarder.ask_for(name, request, ())
        except (NotLeader, Unreachable, Lost, TimeoutError):
            return None
        return answer if answer.status == 200 else None


def merged(texts: Mapping[str, bytes]) -> bytes:
    """Return the metrics of some processes as one text, each family once."""
    families: dict[bytes, list[bytes]] = {}
    for name, text in texts.items():
        label = b'process="%s"' % name.encode()
        for block in _FAMILY.split(text)[1:]:
            help_line, type_line, samples = (*block.split(b"\n", 2), b"")[:3]
            head = b"# HELP %s\n%s\n" % (help_line, type_line)
            families.setdefault(head, []).append(_labelled(samples, label))
    return b"".join(part for head, parts in families.items() for part in (head, *parts))


def _labelled(samples: bytes, label: bytes) -> bytes:
    def name_and_label(found: "re.Match[bytes]") -> bytes:
        name, brace = found.groups()
        return b"%s{%s%s" % (name, label, b"," if brace else b"}")

    return _SAMPLE.sub(name_and_label, samples)
