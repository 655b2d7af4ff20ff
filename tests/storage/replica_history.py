"""Random histories of a replica on a failing disk: leaders come and go, and it follows each.

A leader is a healthy log; the next one has some of the frames of one before it, all that was
committed among them, and goes on from there in its own epoch. The replica takes frames, flushes,
hears of commits, finds out where it must cut its log, and cuts it, while its process is killed and
its power is cut at any sync. It must hold that its log is at all times the beginning of what it was
last given, with everything flushed; that nothing committed is ever cut; and that ids, timers and
epochs are those of the frames that are left.
"""

from collections.abc import Callable
from random import Random

from tests.storage.replicas import copies, derived, raw, take
from tests.storage.stores import Partition, message, offsets
from waterclock.model.ids import Epoch
from waterclock.storage.replica_log import ReplicaLog

STEPS = 30
ATTEMPTS = 60
"""More power cuts in a row than any truncation meets."""


class PowerCut(Exception):
    """The machine ends in the middle of a sync."""


class ReplicaHistory:
    """One replica, its disk, and the leader of the moment."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.number = 0
        self.epoch = 0
        self.committed = 0
        self.flushed = 0
        self.replica = Partition(segment_bytes=4096, checkpoint_every_bytes=1500)
        self.given: list[tuple[object, ...]] = []
        """The frames that the replica was given last; its log is their beginning."""
        self.leaders: list[Partition] = []
        """All that led and have everything that is committed."""
        self.leader = self.next_leader()

    def run(self) -> None:
        """Do some steps, then let it catch up and compare everything."""
        steps = [self.lead, self.lead, self.follow, self.follow, self.follow, self.flush,
                 self.flush, self.commit, self.change_leader, self.roll, self.jobs, self.kill,
                 self.cut_power, self.restart]  # fmt: skip
        for _ in range(STEPS):
            self.random.choice(steps)()
        self.reconcile()
        while self.replica.store.end < self.leader.store.end:
            self.follow()
        self.flush()
        assert copies(self.replica) == copies(self.leader)
        assert derived(self.replica) == derived(self.leader)

    # The leader

    def next_leader(self) -> Partition:
        """Return a healthy log that leads a new epoch, on top of what it must have."""
        leader = Partition()
        self.epoch += self.random.randrange(1, 3)
        if self.leaders:
            before = self.random.choice(self.leaders)
            ends = [f.header.end_offset for f in before.store.reader.frames(0)]
            kept = self.random.choice([end for end in ends if end >= self.committed])
            take(leader, raw(before, 0, kept), leader_epoch=self.epoch)
        leader.clock.advance(max(0, leader.store.log_time_ms - leader.clock.now_ms()))
        log = ReplicaLog(leader.store)
        log.begin_epoch(Epoch(self.epoch), now_ms=leader.clock.now_ms())
        self.leaders.append(leader)
        return leader

    def lead(self) -> None:
        """Publish, schedule, fire, cancel."""
        leader, random = self.leader, self.random
        now = leader.clock.now_ms()
        opened = sorted(leader.scheduled())
        match random.randrange(5):
            case 0 if opened:
                leader.store.fire(offsets(random.choice(opened)), now_ms=now)
            case 1 if opened:
                leader.store.cancel(offsets(random.choice(opened)), now_ms=now)
            case 2:
                # The same ids are published by several leaders: some of these are undone.
                ids = [random.randrange(20) for _ in range(3)]
                leader.append(*(message(n, due_ms=now + 50 + n) for n in ids))
            case _:
                size = random.choice([10, 300, 1500])
                leader.append(message(random.randrange(20), value=b"v" * size))
        leader.clock.advance(random.randrange(3))

    def change_leader(self) -> None:
        self.leader = self.next_leader()
        if self.random.random() < 0.9:
            self.reconcile()

    # The replica

    def follow(self) -> None:
        """Take some frames, after finding out whether the logs agree."""
        self.reconcile()
        frames = [*self.leader.store.reader.frames(self.replica.store.end)]
        frames = frames[: self.random.randrange(1, 6)]
        take(self.replica, b"".join(frame.raw for frame in frames), leader_epoch=self.epoch)
        self.given = copies(self.leader)
        self.check()

    def reconcile(self) -> None:
        """Cut the replica's log where it leaves the leader's, if it does."""
        for _ in range(ATTEMPTS):
            if (end := self.parting()) == self.replica.store.end:
                return
            self.replica.folder.on_sync = self.burning(self.random.randrange(1, 14))
            try:
                self.cut_log(end)
            except PowerCut:
                self.flushed = min(self.flushed, end)
                self.cut_power()
                continue
            self.replica.folder.on_sync = None
            assert self.replica.store.end == end, "it was cut elsewhere"
            self.check()
        raise AssertionError("the log is never cut")

    def parting(self) -> int:
        """Return where the replica's log leaves the leader's, by their epochs."""
        mine = ReplicaLog(self.replica.store).lineage
        theirs = ReplicaLog(self.leader.store).lineage
        claim = mine.last
        while (answer := theirs.diverging(claim)) is not None:
            claim = mine.retreat(answer)
        return claim.end

    def cut_log(self, end: int) -> None:
        log = ReplicaLog(self.replica.store)
        log.commit(self.committed)
        log.truncate(end)
        self.flushed = end
        (self.replica.close if self.random.random() < 0.5 else self.replica.kill)()
        self.replica.open()

    def burning(self, syncs: int) -> Callable[[str], None]:
        """Return a hook that ends the machine in one of the next syncs."""
        left = [syncs]

        def on_sync(name: str) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise PowerCut

        return on_sync

    def flush(self) -> None:
        self.replica.flush()
        self.flushed = int(self.replica.store.flushed_end)

    def commit(self) -> None:
        """A majority has flushed something: the replica and the leader among them."""
        if copies(self.replica) == copies(self.leader)[: len(copies(self.replica))]:
            self.committed = max(self.committed, self.flushed)
            ReplicaLog(self.replica.store).commit(self.committed)
            assert self.replica.store.acknowledged_end <= self.committed
            sure = copies(self.leader, self.committed)
            self.leaders = [each for each in self.leaders if copies(each)[: len(sure)] == sure]

    def roll(self) -> None:
        self.replica.store.roll(self.replica.clock.now_ms())
        self.flushed = int(self.replica.store.flushed_end)

    def jobs(self) -> None:
        self.replica.store.run_jobs()

    def kill(self) -> None:
        end = self.replica.store.end
        self.replica.kill()
        self.replica.open()
        assert self.replica.store.end == end
        self.flushed = int(end)
        self.check()

    def restart(self) -> None:
        self.replica.restart()
        self.flushed = int(self.replica.store.end)
        self.check()

    def cut_power(self) -> None:
        self.replica.folder.on_sync = None
        self.replica.cut_power(self.random.randrange)
        self.replica.open()
        assert self.replica.store.end >= self.flushed, "what was flushed is gone"
        self.flushed = int(self.replica.store.end)
        self.check()

    def check(self) -> None:
        """Compare the log with what it was given, and what is derived with the frames."""
        store = self.replica.store
        assert not store.faults, store.faults
        found = copies(self.replica)
        assert found == self.given[: len(found)], "not the beginning of what it was given"
        assert store.end >= self.committed
        fresh = Partition()
        take(fresh, raw(self.replica), leader_epoch=self.epoch)
        assert derived(self.replica) == derived(fresh)
        assert ReplicaLog(store).lineage == ReplicaLog(fresh.store).lineage
