"""The publisher: numbered messages at a steady rate, each sent once, with what Redis answered."""

import threading
import time
from collections.abc import Callable

import redis

from tests.dispatch.chaos.history import Published, body_of

STEP_S = 0.01
WAIT_MS = 1_000


class Publisher(threading.Thread):
    """Publishes from its start until all is sent."""

    def __init__(
        self,
        connect: Callable[[], "redis.Redis"],
        *,
        source: str,
        is_stream: bool,
        rate: float,
        count: int,
        kind_of: Callable[[int], str],
        replicas: int = 0,
    ) -> None:
        super().__init__(daemon=True)
        self._connect = connect
        self._source = source
        self._is_stream = is_stream
        self._rate = rate
        self._count = count
        self._kind_of = kind_of
        self._replicas = replicas
        """Who must have it before it counts as published."""
        self.published: list[Published] = []

    def run(self) -> None:
        """Send what is due, as one pipeline, every few milliseconds."""
        started_s = time.monotonic()
        client = self._connect()
        sent = 0
        while sent < self._count:
            due = min(self._count, int((time.monotonic() - started_s) * self._rate))
            if due > sent:
                kinds = [(n, self._kind_of(n)) for n in range(sent, due)]
                from_s = time.monotonic()
                is_sure = self._send(client, kinds)
                if not is_sure:
                    client.close()
                    client = self._connect()
                to_s = time.monotonic()
                self.published += [Published(n, kind, from_s, to_s, is_sure) for n, kind in kinds]
                sent = due
            time.sleep(STEP_S)
        client.close()

    def _send(self, client: "redis.Redis", kinds: list[tuple[int, str]]) -> bool:
        """Return whether all of these are in for sure."""
        pipeline = client.pipeline(transaction=False)
        for n, kind in kinds:
            body = body_of(n, kind)
            if self._is_stream:
                pipeline.xadd(self._source, {"body": body})
            else:
                pipeline.publish(self._source, body)
        if self._replicas:
            pipeline.execute_command("WAIT", self._replicas, WAIT_MS)
        try:
            answers = pipeline.execute(raise_on_error=False)
        except (redis.RedisError, OSError):
            return False
        if any(isinstance(answer, Exception) for answer in answers):
            return False
        return not self._replicas or answers[-1] >= self._replicas
