"""News on their way to everyone: each is sent a number of times, with packets that go anyway.

What was sent least goes first, so that fresh news are not held up by old ones; then the longest,
which finds room least easily; then the newest. There is one slot for each subject: what is newer
about a node makes the older untrue.
"""

from bisect import insort
from math import ceil, log10
from typing import NamedTuple

from waterclock.cluster.gossip.packets import COMPOUND_PART_BYTES, PARTS_MAX


class _Broadcast(NamedTuple):
    """Sorts as it is to be sent: the longest first, then the newest."""

    size: int  # negative
    number: int  # negative, and never the same
    subject: str
    data: bytes


def retransmit_limit(mult: int, node_count: int, *, fanout: int) -> int:
    """Return how often news are sent in a cluster of that size.

    Where a round of news does not reach all, once more than memberlist's logarithm: with that
    alone, somebody misses a join to eight nodes in one of twenty cases though nothing is lost, and
    learns of it half a minute later by a push/pull.
    """
    scale = ceil(log10(node_count + 1))
    return mult * (scale if node_count - 1 <= fanout else scale + 1)


class Broadcasts:
    """The queue of one node."""

    def __init__(self) -> None:
        self._by_subject: dict[str, _Broadcast] = {}
        self._by_sent: list[list[_Broadcast]] = []
        """By how often they were sent; one that was replaced is dropped when it is met."""
        self._number = 0

    def __len__(self) -> int:
        return len(self._by_subject)

    def __contains__(self, subject: str) -> bool:
        return subject in self._by_subject

    def put(self, subject: str, data: bytes) -> None:
        """Send an encoded message to everyone, instead of what was said of the subject before."""
        self._number += 1
        each = _Broadcast(-len(data), -self._number, subject, data)
        self._by_subject[subject] = each
        self._file(0, each)

    def clear(self) -> None:
        """Tell nobody: there is nobody."""
        self._by_subject.clear()
        self._by_sent.clear()

    def take(self, room_bytes: int, *, sends_max: int, parts_max: int = PARTS_MAX) -> list[bytes]:
        """Return messages that fit as parts of a compound. Send them: they are counted as sent."""
        found: list[_Broadcast] = []
        moves: list[tuple[int, _Broadcast]] = []
        for sent, tier in enumerate(self._by_sent):
            kept = []
            for each in tier:
                if self._by_subject.get(each.subject) is not each:
                    continue
                size = len(each.data) + COMPOUND_PART_BYTES
                if size > room_bytes or len(found) == parts_max:
                    kept.append(each)
                    continue
                room_bytes -= size
                found.append(each)
                moves.append((sent + 1, each))
            self._by_sent[sent] = kept
        for sent, each in moves:
            if sent >= sends_max:
                del self._by_subject[each.subject]
            else:
                self._file(sent, each)
        if not self._by_subject:
            self._by_sent.clear()
        return [each.data for each in found]

    def _file(self, sent: int, each: _Broadcast) -> None:
        while len(self._by_sent) <= sent:
            self._by_sent.append([])
        insort(self._by_sent[sent], each)
