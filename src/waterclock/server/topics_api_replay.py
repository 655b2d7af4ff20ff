"""The past over HTTP: replays as lines of JSON, and dead letters.

A replay is a stream of messages, one a line; the last line is `{"finished": true, ...}`. Without
it the stream was cut off. One that has a name goes on where its reader has reported to have come.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from waterclock.model.errors import NotFound
from waterclock.node.dead_letter_rows import DeadLetter
from waterclock.node.node import Node
from waterclock.node.replays import OffsetRange, Replay, ReplayBatch, TimeRange
from waterclock.node.replays import Request as ReplayRequest
from waterclock.schedule.when import parse_time
from waterclock.server.http_input import body_of, parameters_of
from waterclock.server.http_messages import JSON_LINES, Request, Response, Streamed, json
from waterclock.server.http_operations import Operation
from waterclock.server.http_operations import Told as Answer
from waterclock.server.problems import BadField
from waterclock.server.row_messages import in_slices
from waterclock.server.topics_api_admin import POSITIONS_MAX, PositionTold
from waterclock.server.topics_api_shapes import (
    AnyTopic,
    MessageTold,
    Name,
    Offset,
    Partition,
    PositionShape,
    Shape,
    Time,
    Told,
    told_fields,
    told_message,
)


class ReplayParameters(Shape):
    """What is to be replayed: by time, or by offset, or everything."""

    topic: AnyTopic
    since: Annotated[Time, Meta(description="Appended from then on.")] | None = None
    until: Annotated[Time, Meta(description="And before; without it, until now.")] | None = None
    by_due: Annotated[bool, Meta(description="By due times instead.")] = False
    offset: Annotated[Offset, Meta(description="From this offset on.")] | None = None
    count: Annotated[Offset, Meta(description="So many; 0 is all.")] = 0
    partition: Annotated[Partition, Meta(description="Of this partition only.")] | None = None
    name: Annotated[Name, Meta(description="Remember it, or go on with it.")] | None = None


class ReplayedTold(MessageTold, kw_only=True):
    """A message of the past, or the end."""

    partition: int | UnsetType = UNSET
    offset: int | UnsetType = UNSET
    finished: bool = False
    messages: int | UnsetType = UNSET
    """How many there were, at the end."""


class NameParameters(Shape):
    """Which replay."""

    name: Name


class ReplayDone(Shape):
    """How far a reader has come: everything below the offsets is processed."""

    positions: Annotated[tuple[PositionShape, ...], Meta(min_length=1, max_length=10_000)]


class ReplayTold(Told):
    """A named replay."""

    name: str
    topic: str
    done: list[PositionTold]
    ends: list[PositionTold]


class ReplaysTold(Told):
    """Named replays."""

    replays: list[ReplayTold]


class LettersParameters(Shape):
    """Which dead letters."""

    topic: AnyTopic
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    page: Annotated[
        str, Meta(pattern=r"^([0-9]{1,9}:[0-9]{1,15})?$", description="The nextPage of an answer.")
    ] = ""


class LetterTold(MessageTold, kw_only=True):
    """A message that failed for good."""

    position: PositionTold
    origin: PositionTold
    group: str
    reason: str
    attempts: int
    died_ms: int


class LettersTold(Told):
    """Dead letters of a topic."""

    dead_letters: list[LetterTold]
    next_page: str
    total: int


class TopicOfLetters(Shape):
    """Of which topic."""

    topic: AnyTopic


class LettersShape(Shape):
    """Which dead letters; none named: all there are."""

    positions: Annotated[tuple[PositionShape, ...], Meta(max_length=POSITIONS_MAX)] = ()


class RedriveShape(LettersShape):
    """Which dead letters; none named: all there are, or so many."""

    limit: Annotated[int, Meta(ge=0, le=10_000_000, description="0 is all.")] = 0


class FinishedTold(Told):
    """How many."""

    count: int


class ReplayApi:
    """Answers questions about the past."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._open: dict[str, Replay] = {}
        """Named replays that are being read over HTTP."""

    # Replays

    async def replay(self, request: Request) -> Streamed:
        """Send a stretch of the past."""
        asked = parameters_of(request, ReplayParameters)
        replay = await self._node.replays.begin(_request(asked), name=asked.name or "")
        if asked.name:
            self._open[asked.name] = replay

        def over() -> None:
            replay.close()
            if asked.name and self._open.get(asked.name) is replay:
                del self._open[asked.name]

        return Streamed(200, _lines(replay), JSON_LINES, on_over=over)

    def done(self, request: Request) -> Response:
        """Take note of how far a reader has come."""
        name = parameters_of(request, NameParameters).name
        positions = body_of(request, ReplayDone).positions
        replay = self._open.get(name)
        if replay is None:
            raise NotFound("open replay", name)
        for one in positions:
            replay.done(one.partition, one.offset)
        return Response(204)

    def list_replays(self, _: Request) -> Response:
        """Return the named replays."""
        replays = [
            ReplayTold(name=i.name, topic=i.topic, done=_at(i.done), ends=_at(i.ends))
            for i in self._node.replays.list()
        ]
        return json(200, ReplaysTold(replays=replays))

    async def delete_replay(self, request: Request) -> Response:
        """Forget a named replay."""
        name = parameters_of(request, NameParameters).name
        if not await self._node.replays.delete(name):
            raise NotFound("replay", name)
        return Response(204)

    # Dead letters

    async def list_letters(self, request: Request) -> Response:
        """Return dead letters of a topic."""
        asked = parameters_of(request, LettersParameters)
        page = await self._node.dead_letters.list(asked.topic, limit=asked.limit, page=asked.page)
        letters = list(map(_letter, page.letters))
        return json(
            200, LettersTold(dead_letters=letters, next_page=page.next_page, total=page.total)
        )

    async def redrive(self, request: Request) -> Response:
        """Publish dead letters again where they came from."""
        topic = parameters_of(request, TopicOfLetters).topic
        given = body_of(request, RedriveShape)
        count = await self._node.dead_letters.redrive(topic, _named(given), limit=given.limit)
        return json(200, FinishedTold(count=count))

    async def purge(self, request: Request) -> Response:
        """Take dead letters off the list."""
        topic = parameters_of(request, TopicOfLetters).topic
        count = await self._node.dead_letters.purge(topic, _named(body_of(request, LettersShape)))
        return json(200, FinishedTold(count=count))

    def operations(self) -> list[Operation]:
        """Return its part of the table."""
        letters = "/topics/{topic}/dead-letters"
        count = {200: Answer("How many.", FinishedTold)}
        return [
            Operation(
                "GET",
                "/topics/{topic}/replay",
                self.replay,
                name="replay",
                tag="past",
                summary="Read a stretch of the past, in order, without a group.",
                description="Lines of JSON; the last says that it is finished, or it was cut off.",
                parameters=ReplayParameters,
                answers={200: Answer("Messages, one a line.", content_type=JSON_LINES)},
                problems=(404, 409),
            ),
            Operation(
                "GET",
                "/replays",
                self.list_replays,
                name="listReplays",
                tag="past",
                summary="List the named replays.",
                answers={200: Answer("All.", ReplaysTold)},
            ),
            Operation(
                "POST",
                "/replays/{name}/done",
                self.done,
                name="reportReplay",
                tag="past",
                summary="Say how far the reader of a named replay has come.",
                parameters=NameParameters,
                body=ReplayDone,
                body_example={"positions": [{"partition": 0, "offset": 10}]},
                answers={204: Answer("Noted; saved now and then.")},
                problems=(404,),
            ),
            Operation(
                "DELETE",
                "/replays/{name}",
                self.delete_replay,
                name="deleteReplay",
                tag="past",
                summary="Forget a named replay.",
                parameters=NameParameters,
                answers={204: Answer("It is forgotten.")},
                problems=(404, 507),
            ),
            Operation(
                "GET",
                letters,
                self.list_letters,
                name="listDeadLetters",
                tag="past",
                summary="List messages that failed for good.",
                parameters=LettersParameters,
                answers={200: Answer("A page.", LettersTold)},
                problems=(404,),
            ),
            Operation(
                "POST",
                letters + "/redrive",
                self.redrive,
                name="redrive",
                tag="past",
                summary="Publish dead letters again where they came from.",
                parameters=TopicOfLetters,
                body=RedriveShape,
                body_example={"limit": 100},
                answers=count,
                problems=(404, 409, 507),
            ),
            Operation(
                "POST",
                letters + "/purge",
                self.purge,
                name="purgeDeadLetters",
                tag="past",
                summary="Take dead letters off the list.",
                parameters=TopicOfLetters,
                body=LettersShape,
                body_example={},
                answers=count,
                problems=(404, 507),
            ),
        ]


async def _lines(replay: Replay) -> AsyncIterator[bytes]:
    async for batch in replay:
        for piece in _pieces(batch):
            yield piece
    yield msgspec.json.encode(ReplayedTold(finished=True, messages=replay.messages)) + b"\n"


def _pieces(batch: ReplayBatch) -> "list[bytes]":
    pieces = []
    for bounds, rows in in_slices(batch.portion):
        offsets = [o for i in range(0, len(bounds), 2) for o in range(bounds[i], bounds[i + 1])]
        columns = [
            rows.column(name).to_pylist()
            for name in ("message_id", "key", "value", "headers", "due_ms")
        ]
        told = [
            ReplayedTold(
                partition=batch.partition,
                offset=offset,
                **told_fields(id_, key, value, dict(headers or ()), due_ms),
            )
            for offset, id_, key, value, headers, due_ms in zip(offsets, *columns, strict=True)
        ]
        pieces.append(msgspec.json.Encoder().encode_lines(told))
    return pieces


def _request(asked: ReplayParameters) -> ReplayRequest:
    partitions = () if asked.partition is None else (asked.partition,)
    times = offsets = None
    if asked.since is not None or asked.until is not None or asked.by_due:
        start = 0 if asked.since is None else parse_time(asked.since)
        end = 0 if asked.until is None else parse_time(asked.until)
        times = TimeRange(start, end, asked.by_due)
    if asked.offset is not None:
        offsets = OffsetRange(asked.offset, asked.count)
    elif asked.count:
        raise BadField("count", "is given without an offset")
    return ReplayRequest(asked.topic, partitions, times, offsets)


def _at(offsets: Mapping[int, int]) -> list[PositionTold]:
    return [PositionTold(partition=number, offset=at) for number, at in offsets.items()]


def _named(given: LettersShape) -> list[tuple[int, int]] | None:
    return [(one.partition, one.offset) for one in given.positions] or None


def _letter(letter: DeadLetter) -> LetterTold:
    return LetterTold(
        position=PositionTold(partition=letter.partition, offset=letter.offset),
        origin=PositionTold(partition=letter.origin_partition, offset=letter.origin_offset),
        group=letter.group,
        reason=letter.reason,
        attempts=letter.attempts,
        died_ms=letter.died_ms,
        **told_message(letter.message),
    )
