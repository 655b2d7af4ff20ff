"""The options of a read, checked before anything is read; each field says what it trades.

Spark hands options over as text, names in any case. A name that is not known is refused, with the
nearest that is: an option that was silently ignored would read the wrong rows.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from typing import Literal, get_args

from waterclock.client.encryption import Keys
from waterclock.client.settings import ADDRESS_VARIABLE, DEFAULT_ADDRESS
from waterclock.client.target import target_of
from waterclock.model.errors import BadInput
from waterclock.model.names import check_any_topic_name
from waterclock.model.units import KIB, MIB, MINUTE_MS
from waterclock.security.credential import Credential

View = Literal["delivered", "all", "scheduled", "dlq"]
OffsetBound = int | Literal["earliest", "latest"]

PORT_MAX = 65_535
OFFSET_MAX = (1 << 62) - 1
PARTITIONS_MAX = 10_000
ROWS_MAX = 1 << 40
TIME_MS_MAX = 253_402_300_800_000
"""The year 10000, after which Spark prints no timestamps."""
BATCH_ROWS_MAX = 1 << 20
FETCH_BYTES_MAX = 32 * MIB
SHOWN_CHARS_MAX = 60

READ_OPTIONS = (
    "servers", "topic", "credential", "keys", "allowPlaintext", "view", "startingOffsets",
    "endingOffsets", "startingTimestamp", "endingTimestamp", "partitions", "keyPrefix",
    "minPartitions", "maxRowsPerPartition", "maxOffsetsPerTrigger", "failOnDataLoss", "waitMs",
    "batchRows", "fetchBytes",
)  # fmt: skip


KAFKAS = {
    "subscribe": "topic, which names one", "subscribepattern": "topic, which names one",
    "assign": "topic and partitions", "kafka.bootstrap.servers": "servers",
}  # fmt: skip
"""What people who come from Spark's Kafka source type, and what it is called here."""


class BadOption(BadInput):
    """An option of a read or write is unknown, malformed, or does not go with another."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(f"option {option}: {problem}")
        self.field = option


@dataclass(frozen=True, slots=True)
class OffsetBounds:
    """Where to begin or end in each partition."""

    elsewhere: Literal["earliest", "latest"]
    """Of the partitions that are not named."""
    named: Mapping[int, OffsetBound] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """A read, as asked for."""

    servers: tuple[str, ...]
    """Addresses of nodes for gRPC; the one that answers names the others of its cluster."""

    topic: str

    credential: Credential | None = None
    """As whom to read, of a secured node."""

    keys: Keys | None = None
    """By which values are decrypted; they travel to the tasks."""

    view: View = "delivered"
    """`delivered`: what consumers get. `all`: scheduled messages too. `scheduled`: what waits for
    its time. `dlq`: dead letters."""

    starting: OffsetBounds | int = OffsetBounds("earliest")
    """By offset, or by the time it was appended (ms)."""

    ending: OffsetBounds | int = OffsetBounds("latest")
    """The first that is not read. A batch read takes what `latest` is when it is planned."""

    partitions: frozenset[int] | None = None
    """Of the topic; None: all."""

    key_prefix: bytes | None = None
    """Rows whose key begins so. Frames come whole, and executors pick: this saves work in Spark,
    not on the way."""

    partitions_min: int = 1
    """Spark partitions at least: more spread a small topic over more cores."""

    partition_rows_max: int = 2_000_000
    """Offsets of one Spark partition at most. Fewer balance better and repeat less after a task
    fails; each costs some 30 ms."""

    trigger_offsets_max: int | None = None
    """Offsets of one micro-batch at most, over all partitions."""

    fail_on_data_loss: bool = True
    """Whether a read fails if retention took what it was to read; if not, it goes on behind."""

    wait_ms: int = 1_000
    """How long a stream waits on the node for news. Longer costs less while there is none."""

    batch_rows: int = 16 * KIB
    """Rows of a record batch, about. Each batch has its price; but one that is larger than the
    processor's cache costs more for each row, here and in the JVM, and needs more memory."""

    fetch_bytes: int = 8 * MIB
    """Bytes of frames of one request; a task holds up to four times as much."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "ReadOptions":
        """Return the options of a read; raise BadOption with the first that is wrong."""
        given = known_options(options, READ_OPTIONS)
        parsed = cls(
            servers=given.servers(),
            credential=given.credential(),
            keys=given.keys(),
            topic=given.topic(),
            view=_view(given.text("view")),
            starting=given.bound("starting", "earliest"),
            ending=given.bound("ending", "latest"),
            partitions=_partitions(given.text("partitions")),
            key_prefix=_prefix(given.text("keyPrefix")),
            partitions_min=given.number("minPartitions", 1, PARTITIONS_MAX, cls.partitions_min),
            partition_rows_max=given.number(
                "maxRowsPerPartition", 1, ROWS_MAX, cls.partition_rows_max
            ),
            trigger_offsets_max=given.number("maxOffsetsPerTrigger", 1, ROWS_MAX, 0) or None,
            fail_on_data_loss=given.flag("failOnDataLoss", cls.fail_on_data_loss),
            wait_ms=given.number("waitMs", 0, MINUTE_MS, cls.wait_ms),
            batch_rows=given.number("batchRows", 1, BATCH_ROWS_MAX, cls.batch_rows),
            fetch_bytes=given.number("fetchBytes", 1, FETCH_BYTES_MAX, cls.fetch_bytes),
        )
        parsed._check_view()
        return parsed

    @property
    def is_listing(self) -> bool:
        """It reads what the node lists, and not the log."""
        return self.view in ("scheduled", "dlq")

    @property
    def with_scheduled(self) -> bool:
        """It reads messages that were accepted for later as well as those that are there."""
        return self.view == "all"

    def check_stream(self) -> None:
        """Raise BadOption unless these make sense for a stream."""
        if self.is_listing:
            raise BadOption("view", f"{self.view} can be read in batch only: use spark.read")
        if self.ending != OffsetBounds("latest"):
            raise BadOption("endingOffsets", "a stream has no end: leave it out, or use spark.read")

    def _check_view(self) -> None:
        if self.is_listing:
            if self.keys is not None:
                raise BadOption("keys", f"view={self.view} shows values as they are stored")
            for name, bound in (("startingOffsets", self.starting), ("endingOffsets", self.ending)):
                if isinstance(bound, OffsetBounds) and (bound.named or bound not in _EVERYTHING):
                    raise BadOption(
                        name, f"is for the log; with view={self.view} use {_TIMES[name]}, or none"
                    )


_EVERYTHING = (OffsetBounds("earliest"), OffsetBounds("latest"))
_TIMES = {"startingOffsets": "startingTimestamp", "endingOffsets": "endingTimestamp"}


ONE_TOPIC = "must be one: read each by itself and put them together with union(), write one by one"


def known_options(options: Mapping[str, str], names: Iterable[str]) -> "OptionReader":
    """Return options by the names we know them by; raise BadOption if one is of no use."""
    by_lower = {name.lower(): name for name in names}
    found: dict[str, str] = {}
    for given, value in options.items():
        lower = given.lower()
        if lower == "path":  # .load("orders")
            lower = "topic"
            if any(other.lower() == "topic" for other in options):
                raise BadOption("topic", "is given twice: as an option, and to load() or save()")
        if lower == "paths":  # .load(["orders", "bills"])
            raise BadOption("topic", ONE_TOPIC)
        if lower in KAFKAS:
            raise BadOption(given, f"is of Spark's Kafka source; here it is {KAFKAS[lower]}")
        if lower not in by_lower:
            near = get_close_matches(lower, by_lower, n=1, cutoff=0.6)
            hint = f"did you mean {by_lower[near[0]]}?" if near else f"there are {_listed(names)}"
            raise BadOption(_shown(given), f"is unknown; {hint}")
        found[by_lower[lower]] = str(value)
    return OptionReader(found)


class OptionReader:
    """Options as text, read one by one."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

    def __repr__(self) -> str:
        return f"<OptionReader {', '.join(self._given) or 'none'}>"

    def text(self, name: str) -> str | None:
        """Return one; None if it was not given, or is empty."""
        return self._given.get(name) or None

    def topic(self) -> str:
        """Return the topic, which must be given."""
        topic = self.text("topic")
        if topic is None:
            raise BadOption(
                "topic", "is missing: say which topic, as in .option('topic', 'orders')"
            )
        if "," in topic:
            raise BadOption("topic", f"{ONE_TOPIC}; not {_shown(topic)}")
        try:
            check_any_topic_name(topic)
        except BadInput as error:
            raise BadOption("topic", str(error)) from None
        return topic

    def number(self, name: str, least: int, most: int, default: int) -> int:
        """Return a whole number within its limits."""
        text = self.text(name)
        return default if text is None else _whole(name, text, least, most)

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false."""
        text = self.text(name)
        if text is None:
            return default
        if text.strip().lower() not in ("true", "false"):
            raise BadOption(name, f"must be true or false, not {_shown(text)}")
        return text.strip().lower() == "true"

    def servers(self) -> tuple[str, ...]:
        """Return the addresses of nodes."""
        text, given = self.text("servers"), self._given_credential()
        if text is None and given is None:
            text = os.environ.get(ADDRESS_VARIABLE)
        text = text or ",".join(target_of(None, given).addresses)
        return tuple(_server(each.strip()) for each in text.split(","))

    def credential(self) -> Credential | None:
        """Return as whom to ask them: as given, or by WATERCLOCK_CREDENTIAL of the driver."""
        return target_of(DEFAULT_ADDRESS, self._given_credential()).credential

    def keys(self) -> Keys | None:
        """Return the keys of a file on the driver."""
        path, may_be_plain = self.text("keys"), self.flag("allowPlaintext", False)
        if path is None:
            if may_be_plain:
                raise BadOption("allowPlaintext", "goes with keys: give them too")
            return None
        try:
            return Keys.from_file(path, allow_plaintext=may_be_plain)
        except BadInput as error:
            raise BadOption("keys", str(error)) from None

    def _given_credential(self) -> Credential | None:
        text = self.text("credential")
        try:
            return None if text is None else Credential.read(text)
        except BadInput as error:
            raise BadOption("credential", str(error)) from None

    def bound(self, side: str, default: Literal["earliest", "latest"]) -> OffsetBounds | int:
        """Return where to begin or end: by offsets, or by a time."""
        offsets, time = self.text(f"{side}Offsets"), self.text(f"{side}Timestamp")
        if offsets is not None and time is not None:
            raise BadOption(f"{side}Timestamp", f"does not go with {side}Offsets: give one of them")
        if time is not None:
            return _time_ms(f"{side}Timestamp", time)
        return (
            OffsetBounds(default)
            if offsets is None
            else _places(f"{side}Offsets", offsets, default)
        )


def _places(name: str, text: str, default: Literal["earliest", "latest"]) -> OffsetBounds:
    word = text.strip().lower()
    if word == "earliest":
        return OffsetBounds("earliest")
    if word == "latest":
        return OffsetBounds("latest")
    wanted = 'must be earliest, latest, or JSON such as {"0": 123, "1": "latest"}'
    try:
        bounds = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        raise BadOption(name, f"{wanted}; not {_shown(text)}") from None
    if not isinstance(bounds, dict):
        raise BadOption(name, f"{wanted}; not {_shown(text)}")
    named: dict[int, OffsetBound] = {}
    for partition, place in bounds.items():
        number = _whole(name, partition, 0, PARTITIONS_MAX - 1)
        if place not in ("earliest", "latest") and not (
            type(place) is int and 0 <= place <= OFFSET_MAX
        ):
            raise BadOption(name, f"{wanted}; partition {number} has {_shown(json.dumps(place))}")
        named[number] = place
    return OffsetBounds(default, named)


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    named = dict(pairs)
    if len(named) != len(pairs):
        raise ValueError("a partition is named twice")
    return named


def _time_ms(name: str, text: str) -> int:
    wanted = "must be ISO 8601 with a zone, such as 2026-01-31T12:00:00Z, or ms since 1970"
    text = text.strip()
    if re.fullmatch(r"-?[0-9]{1,20}", text):
        return _whole(name, text, 0, TIME_MS_MAX)
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise BadOption(name, f"{wanted}; {_shown(text)} has no zone")
        # Up to the next millisecond: appends are noted in whole ones.
        ms = -int(-moment.timestamp() * 1_000 // 1)
    except (ValueError, OverflowError):
        raise BadOption(name, f"{wanted}; not {_shown(text)}") from None
    if not 0 <= ms <= TIME_MS_MAX:
        raise BadOption(name, f"must be between 1970 and 9999, not {_shown(text)}")
    return ms


def _partitions(text: str | None) -> frozenset[int] | None:
    if text is None:
        return None
    return frozenset(
        _whole("partitions", each.strip(), 0, PARTITIONS_MAX - 1) for each in text.split(",")
    )


def _prefix(text: str | None) -> bytes | None:
    try:
        return None if text is None else text.encode()
    except UnicodeEncodeError:
        raise BadOption("keyPrefix", "is not valid Unicode text") from None


def _view(text: str | None) -> View:
    for view in get_args(View):
        if (text or "delivered").strip().lower() == view:
            found: View = view
            return found
    raise BadOption("view", f"must be one of {_listed(get_args(View))}, not {_shown(text or '')}")


def _server(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon and text:
        host, port = text, "9000"
    is_port = re.fullmatch(r"[0-9]{1,5}", port) is not None and 0 < int(port) <= PORT_MAX
    if not is_port or not re.fullmatch(r"\[[0-9A-Fa-f:.]+\]|[\w.-]+", host, re.ASCII):
        raise BadOption("servers", f"must be host:port, or several with commas; not {_shown(text)}")
    return f"{host}:{port}"


def _whole(name: str, text: str, least: int, most: int) -> int:
    text = text.strip()
    if re.fullmatch(r"-?[0-9]{1,20}", text) is None or not least <= int(text) <= most:
        raise BadOption(name, f"must be a whole number from {least} to {most}, not {_shown(text)}")
    return int(text)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN_CHARS_MAX else text[:SHOWN_CHARS_MAX] + "…")
