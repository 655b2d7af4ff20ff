"""The rules by which nodes become alive, suspect, dead or left (SWIM 4.2, and memberlist's).

Every claim about a node bears an incarnation, which only that node raises. A claim that it is alive
counts if its incarnation is greater than the known one; that it is suspect or dead, if it is not
less. So of two claims that meet anywhere, the same one wins everywhere. A node that hears itself
accused refutes, with an incarnation above the accusation's.

Beyond memberlist, and harmless to it: a refutation also goes straight to whoever sent the
accusation, and a node that shows itself alive with an incarnation too low to count is sent what it
has to refute. Without these, nodes that came back after everyone had given them up, or with a clock
that had been set back, stay dead to those who remember them. And who has seen for itself that the
process of a node is gone says so at once: the claim is that of a suspicion that has ended, so a
node that lives after all refutes it like any other.

An accuser that is cut off itself is heard by nobody, so nobody refutes; memberlist's would tell
everyone of deaths once it is heard again, and healthy nodes would be gone for a moment. Ours
accuses again when the first node answers it, and tells nobody of a death while none does. It doubts
all its accusations when it hears that it was accused itself, or that a dead node lives: two parts
of a cluster have met again. And what a node says of deaths that is suspect or dead to us is no more
than a suspicion.
"""

from collections.abc import Callable, Iterable

from waterclock.cluster.gossip.config import GossipConfig
from waterclock.cluster.gossip.effects import Conflicted, Failed, Joined, Left, Updated
from waterclock.cluster.gossip.lifeguard import Awareness, Suspicion, suspicion_ms
from waterclock.cluster.gossip.members import Members, Node
from waterclock.cluster.gossip.messages import U32_MAX, Address, Alive, Dead, Suspect
from waterclock.cluster.gossip.outbox import Outbox
from waterclock.cluster.gossip.serf import is_understood
from waterclock.cluster.gossip.streams import NODES_MAX, NodeState, State
from waterclock.cluster.gossip.timers import Timers


class Membership:
    """Applies claims about nodes."""

    def __init__(
        self,
        config: GossipConfig,
        members: Members,
        *,
        outbox: Outbox,
        timers: Timers,
        awareness: Awareness,
        was_lost: Callable[[str], bool],
    ) -> None:
        """`was_lost` says of a name that is not known whether its node failed once."""
        self._config = config
        self._members = members
        self._me = members.me
        self._outbox = outbox
        self._timers = timers
        self._awareness = awareness
        self._was_lost = was_lost
        self._unannounced: dict[str, Node] = {}
        """Nodes that we have suspected since somebody last answered us."""
        self.has_left = False

    def alive(self, claim: Alive, now_ms: int, source: Address | None = None) -> None:
        """Someone, `source` if it is known who, says that a node is there."""
        if claim.node == self._me.name:
            return self._alive_of_me(claim, now_ms, source)
        if not is_understood(claim.versions):
            return None
        node = self._members.get(claim.node)
        is_new = node is None
        if node is None:
            if len(self._members) >= NODES_MAX:
                return None
            node = Node(claim, now_ms)
            self._members.add(node)
        elif node.address != claim.address:
            if not self._may_move(node, now_ms):
                return self._outbox.add(Conflicted(node.view(), claim.address))
        elif claim.incarnation <= node.incarnation:
            if node.is_gone:
                self._accuse_again(node, now_ms)
            return None
        was_gone, old_meta = node.is_gone, node.meta
        node.describe(claim)
        node.become(State.ALIVE, claim.incarnation, now_ms)
        self._outbox.broadcast(node.name, claim)
        if was_gone:
            self._outbox.add(Joined(node.view()))
            if not is_new:
                self._doubt_deaths()
        elif old_meta != node.meta:
            self._outbox.add(Updated(node.view()))
        return None

    def suspect(self, claim: Suspect, now_ms: int, source: Address | None = None) -> None:
        """Someone says that a node does not answer."""
        node = self._members.get(claim.node)
        if node is None or claim.incarnation < node.incarnation:
            return
        if node.suspicion is not None:
            if node.suspicion.confirm(claim.accuser):
                if node.suspicion.announced_ms is None:
                    node.suspicion.announced_ms = now_ms
                self._outbox.broadcast(node.name, claim)
                self._await_refutation(node, node.suspicion)
            return
        if node.state != State.ALIVE:
            return
        if node is self._me:
            self._refute(claim.incarnation, now_ms, source)
            return
        self._outbox.broadcast(node.name, claim)
        node.become(State.SUSPECT, claim.incarnation, now_ms)
        node.suspicion = self._suspicion(claim.accuser, now_ms)
        if claim.accuser == self._me.name:
            self._unannounced[node.name] = node
        else:
            node.suspicion.announced_ms = now_ms
        self._await_refutation(node, node.suspicion)

    def answered(self, now_ms: int) -> None:
        """A node answered us, so we are heard: accuse again those who perhaps never heard it."""
        unannounced, self._unannounced = self._unannounced, {}
        for node in unannounced.values():
            suspicion = node.suspicion
            if suspicion is None or suspicion.announced_ms is not None:
                continue
            suspicion.announced_ms = now_ms
            accusation = Suspect(node.incarnation, node.name, self._me.name)
            self._outbox.broadcast(node.name, accusation)
            self._outbox.send_alone(accusation, to=node)
            self._await_refutation(node, suspicion)

    def stood_still(self, length_ms: int) -> None:
        """We did not run for so long: suspects may have refuted meanwhile."""
        for node in self._members.all():
            if node.suspicion is not None:
                node.suspicion.postpone(length_ms)
                self._await_refutation(node, node.suspicion)

    def dead(self, claim: Dead, now_ms: int, source: Address | None = None) -> None:
        """Someone says that a node is gone; if it is the node itself, it left."""
        node = self._members.get(claim.node)
        if node is None or claim.incarnation < node.incarnation or node.is_gone:
            return
        if node is self._me and not self.has_left:
            self._refute(claim.incarnation, now_ms, source)
            return
        if claim.accuser != claim.node and self._is_doubtful(claim.accuser):
            self.suspect(Suspect(*claim), now_ms, source)
            return
        self._outbox.broadcast(node.name, claim)
        self._end(node, claim, now_ms)

    def declare_failed(self, name: str, now_ms: int) -> None:
        """We know by other means that a node is gone: no suspicion is needed."""
        node = self._members.get(name)
        if node is not None and node is not self._me:
            self.dead(Dead(node.incarnation, name, self._me.name), now_ms)

    def merge(self, states: Iterable[NodeState], now_ms: int) -> None:
        """Apply all that another node knows.

        What it takes for dead is only suspect to us: its knowledge may be old, and a node must have
        its chance to refute.
        """
        get, me = self._members.get, self._me
        for name, address, meta, incarnation, state, versions in states:
            if state == State.ALIVE:
                node = get(name)
                # Nearly all of a push/pull is known: this line is what makes it cheap.
                if node is not None and node.is_known(address, incarnation) and node is not me:
                    continue
                self.alive(Alive(incarnation, name, address, meta, versions), now_ms)
            elif state == State.LEFT:
                self.dead(Dead(incarnation, name, name), now_ms)
            else:
                self.suspect(Suspect(incarnation, name, self._me.name), now_ms)

    def describe(self, meta: bytes, now_ms: int) -> None:
        """Say something else of ourselves to everyone."""
        self._me.describe(self._me.alive()._replace(meta=meta))
        self._raise_incarnation(0, now_ms)

    def _end(self, node: Node, claim: Dead, now_ms: int) -> None:
        has_left = claim.node == claim.accuser
        node.become(State.LEFT if has_left else State.DEAD, claim.incarnation, now_ms)
        if node is not self._me:
            self._outbox.add(Left(node.view()) if has_left else Failed(node.view()))

    def _alive_of_me(self, claim: Alive, now_ms: int, source: Address | None) -> None:
        me = self._me
        if self.has_left or claim.incarnation < me.incarnation:
            return
        if claim.address != me.address:
            self._outbox.add(Conflicted(me.view(), claim.address))
        # The same incarnation with another description is one from before we were started anew.
        elif claim != me.alive():
            self._refute(claim.incarnation, now_ms, source)

    def _may_move(self, node: Node, now_ms: int) -> bool:
        reclaim_ms = self._config.dead_reclaim_ms
        return node.state == State.LEFT or (
            node.state == State.DEAD and 0 < reclaim_ms < now_ms - node.changed_ms
        )

    def _accuse_again(self, node: Node, now_ms: int) -> None:
        last_ms = node.accused_ms
        if last_ms is not None and now_ms - last_ms < self._config.probe_interval_ms:
            return
        node.accused_ms = now_ms
        # As suspect and not as dead: it must have its chance with those who hold it for alive.
        accusation = Suspect(node.incarnation, node.name, self._me.name)
        if node.name not in self._outbox.broadcasts:
            self._outbox.broadcast(node.name, accusation)
        self._outbox.send_alone(accusation, to=node)

    def _doubt_deaths(self) -> None:
        """Accuse again all whom we suspect: they, or we, may have been cut off until now."""
        for node in self._members.all():
            if node.suspicion is not None:
                node.suspicion.announced_ms = None
                self._unannounced[node.name] = node
            elif node.state == State.DEAD and node.name in self._outbox.broadcasts:
                accusation = Suspect(node.incarnation, node.name, self._me.name)
                self._outbox.broadcast(node.name, accusation)

    def _is_doubtful(self, accuser: str) -> bool:
        node = self._members.get(accuser)
        if node is None:
            return self._was_lost(accuser)
        return node.state in (State.SUSPECT, State.DEAD)

    def _refute(self, accused: int, now_ms: int, source: Address | None) -> None:
        self._doubt_deaths()
        self._awareness.change(1)
        self._raise_incarnation(accused, now_ms)
        if source is not None:
            self._outbox.send_alone(self._me.alive(), to=source)

    def _raise_incarnation(self, above: int, now_ms: int) -> None:
        incarnation = min(max(self._me.incarnation, above) + 1, U32_MAX)
        self._me.become(State.ALIVE, incarnation, now_ms)
        self._outbox.broadcast(self._me.name, self._me.alive())

    def _suspicion(self, accuser: str, now_ms: int) -> Suspicion:
        config, count = self._config, len(self._members)
        # Two probe intervals are left for the news to come and go.
        expected = config.suspicion_mult - 2
        # Without ourselves and the suspect there may be too few to confirm. memberlist counts the
        # dead too, and so waits six times as long when two of three fail one after the other.
        expected = 0 if self._members.count_present() - 2 < expected else expected
        min_ms = suspicion_ms(config.suspicion_mult, count, config.probe_interval_ms)
        max_ms = config.suspicion_max_mult * min_ms
        return Suspicion(accuser, expected=expected, min_ms=min_ms, max_ms=max_ms, now_ms=now_ms)

    def _await_refutation(self, node: Node, suspicion: Suspicion) -> None:
        suspicion.end()

        def time_out(now_ms: int) -> None:
            claim = Dead(node.incarnation, node.name, self._me.name)
            if suspicion.announced_ms is None:
                self._end(node, claim, now_ms)
            else:
                self.dead(claim, now_ms)

        announced_ms = suspicion.announced_ms or 0
        due_ms = max(suspicion.deadline_ms, announced_ms + self._config.probe_interval_ms)
        suspicion.timer = self._timers.at(due_ms, time_out)
