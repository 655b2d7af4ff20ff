"""Random histories of one stream against a dict that says what must be in it."""

import asyncio
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.examples import examples
from tests.stores.backend import opened
from tests.stores.streams import NOW_MS
from waterclock.stores.base import Page, Record, Stored, StoredMessage, StreamStore

IDS = st.sampled_from(["a", "A", "a ", "b", "\0", "\u00e9"])
LATER = st.integers(0, 5)
RECORDS = st.lists(st.tuples(IDS, st.binary(max_size=3), st.none() | LATER), max_size=5)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("store"), RECORDS),
        st.tuples(st.just("read"), st.tuples(st.integers(0, 8), st.integers(1, 4))),
        st.tuples(st.just("delete"), st.none() | LATER),
        st.tuples(st.just("purge"), st.none()),
        st.tuples(st.just("wait"), LATER),
    ),
    max_size=12,
)
_streams = count()


@dataclass
class Model:
    """What a stream must hold."""

    messages: list[StoredMessage] = field(default_factory=list)
    last: int = 0

    def store(self, records: list[Record], now_ms: int) -> list[Stored]:
        answers = []
        ids = {record.message_id for record in records}
        current = self._kept(now_ms)
        self._keep([m for m in self.messages if m in current or m.message_id not in ids])
        for record in records:
            kept = [m.position for m in self.messages if m.message_id == record.message_id]
            if not kept:
                self.last += 1
                self.messages.append(
                    StoredMessage(self.last, *record[:2], now_ms, record.expires_ms)
                )
            answers.append(Stored(kept[0] if kept else self.last, is_new=not kept))
        return answers

    def read(self, after: int, limit: int, now_ms: int) -> Page:
        kept = [m for m in self._kept(now_ms) if m.position > after]
        return Page(kept[:limit], self.last)

    def delete(self, older_than_ms: int | None) -> int:
        kept = [m for m in self.messages if older_than_ms is not None]
        kept = [m for m in kept if m.stored_ms >= (older_than_ms or 0)]
        return self._keep(kept)

    def purge(self, now_ms: int) -> int:
        return self._keep(self._kept(now_ms))

    def _kept(self, now_ms: int) -> list[StoredMessage]:
        return [m for m in self.messages if m.expires_ms is None or m.expires_ms > now_ms]

    def _keep(self, kept: list[StoredMessage]) -> int:
        gone = len(self.messages) - len(kept)
        self.messages = kept
        return gone


@pytest.fixture
def runner():
    with asyncio.Runner() as runner:
        yield runner


def test_a_stream_holds_what_a_dict_would(url, runner):
    stack = opened(url)
    store = runner.run(stack.__aenter__())

    @given(STEPS)
    @settings(
        max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    def histories(steps):
        runner.run(play(store, f"stream {next(_streams)}", steps))

    histories()
    runner.run(stack.__aexit__(None, None, None))


async def play(store: StreamStore, stream: str, steps: list[Any]) -> None:
    model = Model()
    now_ms = NOW_MS
    for step, argument in steps:
        match step:
            case "store":
                records = [
                    Record(id_, body, None if later is None else now_ms + later)
                    for id_, body, later in argument
                ]
                answer = await store.store(stream, records, now_ms=now_ms)
                assert answer == model.store(records, now_ms)
            case "read":
                after, limit = argument
                page = await store.read(stream, after=after, limit=limit, now_ms=now_ms)
                assert page == model.read(after, limit, now_ms)
            case "delete":
                before_ms = None if argument is None else now_ms - argument
                assert await store.delete(stream, older_than_ms=before_ms) == model.delete(
                    before_ms
                )
            case "purge":
                # Other examples' messages go too: it says how many of all.
                assert await store.purge(now_ms=now_ms) >= model.purge(now_ms)
            case "wait":
                now_ms += argument
    page = await store.read(stream, after=0, limit=99, now_ms=now_ms)
    assert page == model.read(0, 99, now_ms)
