"""One message as one object: the slow, convenient face.

On the hot path a batch of messages is one Arrow record batch and no message is ever an object of
its own. `Message` is for single publishes, for examples and for tests, where clarity is worth a
microsecond.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Final, Literal, get_args

from waterclock.model.errors import BadInput
from waterclock.model.ids import Millis

Acks = Literal["quorum", "leader", "all"]
"""When a publish is answered: a majority of the replicas has flushed it, the leader has, or every
replica has. On a node that is alone these are the same."""
ACKS: Final[tuple[Acks, ...]] = get_args(Acks)
"""As `Acks` of the gRPC API numbers them."""


def check_acks(acks: str) -> None:
    """Raise BadInput unless it is one of `ACKS`."""
    if acks not in ACKS:
        raise BadInput(f"acks: {acks!r} is not one of {', '.join(ACKS)}")


@dataclass(frozen=True, slots=True, repr=False)
class Message:
    """What a producer sends: a value, and perhaps a key, an id, headers and a due time."""

    value: bytes | None
    """The body. None is a tombstone: on a compacted topic it deletes what its key held."""

    _: KW_ONLY

    key: bytes | None = None
    """Messages of one key share a partition, so they keep their order."""

    message_id: bytes | None = None
    """Publishing the same id again within the dedup window changes nothing. None: one is made."""

    headers: Mapping[str, bytes] | None = None
    """Small facts about the message that are not part of its value."""

    due_ms: Millis | None = None
    """Never delivered before this time. None, or a time that has passed, means now."""

    def __repr__(self) -> str:
        facts = ["tombstone" if self.value is None else f"{len(self.value)} B"]
        if self.key is not None:
            facts.append(f"key {self.key!r}")
        if self.message_id is not None:
            facts.append(f"id {self.message_id.hex()}")
        if self.headers:
            facts.append(f"headers {', '.join(self.headers)}")
        if self.due_ms is not None:
            facts.append(f"due {self.due_ms}")
        return f"<Message {', '.join(facts)}>"
