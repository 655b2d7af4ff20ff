"""What publishing, cancelling, repeating and looking back answer with; `model/views.py` has what a
node shows otherwise."""

from collections.abc import Sequence
from dataclasses import dataclass

from waterclock.model.errors import WaterclockError


class Outcome(str):
    """What became of a wish to cancel or move: a word, such as "cancelled" or "already fired"."""

    __slots__ = ("reached",)

    reached: int
    """How many pending messages it reached: an id may have several."""

    def __new__(cls, word: str, reached: int = 0) -> "Outcome":
        """Make an outcome that equals its word."""
        outcome = super().__new__(cls, word)
        outcome.reached = reached
        return outcome


class Receipt:
    """Where a published message is. It is durable, as the node's `log.fsync` says."""

    __slots__ = ("is_new", "made_partitions", "message_id", "offset", "partition", "topic")

    def __init__(
        self, topic: str, partition: int, offset: int, message_id: bytes, is_new: bool
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.message_id = message_id
        self.is_new = is_new
        """False: the id was published before, nothing was written, and this is the first one."""
        self.made_partitions = 0
        """Not 0: there was no such topic; publishing this made it, with so many partitions."""

    def __repr__(self) -> str:
        what = "" if self.is_new else ", published before"
        id_ = self.message_id.hex()
        return f"<Receipt {self.topic}/{self.partition} offset {self.offset}, id {id_}{what}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Receipt):
            return NotImplemented
        return self._facts() == other._facts()

    def __hash__(self) -> int:
        return hash(self._facts())

    def _facts(self) -> tuple[object, ...]:
        return self.topic, self.partition, self.offset, self.message_id, self.is_new


@dataclass(frozen=True, slots=True)
class History:
    """What was: one value of each series for each step, the oldest first; None is unknown."""

    step_ms: int
    end_ms: int
    series: dict[str, list[float | None]]
    unreachable: list[str]
    """Nodes that did not tell: what they did is missing."""


class SomeFailed(WaterclockError):
    """Some messages of a call were published and others were not; `results` has one for each."""

    def __init__(self, results: Sequence[Receipt | Exception]) -> None:
        failed = [result for result in results if isinstance(result, Exception)]
        super().__init__(
            f"{len(failed)} of {len(results)} messages were not published; the first: {failed[0]}"
        )
        self.results = list(results)
