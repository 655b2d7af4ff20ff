"""What came of the messages of a round, read from Redis by a way no fault touches."""

from typing import Any

import redis

from tests.dispatch.chaos.history import Entry, Letter, number_in
from tests.dispatch.chaos.plan import SourceKind
from tests.dispatch.chaos.stage import Stage
from waterclock.dispatch.redis.keys import Keys, beside
from waterclock.dispatch.sinks.redis import stream_names


class Outcome:
    """The streams of one group."""

    def __init__(
        self,
        stage: Stage,
        *,
        prefix: str,
        source_kind: SourceKind,
        source: str,
        output: str,
        streams: int,
    ) -> None:
        self._stage = stage
        self._is_stream = source_kind == "stream"
        self._source = source
        self._streams = stream_names(output, streams)
        self._keys = Keys(prefix)
        self._dead = beside(source, "dead") if self._is_stream else self._keys.dead

    def numbers(self) -> set[int]:
        """Return the messages that are written or dead-lettered."""
        return {each.n for each in self.entries()} | {each.n for each in self.dead_letters()}

    def entries(self) -> list[Entry]:
        """Return what is written, one stream after the other."""
        found = []
        for index, stream in enumerate(self._streams):
            for entry_id, fields in self._read(stream):
                n, epoch = int(fields[b"n"]), int(fields[b"epoch"])
                at_ms = int(entry_id.partition(b"-")[0])
                found.append(Entry(n, epoch, fields[b"by"].decode(), index, at_ms))
        return found

    def dead_letters(self) -> list[Letter]:
        """Return what is dead-lettered."""
        return [
            Letter(number_in(each[b"body"]), each[b"reason"].decode(), int(each[b"deliveries"]))
            for _, each in self._read(self._dead)
        ]

    def is_nothing_pending(self) -> bool:
        """Say whether nobody has anything to do, as far as Redis knows."""
        try:
            with self._stage.client() as client:
                if not self._is_stream:
                    return not client.zcard(self._keys.pending)
                groups: Any = client.xinfo_groups(self._source)
                return bool(groups) and not groups[0]["pending"] and not groups[0]["lag"]
        except redis.RedisError:
            return False

    def _read(self, stream: str) -> list[tuple[bytes, dict[bytes, bytes]]]:
        with self._stage.client() as client:
            said: Any = client.xrange(stream)
            return list(said)
