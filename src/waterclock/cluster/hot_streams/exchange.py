"""The partitions of one stream to each other: a poll that waits meets a message that waits.

Each partition matches what comes to it by itself. Only an empty one with polls that wait asks, and
messages go only to where a poll waits for them:

    Want     an empty partition tells the root that polls wait there, and for how many messages
    Watch    the root, if it has none for them, asks all others to say when they have messages
    Has      a partition that is watched has messages, and no polls of its own
    Tell     the root tells who wanted where there are messages
    Pull     who was told takes them from there, as many as polls wait; the answer says if there
             are more, and then it takes again without a word to the root

So the root knows who has what and carries no messages of others. No wake-up is lost: polls that
wait in an empty partition have a Want or a Pull under way, an unanswered Want has a Watch at every
other partition, and a watched partition with messages says so at once. What is under way is
bounded: one Want or Pull for each partition, one Watch at each. Nothing is taken back: who is told
and needs nothing any more forgets it, and the root watches on for those who still want.

The root takes what is left in partitions that are *closing*, as far as it has room.
"""

from collections.abc import Collection
from typing import Final, NamedTuple

PULL_MAX: Final = 500
"""Messages that are taken from another partition at once."""


class Want(NamedTuple):
    """Tell the root that polls wait here; `Exchange.answered` hears the answer."""

    root: str
    messages: int


class Watch(NamedTuple):
    """Ask a partition to say when it has messages; `Exchange.has` hears it."""

    node: str


class Has(NamedTuple):
    """Answer the root's Watch: so many messages are here."""

    messages: int


class Tell(NamedTuple):
    """Answer a partition's Want: there are messages at `source`."""

    node: str
    source: str


class Pull(NamedTuple):
    """Take messages from a partition; put them into this one, then `Exchange.pulled`."""

    source: str
    messages: int


Effect = Want | Watch | Has | Tell | Pull


class Exchange:
    """What one partition knows of the others; `nodes` have one each, the first is the root."""

    __slots__ = (
        "_backlog",
        "_busy",
        "_closing",
        "_is_paused",
        "_is_watched",
        "_others",
        "_polls",
        "_room",
        "_wants",
        "_watched",
        "me",
        "root",
    )

    def __init__(self, me: str, root: str) -> None:
        self.me = me
        self.root = root
        self._others: tuple[str, ...] = ()
        self._closing: frozenset[str] = frozenset()
        self._backlog = self._polls = self._room = 0
        self._busy: Want | Pull | None = None
        """What is under way for the polls that wait here."""
        self._is_paused = False
        """The last try failed: the next one is at the tick."""
        self._is_watched = False
        self._wants: dict[str, int] = {}
        """At the root: who wants, first come first, and how many."""
        self._watched: set[str] = set()
        """At the root: where a Watch is under way."""

    def __repr__(self) -> str:
        return f"<Exchange of {self.me}, {self._backlog} messages, {self._polls} polls>"

    @property
    def is_root(self) -> bool:
        """This partition is the root."""
        return self.me == self.root

    @property
    def is_idle(self) -> bool:
        """Nothing is here, nothing is on its way here, and nobody waits."""
        return not (self._backlog or self._polls or isinstance(self._busy, Pull))

    @property
    def need(self) -> int:
        """How many messages are wanted from others."""
        return 0 if self._backlog else min(self._polls, PULL_MAX)

    def set_others(self, nodes: Collection[str], closing: Collection[str]) -> list[Effect]:
        """Take who has the other partitions, and which of those are to be emptied."""
        self._others = tuple(node for node in nodes if node != self.me)
        self._closing = frozenset(closing)
        self._watched.intersection_update(self._others)
        for node in set(self._wants).difference(nodes):
            del self._wants[node]
        return self._step()

    # What happens here

    def changed(self, backlog: int, polls: int, room: int = 0) -> list[Effect]:
        """Take how many messages and polls wait here, and for how many more there is room."""
        self._backlog, self._polls, self._room = backlog, polls, room
        return self._step()

    def tick(self) -> list[Effect]:
        """Try again what failed."""
        self._is_paused = False
        return self._step()

    # What others say

    def watched(self) -> list[Effect]:
        """The root wants to know when there are messages."""
        self._is_watched = True
        return self._step()

    def answered(self, source: str | None) -> list[Effect]:
        """Our Want was answered, or (None) it failed."""
        if not isinstance(self._busy, Want):
            return []
        self._busy = None
        if source is None:
            self._is_paused = True
            return []
        return self._pull_for_polls(source) if self.need and source != self.me else self._step()

    def pulled(self, source: str, left: int, *, backlog: int, polls: int) -> list[Effect]:
        """What we took has been put here, and so many are left there; or there were none."""
        if isinstance(self._busy, Pull):
            self._busy = None
        self._backlog, self._polls = backlog, polls
        if left and self.need:
            return self._pull_for_polls(source)
        return self._step()

    def pull_failed(self) -> list[Effect]:
        """The other partition does not answer."""
        if isinstance(self._busy, Pull):
            self._busy = None
        self._is_paused = True
        return []

    def wanted(self, node: str, count: int) -> list[Effect]:
        """At the root: polls wait at a partition."""
        self._wants[node] = count
        return self._step()

    def has(self, node: str, count: int) -> list[Effect]:
        """At the root: a partition has messages; 0: the Watch failed."""
        self._watched.discard(node)
        if not count:
            self._is_paused = True
            return []
        effects = self._serve(node, count)
        if not effects and self._drains(node, effects):
            return effects
        if self._wants.pop(node, None) is not None:
            # It wanted before these came. Else we would watch it for itself, for ever.
            effects.append(Tell(node, node))
        return effects + self._step()

    # Deciding

    def _step(self) -> list[Effect]:
        effects: list[Effect] = []
        if self._is_watched and self._backlog and not self._polls:
            self._is_watched = False
            effects.append(Has(self._backlog))
        if self.is_root:
            if self.need and self._busy is None:
                self._wants.setdefault(self.me, self.need)
            else:
                self._wants.pop(self.me, None)
            if self._backlog and not self._polls:
                effects += self._serve(self.me, self._backlog)
            self._watch(effects)
        elif self.need and self._busy is None and not self._is_paused:
            self._busy = Want(self.root, self.need)
            effects.append(self._busy)
        return effects

    def _serve(self, source: str, count: int) -> list[Effect]:
        """Tell those who want, as far as it lasts."""
        effects: list[Effect] = []
        for node in [node for node in self._wants if node != source]:
            if count <= 0:
                break
            count -= self._wants.pop(node)
            if node == self.me:
                effects += self._pull_for_polls(source)
            else:
                effects.append(Tell(node, source))
        return effects

    def _drains(self, node: str, effects: list[Effect]) -> bool:
        """Take what is left in a partition that closes; if there is no room, wait for the tick."""
        if node not in self._closing:
            return False
        if self._room > 0 and self._busy is None:
            self._busy = Pull(node, min(self._room, PULL_MAX))
            effects.append(self._busy)
            return True
        self._is_paused = True
        return False

    def _watch(self, effects: list[Effect]) -> None:
        if self._is_paused:
            return
        nodes = self._others if self._wants else self._closing
        for node in nodes:
            if node not in self._watched:
                self._watched.add(node)
                effects.append(Watch(node))

    def _pull_for_polls(self, source: str) -> list[Effect]:
        self._busy = Pull(source, self.need)
        return [self._busy]
