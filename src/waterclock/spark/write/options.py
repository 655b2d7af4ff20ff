"""The options of a write, checked before anything is written; each field says what it trades."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from waterclock.client.encryption import Keys
from waterclock.model.errors import BadInput
from waterclock.model.names import check_name
from waterclock.security.credential import Credential
from waterclock.spark.options import BadOption, OptionReader, known_options

OnBadRow = Literal["fail", "skip"]

WRITE_OPTIONS = (
    "servers", "topic", "credential", "keys", "writeId", "writeBatch", "partition",
    "createPartitions", "onBadRow", "rateLimit", "inFlight", "summaryFile", "checkpointLocation",
)  # fmt: skip
"""The last one is Spark's own, and comes along with a streaming write."""

PARTITIONS_MAX = 1_024
RATE_MAX = 1_000_000_000
IN_FLIGHT, IN_FLIGHT_MAX = 2, 64
BATCH_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """A write, as asked for."""

    servers: tuple[str, ...]
    """Addresses of nodes for gRPC; one is written to, and another if it fails."""

    topic: str

    credential: Credential | None = None
    """As whom to write, to a secured node."""

    keys: Keys | None = None
    """By which values are encrypted; they travel to the tasks."""

    write_id: str | None = None
    """The name of a batch write. The same name again, after a failure or by mistake, goes on where
    it was, and writes nothing if it was done. A streaming query has one of its own."""

    write_batch: int = 0
    """For `foreachBatch`: which batch of `write_id` this is. One that was committed, or is older
    than one that was, is not written again."""

    partition: int | None = None
    """Where all rows go, but those whose column `partition` says otherwise. Without either, a row
    goes where its key belongs, or its id if it has no key."""

    create_partitions: int | None = None
    """Makes the topic, with so many partitions, if it is not there."""

    on_bad_row: OnBadRow = "fail"
    """Whether a row that the node will not take fails the write, or is counted and left out."""

    rate_limit: int | None = None
    """Rows a second that one task may send. Lower leaves more of the node to others; as many tasks
    run at once as Spark has cores."""

    in_flight: int = IN_FLIGHT
    """Batches of a task on their way at once. More hides more of the round trip; 1 keeps the order
    of rows also when the node restarts in the middle."""

    summary_file: str | None = None
    """A file on the driver's computer that gets a line of JSON for each commit: what was written
    and what was left out."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "WriteOptions":
        """Return the options of a write; raise BadOption with the first that is wrong."""
        given = known_options(options, WRITE_OPTIONS)
        parsed = cls(
            servers=given.servers(),
            credential=given.credential(),
            keys=given.keys(),
            topic=given.topic(),
            write_id=_name(given.text("writeId")),
            write_batch=given.number("writeBatch", 0, BATCH_MAX, 0),
            partition=_optional(given, "partition", 0, PARTITIONS_MAX - 1),
            create_partitions=_optional(given, "createPartitions", 1, PARTITIONS_MAX),
            on_bad_row=_on_bad_row(given.text("onBadRow")),
            rate_limit=_optional(given, "rateLimit", 1, RATE_MAX),
            in_flight=given.number("inFlight", 1, IN_FLIGHT_MAX, IN_FLIGHT),
            summary_file=given.text("summaryFile"),
        )
        if parsed.write_batch and parsed.write_id is None:
            raise BadOption("writeBatch", "is a batch of writeId: give that too")
        return parsed

    def check_stream(self) -> None:
        """Raise BadOption unless these make sense for a streaming query."""
        for name, given in (("writeId", self.write_id), ("writeBatch", self.write_batch)):
            if given:
                raise BadOption(name, "is the query's own in a streaming write: leave it out")


def _name(text: str | None) -> str | None:
    if text is not None:
        try:
            check_name("write", text)
        except BadInput as error:
            raise BadOption("writeId", str(error)) from None
    return text


def _optional(given: OptionReader, name: str, least: int, most: int) -> int | None:
    return None if given.text(name) is None else given.number(name, least, most, 0)


def _on_bad_row(text: str | None) -> OnBadRow:
    for choice in get_args(OnBadRow):
        if (text or "fail").strip().lower() == choice:
            found: OnBadRow = choice
            return found
    raise BadOption("onBadRow", f"must be fail or skip, not {str(text)[:60]!r}")
