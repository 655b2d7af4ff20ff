"""The watcher: who holds the lock, looked at every few milliseconds, by a way no fault touches."""

import json
import threading
import time
from collections.abc import Callable

import redis

from tests.dispatch.chaos.history import LeaderEpoch

LOOK_S = 0.004


class Watcher(threading.Thread):
    """Watches until it is stopped."""

    def __init__(self, connect: Callable[[], "redis.Redis"], lock: str) -> None:
        super().__init__(daemon=True)
        self._connect = connect
        self._lock = lock
        self._names: dict[int, str] = {}
        self._is_stopped = threading.Event()
        self.leader_epochs: list[LeaderEpoch] = []

    def call(self, port: int, name: str) -> None:
        """Say whose port it is."""
        self._names[port] = name

    @property
    def leader(self) -> LeaderEpoch | None:
        """Who took the lock last."""
        return self.leader_epochs[-1] if self.leader_epochs else None

    def stop(self) -> None:
        """End it."""
        self._is_stopped.set()
        self.join()

    def run(self) -> None:
        """Look, and note every new epoch."""
        client, last = self._connect(), b""
        while not self._is_stopped.wait(LOOK_S):
            try:
                value = client.get(self._lock)
            except (redis.RedisError, OSError):
                client.close()
                client = self._connect()
                continue
            if isinstance(value, bytes) and value != last:
                last, said = value, json.loads(value)
                name = self._names.get(said["port"], "?")
                self.leader_epochs.append(LeaderEpoch(time.monotonic(), said["epoch"], name))
        client.close()
