"""The past over HTTP: replays as lines of JSON.

A replay is a stream of messages, one a line; the last line is `{"finished": true, ...}`. Without
it the stream was cut off. One that has a name goes on where its reader has reported to have come;
it may be reported while the stream lasts, and afterwards.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from waterclock.model.errors import NotFound
from waterclock.model.units import MIB
from waterclock.model.views import Position, ReplayInfo
from waterclock.node.node import Node
from waterclock.node.replay.key_search import BYTES_MAX, ROWS_MAX, KeySearch
from waterclock.node.replay.records import OffsetRange, TimeRange
from waterclock.node.replay.records import Request as ReplayRequest
from waterclock.node.replay.replays import Replay, ReplayBatch
from waterclock.security.rights import Needs
from waterclock.server.cluster.calls.place import META, META_ONCE, Place
from waterclock.server.http.input import body_of, parameters_of
from waterclock.server.http.messages import JSON_LINES, Request, Response, Streamed, json
from waterclock.server.http.operations import Operation, ResponseSpec
from waterclock.server.http.permits import Named
from waterclock.server.rest.models import (
    AnyTopicParameters,
    Base64,
    Earlier,
    MessageResponse,
    Name,
    Offset,
    Partition,
    PositionRequest,
    RequestModel,
    ResponseModel,
    bytes_of,
    past_of,
    render_fields,
)
from waterclock.server.rows import fields_of, in_slices


class ReplayParameters(AnyTopicParameters):
    """What is to be replayed: everything, or what was appended, or due, within times."""

    since: Annotated[Earlier, Meta(description="Appended from then on.")] | None = None
    until: Annotated[Earlier, Meta(description="And before; without it, until now.")] | None = None
    by_due: Annotated[bool, Meta(description="By due times instead.")] = False
    partition: Annotated[Partition, Meta(description="Of this partition only.")] | None = None
    name: Annotated[Name, Meta(description="Remember it, or go on with it.")] | None = None


class ReadParameters(AnyTopicParameters):
    """A partition, from an offset on."""

    partition: Annotated[Partition, Meta(examples=[0])]
    offset: Annotated[Offset, Meta(description="From this one on.")] = 0
    count: Annotated[Offset, Meta(description="So many messages; 0 is all there are.")] = 0
    key: (
        Annotated[
            str,
            Meta(
                description=f"Only of this key, among the next {ROWS_MAX:,} messages or "
                f"{BYTES_MAX // MIB} MiB; the last line says where to go on."
            ),
        ]
        | None
    ) = None
    key_base64: (
        Annotated[Base64, Meta(description="One that is no text; without `key`.")] | None
    ) = None
    end: Annotated[Offset, Meta(description="With a key: only below this one; 0 is no end.")] = 0

    def of_key(self) -> bytes | None:
        """Return the key that is searched for, if one is; raises BadField."""
        if self.key is not None:
            return self.key.encode()
        encoded = UNSET if self.key_base64 is None else self.key_base64
        return bytes_of(UNSET, encoded, "key", "keyBase64")


class ReplayedResponse(MessageResponse, kw_only=True):
    """A message of the past, or the end."""

    partition: int | UnsetType = UNSET
    offset: int | UnsetType = UNSET
    finished: bool = False
    messages: int | UnsetType = UNSET
    """How many there were, at the end."""
    ends: list[Position] | UnsetType = UNSET
    """Of a replay with a name: what to report once all of it is processed."""
    looked_at: int | UnsetType = UNSET
    """Messages among which those of a key were looked for, at the end."""
    next_offset: int | UnsetType = UNSET
    """Where the search for a key goes on, at its end."""
    is_at_end: bool | UnsetType = UNSET
    """Whether the search has come to where the partition ended when it began."""


class NameParameters(RequestModel):
    name: Name


class ReplayDone(RequestModel):
    """How far a reader has come: everything below the offsets is processed."""

    positions: Annotated[tuple[PositionRequest, ...], Meta(min_length=1, max_length=10_000)]


class ReplaysResponse(ResponseModel):
    replays: list[ReplayInfo]


class ReplayApi:
    """Answers questions about the past."""

    def __init__(self, node: Node) -> None:
        self._node = node

    # Replays

    async def replay(self, request: Request) -> Streamed:
        """Send a stretch of the past."""
        asked = parameters_of(request, ReplayParameters)
        wanted = _request(asked, self._node.clock.now_ms())
        replay = await self._node.replays.begin(wanted, name=asked.name or "")
        return Streamed(200, _lines(replay), JSON_LINES, on_over=replay.close)

    async def read(self, request: Request) -> Streamed:
        """Send a partition from an offset on."""
        asked = parameters_of(request, ReadParameters)
        offsets = OffsetRange(asked.offset, asked.count)
        wanted = ReplayRequest(asked.topic, (asked.partition,), None, offsets)
        key = asked.of_key()
        if key is None:
            replay = await self._node.replays.begin(wanted)
            return Streamed(200, _lines(replay), JSON_LINES, on_over=replay.close)
        # The search counts what it finds, and not what it looks at.
        everything = msgspec.structs.replace(wanted, offsets=OffsetRange(asked.offset))
        search = KeySearch(key, start=asked.offset, count=asked.count, end=asked.end)
        replay = await self._node.replays.begin(everything)
        return Streamed(200, _found(replay, search), JSON_LINES, on_over=replay.close)

    async def done(self, request: Request) -> Response:
        """Take note of how far a reader has come."""
        name = parameters_of(request, NameParameters).name
        positions = body_of(request, ReplayDone).positions
        await self._node.replays.report(name, [(one.partition, one.offset) for one in positions])
        return Response(204)

    def list_replays(self, request: Request) -> Response:
        """Return the named replays of topics that the principal may read."""
        may = request.principal.rights.allows
        found = [each for each in self._node.replays.list() if may("read", topic=each.topic)]
        return json(200, ReplaysResponse(replays=found))

    async def delete_replay(self, request: Request) -> Response:
        """Forget a named replay."""
        name = parameters_of(request, NameParameters).name
        if not await self._node.replays.delete(name):
            raise NotFound("replay", name)
        return Response(204)

    def operations(self) -> list[Operation]:
        """Return its part of the table."""
        named = Named("replay", "name", self._node.replays.topic_of)
        return [
            Operation(
                "GET", "/topics/{topic}/replay", self.replay, "replay",
                "Read a stretch of the past, in order, without a group.",
                {200: ResponseSpec("Messages, one a line.", content_type=JSON_LINES)}, tag="past",
                description="Lines of JSON; the last says that it is finished, or it was cut off.",
                parameters=ReplayParameters, problems=(404, 409),
                place=Place(
                    kind="replica", topic="topic", partition="partition", meta_if="name"
                ),
                needs=Needs("read", topic="topic"), named=named,
            ),
            Operation(
                "GET", "/topics/{topic}/partitions/{partition}/messages", self.read, "read",
                "Read a partition from an offset on, without a group.",
                {200: ResponseSpec("Messages, one a line.", content_type=JSON_LINES)}, tag="past",
                description="Lines of JSON; the last says that it is finished, or it was cut off.",
                parameters=ReadParameters, problems=(404, 409),
                place=Place(kind="replica", topic="topic", partition="partition"),
                needs=Needs("read", topic="topic"),
            ),
            Operation(
                "GET", "/replays", self.list_replays, "listReplays", "List the named replays.",
                {200: ResponseSpec("All.", ReplaysResponse)}, tag="past",
                place=META,
                needs=Needs("read", is_list=True),
            ),
            Operation(
                "POST", "/replays/{name}/done", self.done, "reportReplay",
                "Say how far the reader of a named replay has come.",
                {204: ResponseSpec("Noted; durable, or saved now and then while it is read.")},
                tag="past", parameters=NameParameters, body=ReplayDone,
                body_example={"positions": [{"partition": 0, "offset": 10}]},
                description="While it is read, and after: the last line of a replay says what "
                "there is to report when all of it is processed. Again is harmless.",
                problems=(404, 507), is_last_to_stop=True,
                place=META,
                needs=Needs("read", topic="name"), named=named,
            ),
            Operation(
                "DELETE", "/replays/{name}", self.delete_replay, "deleteReplay",
                "Forget a named replay.", {204: ResponseSpec("It is forgotten.")}, tag="past",
                parameters=NameParameters, problems=(404, 507),
                place=META_ONCE,
                needs=Needs("read", topic="name"), named=named, is_change=True,
            ),
        ]  # fmt: skip


async def _lines(replay: Replay) -> AsyncIterator[bytes]:
    async for batch in replay:
        for piece in _pieces(batch):
            yield piece
    last = ReplayedResponse(
        finished=True,
        messages=replay.messages,
        ends=_at(replay.ends) if replay.name else UNSET,
    )
    yield msgspec.json.encode(last) + b"\n"


async def _found(replay: Replay, search: KeySearch) -> AsyncIterator[bytes]:
    """Yield lines of the messages of a key, and how far it was looked for them."""
    async for picked in search.batches(replay):
        for piece in _pieces(picked):
            yield piece
    last = ReplayedResponse(
        finished=True,
        messages=search.found,
        looked_at=search.rows,
        next_offset=search.next_offset,
        is_at_end=search.is_at_end,
    )
    yield msgspec.json.encode(last) + b"\n"


def _pieces(batch: ReplayBatch) -> "list[bytes]":
    pieces = []
    for bounds, rows, times in in_slices(batch.messages):
        offsets = [o for i in range(0, len(bounds), 2) for o in range(bounds[i], bounds[i + 1])]
        lines = [
            ReplayedResponse(
                partition=batch.partition,
                offset=offset,
                appended_ms=appended_ms,
                **render_fields(id_, key, value, dict(headers or ()), due_ms),
            )
            for offset, appended_ms, (id_, key, value, headers, due_ms) in zip(
                offsets, times, fields_of(rows), strict=True
            )
        ]
        pieces.append(msgspec.json.Encoder().encode_lines(lines))
    return pieces


def _request(asked: ReplayParameters, now_ms: int) -> ReplayRequest:
    partitions = () if asked.partition is None else (asked.partition,)
    times = None
    if asked.since is not None or asked.until is not None or asked.by_due:
        start = 0 if asked.since is None else past_of(asked.since, now_ms)
        end = 0 if asked.until is None else past_of(asked.until, now_ms, field="until")
        end = max(start, end) if end or start > now_ms else 0
        times = TimeRange(start, end, asked.by_due)
    return ReplayRequest(asked.topic, partitions, times, None)


def _at(offsets: Mapping[int, int]) -> list[Position]:
    return [Position(partition=number, offset=at) for number, at in offsets.items()]
