"""What the console is told: who looks, what there is, and how it stands at this moment."""

from typing import Annotated, Literal

from msgspec import Meta, field

from waterclock.node.problems import HealthProblem
from waterclock.schedule.cron import TEXT_CHARS_MAX
from waterclock.server.rest.models import AnyTopicName, RequestModel, ResponseModel

ROWS_MAX = 200

View = Literal["overview", "topics", "groups", "deadLetters"]
Sort = Literal[
    "name", "in", "out", "lag", "pending", "size", "messages", "unacked", "members", "count"
]  # fmt: skip


class FileParameters(RequestModel):
    file: Annotated[str, Meta(max_length=100, examples=["app.js"])]


class LiveParameters(RequestModel):
    """Which page is open, and which of its rows are shown."""

    view: Annotated[View, Meta(description="The list that is shown, if it has one.")] = "overview"
    filter: Annotated[str, Meta(max_length=255, description="Part of a name.")] = ""
    sort: Sort = "name"
    descending: bool = False
    start: Annotated[int, Meta(ge=0, le=1_000_000, description="Rows to skip.")] = 0
    limit: Annotated[int, Meta(ge=1, le=ROWS_MAX, description="Rows of a page.")] = 50


class CountsParameters(RequestModel):
    """What is counted beside topics and groups."""

    dead_letters: bool = False


class HistoryParameters(RequestModel):
    """How far back, and of what."""

    range: Annotated[
        Literal["hour", "day"], Meta(description="The hour by 5 s, the day by minutes.")
    ] = "hour"
    topic: Annotated[AnyTopicName, Meta(description="Of the node as a whole if none is named.")] | (
        None
    ) = None
    node: Annotated[
        str, Meta(max_length=255, description="A node; empty: all that share topics, together.")
    ] = ""


class HistoryResponse(ResponseModel):
    """One value for each step, the oldest first; null is unknown."""

    step_ms: int
    end_ms: int
    series: dict[str, list[float | None]]
    unreachable: list[str] = field(default_factory=list)
    """Nodes that did not tell: what they did is missing."""


class RightResponse(ResponseModel):
    """Something that whoever asks may do."""

    kind: str
    what: str
    glob: str
    group_glob: str


class SessionResponse(ResponseModel):
    """Who asks, and what they may do here."""

    principal: str
    is_secure: bool
    is_clustered: bool
    is_admin: bool
    rights: list[RightResponse]
    node: str
    version: str
    started_ms: int
    now_ms: int
    audit_topic: str
    """Empty: there is no audit."""
    grpc_port: int
    """Where the command line reaches it, at the host at which the reader does."""


class MomentParameters(RequestModel):
    """A time as somebody types it."""

    text: Annotated[str, Meta(max_length=TEXT_CHARS_MAX, examples=["tomorrow 9:00"])]
    zone: Annotated[
        str, Meta(max_length=100, examples=["Europe/Berlin"], description="Whose clocks it is by.")
    ] = "UTC"
    is_past: Annotated[bool, Meta(description="Of two times it may mean, the last one.")] = False


class MomentResponse(ResponseModel):
    """What it means; of what is not yet typed to its end, why it means nothing."""

    time_ms: int | None = None
    again_ms: int | None = None
    """Clocks show the same once more: then."""
    is_relative: bool = False
    """It counts from now: read later, it is later."""
    wrong: str = ""


class TopicRow(ResponseModel):
    """A topic in a list."""

    topic: str
    partitions: int
    led: int
    """Of these, those that a node leads which has told."""
    in_rate: float
    """Messages a second."""
    out_rate: float | None
    """To all groups; null, as these, to those who may not read the topic."""
    messages: int
    size_bytes: int
    pending: int
    groups: int | None
    lag: int | None
    """Of the group that is furthest behind."""
    problems: int


class GroupRow(ResponseModel):
    """A group in a list."""

    topic: str
    group: str
    members: int
    partitions: int
    out_rate: float
    acked_rate: float
    lag: int
    unacked: int
    waiting: int


class DeadLettersRow(ResponseModel):
    """How many dead letters a topic has."""

    topic: str
    count: int


class NodeRow(ResponseModel):
    """One of several nodes."""

    name: str
    is_heard: bool = False
    """It has told what it counted; all else is unknown if it has not."""
    is_ready: bool = False
    in_rate: float | None = None
    out_rate: float | None = None
    pending: int | None = None
    leads: int | None = None
    """Partitions of topics."""
    disk_bytes: int | None = None
    disk_free_bytes: int | None = None
    problems: list[HealthProblem] = field(default_factory=list)


class NodeNow(ResponseModel):
    """The node at this moment, or all that share topics, for those who may see all of it."""

    in_rate: float
    """Messages a second, as all rates."""
    out_rate: float
    acked_rate: float
    fired_rate: float
    dead_lettered_rate: float
    stream_in_rate: float
    stream_out_rate: float
    lateness_p99_ms: float | None
    pending: int
    lag: int
    unacked: int
    topics: int
    groups: int
    streams: int
    waiting: int
    size_bytes: int
    disk_bytes: int | None
    disk_free_bytes: int | None
    is_ready: bool
    problems: list[HealthProblem]
    """Of the node that was asked, and of what all nodes together have counted."""
    members: int | None
    nodes: list[NodeRow] = field(default_factory=list)
    """Each of those that share topics."""
    redelivered_rate: float = 0.0
    under_replicated: int = 0
    """Partitions that it leads, while one of their voters cannot be reached."""


class Counts(ResponseModel):
    """What a node has counted: nodes tell each other."""

    name: str
    node: NodeNow
    topics: list[TopicRow]
    groups: list[GroupRow]
    dead_letters: dict[str, int] | None = None
    """By topic; null: nobody asked for them."""


class Snapshot(ResponseModel):
    """What a page is told every second or so."""

    now_ms: int
    node: NodeNow | None
    total: int
    """Rows that match."""
    topics: list[TopicRow] | None = None
    groups: list[GroupRow] | None = None
    dead_letters: list[DeadLettersRow] | None = None
