"""When to commit, and what a broker's answer means.

After `commit_ms` or `commit_count` finished records, whichever is first; one commit at a time, so
that an older one can never arrive after a newer. Partitions that go are committed on their own, at
once. Codes are Kafka's, and librdkafka's below 0.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from waterclock.burrow.core.config import EngineConfig
from waterclock.burrow.core.effects import CommitOffsets, Effect, Halt
from waterclock.burrow.core.offset_map import OffsetMaps
from waterclock.burrow.core.partition import PartitionState
from waterclock.burrow.core.records import Commit, TopicPartition


class Meaning(Enum):
    """What to do about a commit's result."""

    DONE = "it is committed"
    AGAIN = "try again later, if the partition is still ours then"
    TOO_LARGE = "commit again at once without the map"
    FATAL = "no retry mends it: halt"


# Among those worth another try are 22 ILLEGAL_GENERATION, 25 UNKNOWN_MEMBER_ID, 27
# REBALANCE_IN_PROGRESS and their kin: a rebalance went by. What it took from us we are told, and
# forget; what it left us is still to be committed, under the new generation.
# 17 INVALID_TOPIC, 24 INVALID_GROUP_ID, 28 INVALID_COMMIT_OFFSET_SIZE, 29 and 30
# AUTHORIZATION_FAILED, 35 UNSUPPORTED_VERSION, 58 SASL_AUTHENTICATION_FAILED, 82
# FENCED_INSTANCE_ID (another process has our name), _AUTHENTICATION, _FATAL, _FENCED
_FATAL = {17, 24, 28, 29, 30, 35, 58, 82, -169, -150, -144}


def meaning(code: int) -> Meaning:
    """Return what a code means; one that is not known is worth another try."""
    if code == 0:
        return Meaning.DONE
    if code == 12:
        return Meaning.TOO_LARGE
    return Meaning.FATAL if code in _FATAL else Meaning.AGAIN


@dataclass(frozen=True, slots=True)
class PendingCommit:
    """A commit that was asked for and not answered."""

    commits: Mapping[TopicPartition, Commit]
    states: Mapping[TopicPartition, PartitionState]
    is_final: bool


class Commits:
    """The commits under way, and when the next is due."""

    __slots__ = (
        "_changed_ms", "_config", "_finished", "_maps", "_number", "_pending", "_retry_ms"
    )  # fmt: skip

    def __init__(self, config: EngineConfig, maps: OffsetMaps) -> None:
        self._config = config
        self._maps = maps
        self._number = 0
        self._changed_ms: int | None = None
        """Since when there is something to commit."""
        self._retry_ms: int | None = None
        """When to try again, after a commit that failed."""
        self._finished = 0
        """Records finished since the last commit began."""
        self._pending: dict[int, PendingCommit] = {}

    @property
    def due_ms(self) -> int | None:
        """When to commit next; None if there is nothing to, or one is under way."""
        if self._changed_ms is None or not all(each.is_final for each in self._pending.values()):
            return None
        if self._retry_ms is not None:
            return self._retry_ms
        is_enough = self._finished >= self._config.commit_count
        return self._changed_ms + (0 if is_enough else self._config.commit_ms)

    def changed(self, finished: int, now_ms: int) -> None:
        """Note that there is something to commit."""
        self._finished += finished
        if self._changed_ms is None:
            self._changed_ms = now_ms

    def begin(self, states: Iterable[PartitionState], *, is_final: bool) -> list[Effect]:
        """Return the commit of what these partitions have to commit."""
        if not is_final:
            self._finished, self._changed_ms, self._retry_ms = 0, None, None
        commits: dict[TopicPartition, Commit] = {}
        owners: dict[TopicPartition, PartitionState] = {}
        for state in states:
            # One that is under way may fail yet, and nobody would be there to make it again.
            state.is_dirty = state.is_dirty or (is_final and self._is_under_way(state))
            commit = state.committable(self._maps)
            if commit is not None:
                commits[state.name] = commit
                owners[state.name] = state
        return self._ask(PendingCommit(commits, owners, is_final))

    def _is_under_way(self, state: PartitionState) -> bool:
        return any(state in pending.states.values() for pending in self._pending.values())

    def _ask(self, pending: PendingCommit) -> list[Effect]:
        if not pending.commits:
            return []
        self._number += 1
        self._pending[self._number] = pending
        return [CommitOffsets(self._number, pending.commits, pending.is_final)]

    def answered(
        self, number: int, code: int, by_partition: Mapping[TopicPartition, int], now_ms: int
    ) -> list[Effect]:
        """Take note of a result, for all partitions or for each; return what follows from it."""
        pending = self._pending.pop(number, None)
        if pending is None:
            return []
        bare: dict[TopicPartition, Commit] = {}
        failed: list[PartitionState] = []
        effects: list[Effect] = []
        for name, commit in pending.commits.items():
            state, result = pending.states[name], by_partition.get(name, code)
            match meaning(result):
                case Meaning.DONE:
                    state.committed = commit.offset
                case Meaning.TOO_LARGE if commit.metadata:
                    if not (state.is_open or pending.is_final):
                        continue  # its last commit was made since then, and is newer
                    bare[name] = Commit(commit.offset, "", commit.runs, is_whole=not commit.runs)
                    failed.append(state)  # a smaller map can follow
                case Meaning.FATAL:
                    failed.append(state)
                    effects.append(Halt(f"{name}: the commit was refused with code {result}"))
                case _:
                    failed.append(state)
        for state in failed:
            state.is_dirty = True
        if any(state.is_open for state in failed):
            self._retry_ms = now_ms + self._config.commit_retry_ms
            self.changed(0, now_ms)
        if bare:
            self._maps.shrink()
            effects += self._ask(PendingCommit(bare, pending.states, pending.is_final))
        return effects
