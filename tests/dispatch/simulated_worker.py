"""A worker without sockets: slow, failing, or killed in the middle of its work, by chance."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.dispatch.model_redis import FAILED, STALE
from tests.dispatch.processes import Connection, Process
from waterclock.dispatch import frames
from waterclock.dispatch.core.lease import Fence
from waterclock.dispatch.decoder import Decoder
from waterclock.dispatch.frames import WORKER_READS

if TYPE_CHECKING:
    from tests.dispatch.simulation import World

CREDIT = 40
PROGRESS_MS = 300
LOOK_MS = 300


class SimulatedWorker(Process):
    """Looks for the leader, takes batches, writes, acknowledges."""

    def __init__(self, number: int, world: "World") -> None:
        super().__init__(number, world.schedule)
        self.world = world
        self.fence = Fence()
        self.connection: Connection | None = None
        self.hear(self._look)
        self.schedule.at(self.schedule.now_ms + LOOK_MS, self._look_again)

    def _look_again(self) -> None:
        """Look whether another leads by now; the connection to the old one may stay open."""
        if not self.is_dead:
            self.hear(self._look)
            self.schedule.at(self.schedule.now_ms + LOOK_MS, self._look_again)

    def _look(self) -> None:
        self.call(self.world.redis.leader, self._found)

    def _found(self, number: Any) -> None:
        leader = self.world.dispatchers.get(number) if isinstance(number, int) else None
        if self.connection is not None and self.connection.ends[0] is leader:
            return
        if leader is None or not leader.is_running or leader.plan is None:
            if self.connection is None:
                self.schedule.at(self.schedule.now_ms + 50, lambda: self.hear(self._look))
            return
        self.connection = Connection(self.world.next_key(), leader, self)
        leader.accept(self.connection, self)
        self._send(
            self.connection,
            frames.encode_hello(epoch=self.fence.epoch, credit=CREDIT, name=f"w{self.number}"),
        )

    def _send(self, connection: Connection, data: bytes) -> None:
        leader = self.world.dispatchers_ever[connection.ends[0].number]
        connection.send(self, lambda raw: leader.receive(connection.key, raw), data)

    def cut(self, connection: Connection | None) -> None:
        """Lose a connection; both ends notice later."""
        if connection is not None and not connection.is_cut:
            leader = self.world.dispatchers_ever[connection.ends[0].number]
            connection.cut(
                lambda: leader.disconnected(connection.key), self.disconnected(connection)
            )

    def disconnected(self, connection: Connection) -> Callable[[], None]:
        """Return what this worker does when it notices."""

        def notice() -> None:
            if self.connection is connection:
                self.connection = None
                self._look()

        return notice

    def receiver(self, connection: Connection) -> Callable[[bytes], None]:
        """Return what takes the bytes of a connection; they are whole frames here."""

        def receive(data: bytes) -> None:
            for frame in Decoder(WORKER_READS).feed(data):
                assert isinstance(frame, frames.ProcessBatch)
                self._process(connection, frame)

        return receive

    def _process(self, connection: Connection, batch: frames.ProcessBatch) -> None:
        if not self.fence.lets(batch.epoch):
            self.cut(connection)
            return
        self.world.judge.accepted(self.number, batch.epoch)
        rng, good = self.schedule.rng, []
        for uuid, body in zip(batch.uuids, batch.bodies, strict=True):
            if body.startswith(b"poison"):
                self._nack(connection, batch.epoch, uuid, is_permanent=True)
            elif body.startswith(b"flaky") and batch.deliveries < 3:
                self._nack(connection, batch.epoch, uuid, is_permanent=False)
            else:
                good.append((uuid, body))
        took_ms = rng.randrange(1, 20)
        if self.schedule.chance(0.05):
            took_ms = rng.randrange(100, 3_000)
        has_progress = rng.random() < 0.7
        if self.schedule.chance(0.05) and len(good) > 1:  # in two halves, one of them late
            half = len(good) // 2
            self._work(connection, batch.epoch, good[:half], took_ms, has_progress)
            good, took_ms = good[half:], took_ms + rng.randrange(0, 1_500)
        self._work(connection, batch.epoch, good, took_ms, has_progress)

    def _work(
        self,
        connection: Connection,
        epoch: int,
        messages: list[tuple[bytes, bytes]],
        left_ms: int,
        has_progress: bool,
    ) -> None:
        if not messages:
            return

        def write() -> None:
            self.call(lambda: self.world.redis.write(epoch, messages), written)

        def written(said: Any) -> None:
            if said is FAILED:
                write()
            elif said is not STALE and not connection.is_cut:
                uuids = [uuid for uuid, _ in messages]
                self._send(connection, frames.encode_ack_batch(epoch=epoch, uuids=uuids))

        def go_on() -> None:
            self._work(connection, epoch, messages, left_ms - PROGRESS_MS, has_progress)

        if left_ms > PROGRESS_MS and has_progress and not connection.is_cut:
            uuids = [uuid for uuid, _ in messages]
            self._send(connection, frames.encode_progress(epoch=epoch, uuids=uuids))
            self.schedule.at(self.schedule.now_ms + PROGRESS_MS, lambda: self.hear(go_on))
        else:
            self.schedule.at(self.schedule.now_ms + left_ms, lambda: self.hear(write))

    def _nack(self, connection: Connection, epoch: int, uuid: bytes, *, is_permanent: bool) -> None:
        nack = frames.encode_nack(epoch=epoch, uuids=[uuid], reason="x", is_permanent=is_permanent)
        self._send(connection, nack)
