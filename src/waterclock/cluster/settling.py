"""Which streams go where when the ring changes, and who may answer for them meanwhile. Pure.

A node that learns of another ring looks at all streams it has and sends those that are no longer
its own to their owners, in chunks. The new owner of a stream that it does not have must not begin
it anew while another node may still send it: it asks the others whether they have sent all that is
its own, and until they say so answers that it cannot answer yet. These rules are kept:

- A stream is in the memory of one node, or in one chunk. A chunk of which nobody knows whether it
  came is sent again only to the same run of the same node, which takes a number once; if that node
  is gone, so is the chunk.
- A chunk is taken only by a node with the same ring, so it is never sent on behind the back of a
  node that was told that there is nothing more.
- Nobody is waited for longer than `PATIENCE_MS` without a sign of progress.

    ring_changed, link_up, link_down, greeted, asked, ...   what happened; each returns
    Effect, ...                                            what to do, in this order
    may_serve(name, ...)                                   whether to answer for a stream
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from waterclock.cluster.hash_ring import HashRing

PATIENCE_MS: Final = 5_000
PAUSE_MS: Final = 50
"""Before something that failed is tried again."""
CHUNK_BITS: Final = 22
"""Of the number of a chunk; the bits above are the run of the node that sends it."""
RINGS_MAX: Final = 16
"""Old rings that are remembered; with more, any node may have had any stream."""


class Look(NamedTuple):
    """Look at all streams in memory: tell `found` of each, then `looked`. Begin anew if told so."""


class Greet(NamedTuple):
    """Ask a node for its run, and tell `greeted`, or `not_greeted`."""

    node: str


class Ask(NamedTuple):
    """Ask a node to answer when it has sent all that is ours: `confirmed`, or `not_confirmed`."""

    node: str
    version: int


class Confirm(NamedTuple):
    """Answer a node that asked: it has all that is its own."""

    node: str


class Send(NamedTuple):
    """Send a node some of its streams: `next_name`, then `sent`; `emptied` if there are none."""

    node: str


class Resend(NamedTuple):
    """Send a chunk again, to the same node, as it was: under the ring of then."""

    node: str
    number: int


class TakeBack(NamedTuple):
    """Take the streams of a chunk back into memory: nobody has them."""

    number: int


class Lose(NamedTuple):
    """Forget a chunk: its receiver is gone, and may have had it."""

    number: int


Effect = Look | Greet | Ask | Confirm | Send | Resend | TakeBack | Lose


class _Chunk:
    """Streams on their way to a node."""

    __slots__ = ("is_unknown", "names", "number", "run", "version")

    def __init__(self, number: int, version: int, run: int, names: tuple[str, ...]) -> None:
        self.number = number
        self.version = version
        self.run = run
        self.names = names
        self.is_unknown = False
        """The way to the node broke: it may have come, or not."""


class _Awaited:
    """A node that we ask whether it has sent all."""

    __slots__ = ("deadline_ms", "is_asked")

    def __init__(self, deadline_ms: int) -> None:
        self.deadline_ms = deadline_ms
        self.is_asked = False


class Settling:
    """What one node knows of streams under way. `run` must differ from all runs before it."""

    def __init__(self, node_id: str, *, run: int) -> None:
        self.ring: HashRing | None = None
        self.run = run
        self.lost = 0
        """Streams in chunks whose receiver is gone."""
        self.timeouts = 0
        """Nodes that were waited for in vain."""
        self._node_id = node_id
        self._next_number = run << CHUNK_BITS
        self._linked: set[str] = set()
        self._gone: set[str] = set()
        """Nodes that do not answer, though there is a link still."""
        self._old: list[HashRing | None] = []
        """Rings by which other nodes may still have streams of ours; None: any ring."""
        self._awaited: dict[str, _Awaited] = {}
        self._askers: dict[str, int] = {}
        """Nodes that ask us, and their rings."""
        self._answered: set[str] = set()
        """Nodes that asked, by this ring, and were told."""
        self._queues: dict[str, deque[str]] = {}
        self._chunks: dict[str, _Chunk] = {}
        """The one under way to each node."""
        self._held: set[str] = set()
        """Streams in chunks."""
        self._runs: dict[str, int] = {}
        self._greeting: set[str] = set()
        self._pauses: dict[str, int] = {}
        self._taken: dict[str, int] = {}
        """The number of the last chunk of each node."""
        self._is_looking = False

    def __repr__(self) -> str:
        sending = sum(map(len, self._queues.values())) + len(self._held)
        return f"<Settling of {self._node_id}, {sending} to send, {len(self._awaited)} awaited>"

    @property
    def is_settled(self) -> bool:
        """Everything that is ours may be answered for."""
        return not self._old and not self._held

    @property
    def is_sent(self) -> bool:
        """Nothing is here that belongs elsewhere."""
        return not (self._is_looking or self._chunks or any(self._queues.values()))

    @property
    def may_leave(self) -> bool:
        """Nothing is here, and nothing comes any more: all others know this ring."""
        return self.is_sent and self._answered.issuperset(self._linked - self._gone)

    def may_serve(self, name: str, *, is_in_memory: bool) -> bool:
        """Return whether to answer for a stream that is ours by the ring."""
        if name in self._held:
            return False
        if is_in_memory or not self._awaited:
            return True
        # Whoever had it may have sent it to a node that we never knew as its owner, and that has
        # not sent it on: all others are asked. What was ours by every ring cannot have left us.
        return all(ring is not None and ring.owner(name) == self._node_id for ring in self._old)

    # Rings and links

    def ring_changed(
        self, ring: HashRing, now_ms: int, *, gone: Iterable[str] = ()
    ) -> list[Effect]:
        """Begin to settle: there is another ring. Nobody waits for nodes that are known as gone,
        whatever becomes of the links to them."""
        before, self.ring = self.ring, ring
        if before is not None and before.version == ring.version:
            return []
        self._remember(before)
        self._queues.clear()
        self._pauses.clear()
        self._answered.clear()
        self._is_looking = True
        self._gone = set(gone)
        others = {*ring.nodes, *self._linked} - {self._node_id, *self._gone}
        deadline_ms = now_ms + PATIENCE_MS
        self._awaited = {node: _Awaited(deadline_ms) for node in others}
        self._forget_if_settled()
        return [Look(), *self._lose_to_the_gone(), *self._go_on(now_ms)]

    def _remember(self, ring: HashRing | None) -> None:
        """Remember an old ring. By one without others, anything may have happened elsewhere."""
        is_too_much = None in self._old or len(self._old) >= RINGS_MAX
        if ring is None or not set(ring.nodes) - {self._node_id} or is_too_much:
            self._old = [None]
        elif ring.version not in {each.version for each in self._old if each is not None}:
            self._old.append(ring)

    def link_up(self, node: str, now_ms: int) -> list[Effect]:
        """A node can be asked."""
        self._linked.add(node)
        self._gone.discard(node)
        if self.ring is not None and set(self.ring.nodes) <= {self._node_id}:
            # We are alone by our ring and yet not alone: others may know of us before we of them.
            self._old = [None]
        if self._old:  # it may have come, and been sent something, since the ring changed
            self._awaited.setdefault(node, _Awaited(now_ms + PATIENCE_MS))
        self._unlearn(node)
        self._pauses.pop(node, None)
        return self._go_on(now_ms, [node])

    def link_down(self, node: str) -> list[Effect]:
        """A node cannot be asked any more."""
        self._linked.discard(node)
        self._askers.pop(node, None)
        self._unlearn(node)
        if self.ring is not None and node not in self.ring.nodes:
            self._awaited.pop(node, None)
            self._forget_if_settled()
        return [*self._lose_to_the_gone(), *self._confirm()]

    def _unlearn(self, node: str) -> None:
        """Ask a node everything anew: it may be another run of it."""
        self._runs.pop(node, None)
        self._greeting.discard(node)
        if (chunk := self._chunks.get(node)) is not None:
            chunk.is_unknown = True
        if (awaited := self._awaited.get(node)) is not None:
            awaited.is_asked = False

    def _lose_to_the_gone(self) -> list[Effect]:
        there = self._linked.union(() if self.ring is None else self.ring.nodes)
        gone = [node for node in self._chunks if node not in there]
        return [self._lose(node) for node in gone]

    def _lose(self, node: str) -> Lose:
        chunk = self._landed(node)
        self.lost += len(chunk.names)
        return Lose(chunk.number)

    def _landed(self, node: str) -> _Chunk:
        chunk = self._chunks.pop(node)
        self._held.difference_update(chunk.names)
        return chunk

    # Sending

    def found(self, name: str) -> bool:
        """Return whether a stream in memory belongs elsewhere; then it is sent there."""
        assert self.ring is not None
        owner = self.ring.owner(name) if self.ring.nodes else self._node_id
        if owner == self._node_id:
            return False
        self._queues.setdefault(owner, deque()).append(name)
        return True

    def looked(self, now_ms: int) -> list[Effect]:
        """All streams in memory were found."""
        self._is_looking = False
        return [*self._go_on(now_ms), *self._confirm()]

    def next_name(self, node: str) -> str | None:
        """Return the next stream to send to a node."""
        queue = self._queues.get(node)
        return queue.popleft() if queue else None

    def sent(self, node: str, names: Iterable[str]) -> int:
        """Note that streams are under way to a node; return the number of their chunk."""
        assert self.ring is not None
        assert node not in self._chunks
        self._next_number += 1
        chunk = _Chunk(self._next_number, self.ring.version, self._runs[node], tuple(names))
        self._chunks[node] = chunk
        self._held.update(chunk.names)
        return chunk.number

    def names_in(self, node: str) -> tuple[str, ...]:
        """Return the streams under way to a node."""
        chunk = self._chunks.get(node)
        return () if chunk is None else chunk.names

    def emptied(self) -> list[Effect]:
        """There was nothing left to send."""
        return self._confirm()

    def greeted(self, node: str, run: int, now_ms: int) -> list[Effect]:
        """A node says which run of it this is."""
        self._greeting.discard(node)
        self._runs[node] = run
        chunk = self._chunks.get(node)
        if chunk is not None and chunk.run != run:
            return [self._lose(node), *self._go_on(now_ms, [node]), *self._confirm()]
        return self._go_on(now_ms, [node])

    def not_greeted(self, node: str, now_ms: int) -> None:
        """A node did not say it: ask again, a little later."""
        self._greeting.discard(node)
        self._pauses[node] = now_ms + PAUSE_MS

    def taken(self, node: str, number: int, now_ms: int) -> list[Effect]:
        """A node has a chunk in its memory."""
        chunk = self._chunks.get(node)
        if chunk is None or chunk.number != number:
            return []
        self._landed(node)
        return [*self._go_on(now_ms, [node]), *self._confirm()]

    def put_off(self, node: str, number: int, now_ms: int) -> list[Effect]:
        """A node does not take a chunk, for it has another ring; send it later, perhaps elsewhere.
        Take it back before anything else."""
        chunk = self._chunks.get(node)
        if chunk is None or chunk.number != number:
            return []
        self._landed(node)
        self._pauses[node] = now_ms + PAUSE_MS
        for name in chunk.names:
            self.found(name)
        return [TakeBack(number), *self._go_on(now_ms), *self._confirm()]

    def broke(self, node: str, number: int, now_ms: int) -> list[Effect]:
        """Nobody knows whether a chunk came: the way broke."""
        chunk = self._chunks.get(node)
        if chunk is not None and chunk.number == number:
            self._unlearn(node)
            self._pauses[node] = now_ms + PAUSE_MS
        return [*self._lose_to_the_gone(), *self._confirm()]

    # What comes from other nodes

    def arrives(self, node: str, number: int, version: int, now_ms: int) -> bool | None:
        """Return whether to take a chunk in: None, for it was taken; False, for the node that sent
        it has another ring."""
        if (awaited := self._awaited.get(node)) is not None:
            awaited.deadline_ms = now_ms + PATIENCE_MS
        last = self._taken.get(node, 0)
        if number <= last and number >> CHUNK_BITS == last >> CHUNK_BITS:
            return None
        if self.ring is None or version != self.ring.version:
            return False
        self._taken[node] = number
        return True

    def asked(self, node: str, version: int) -> list[Effect]:
        """A node with that ring asks to be told when it has all that is its own."""
        self._askers[node] = version
        self._answered.discard(node)  # what it asked before was by another ring, or is forgotten
        return self._confirm()

    def unasked(self, node: str) -> None:
        """A node asks no more."""
        self._askers.pop(node, None)

    def _confirm(self) -> list[Effect]:
        if self._is_looking or self.ring is None:
            return []
        version = self.ring.version
        if any(chunk.version != version for chunk in self._chunks.values()):
            return []
        ready = [
            node
            for node, ring in self._askers.items()
            if ring == version and not self._queues.get(node) and node not in self._chunks
        ]
        for node in ready:
            del self._askers[node]
        self._answered.update(ready)
        return [Confirm(node) for node in ready]

    # What other nodes answer

    def confirmed(self, node: str, version: int) -> None:
        """A node says that it has sent all that was ours by a ring."""
        if self.ring is not None and version == self.ring.version:
            self._awaited.pop(node, None)
            self._forget_if_settled()

    def not_confirmed(self, node: str, now_ms: int) -> None:
        """A node does not answer: ask again, a little later."""
        if (awaited := self._awaited.get(node)) is not None:
            awaited.is_asked = False
            self._pauses[node] = now_ms + PAUSE_MS

    def _forget_if_settled(self) -> None:
        if not self._awaited:
            self._old.clear()

    # Time

    def tick(self, now_ms: int) -> list[Effect]:
        """Try again what failed, and wait no longer for nodes that say nothing."""
        late = [node for node, each in self._awaited.items() if each.deadline_ms <= now_ms]
        for node in late:
            del self._awaited[node]
        self.timeouts += len(late)
        self._forget_if_settled()
        return self._go_on(now_ms)

    def _go_on(self, now_ms: int, nodes: Iterable[str] | None = None) -> list[Effect]:
        """Return what can be asked of nodes, or sent to them, now."""
        effects: list[Effect] = []
        for node in sorted(self._linked) if nodes is None else nodes:
            if node in self._linked and self._pauses.get(node, 0) <= now_ms:
                effects += self._ask(node)
                effects += self._send(node)
        return effects

    def _ask(self, node: str) -> list[Effect]:
        awaited = self._awaited.get(node)
        # A node that leaves takes the question as the word that nothing more comes from here.
        if self.ring is None or awaited is None or awaited.is_asked or node in self._chunks:
            return []
        awaited.is_asked = True
        return [Ask(node, self.ring.version)]

    def _send(self, node: str) -> list[Effect]:
        chunk = self._chunks.get(node)
        if chunk is None and not self._queues.get(node):
            return []
        if node not in self._runs:
            if node in self._greeting:
                return []
            self._greeting.add(node)
            return [Greet(node)]
        if chunk is None:
            return [Send(node)]
        if chunk.is_unknown:
            chunk.is_unknown = False
            return [Resend(node, chunk.number)]
        return []
