"""Pending messages are found by id or position, wherever they are, and by what is asked of them."""

from functools import partial

import numpy as np
import pytest

from tests.node.timed_topics import TimedTopics, timed_topics, with_topic
from waterclock.model.errors import BadInput, LimitExceeded, NotFound
from waterclock.model.ids import Millis
from waterclock.model.message import Message
from waterclock.model.sections import DedupConfig
from waterclock.model.views import CancelCount, TopicSettings
from waterclock.node.schedule.named_changes import Named
from waterclock.node.schedule.pending_filter import Filter
from waterclock.node.schedule.pending_ids import IdSearch
from waterclock.node.schedule.pending_pages import Page
from waterclock.node.schedule.scheduler import ALREADY_FIRED, CANCELLED, DONE, UNKNOWN
from waterclock.storage.rewrite import Wanted, rewrites

HOUR_MS = 3_600_000


@pytest.fixture
def topics(tmp_path):
    """Return a way to open the topics of one folder, with a topic `t` of three partitions."""
    return partial(with_topic, tmp_path, partitions=3)


def later(
    here: TimedTopics,
    name: str,
    delay_ms: int = HOUR_MS,
    *,
    key: bytes | None = None,
    headers: dict[str, bytes] | None = None,
) -> Message:
    """Return a message for later."""
    due = Millis(here.clock.now_ms() + delay_ms)
    value = b"value of " + name.encode()
    return Message(value, message_id=name.encode(), key=key, headers=headers, due_ms=due)


async def listed(here: TimedTopics, wanted: Filter | None = None, **how: object) -> list[str]:
    page = await here.pending.list("t", wanted or Filter(), **how)  # type: ignore[arg-type]
    assert not page.next_page
    return ids_of(page)


def ids_of(page: Page) -> list[str]:
    return [(one.message.message_id or b"").decode() for one in page.scheduled]


async def test_messages_are_cancelled_by_id_whatever_partition_they_are_in(topics):
    async with topics() as here:
        messages = [later(here, f"m{n}", key=b"k%d" % (n % 7)) for n in range(50)]
        await here.publish("t", messages)

        named = [Named(m.message_id or b"") for m in messages[:20]]
        named += [Named(m.message_id or b"", key=m.key) for m in messages[20:40]]
        outcomes, _ = await here.pending.cancel("t", [*named, Named(b"nobody"), named[0]])

        assert outcomes.tolist() == [DONE] * 40 + [UNKNOWN, DONE]
        here.clock.advance(2 * HOUR_MS)
        fired = await here.fired("t")
        assert sorted(m.message_id or b"" for m in fired) == sorted(
            m.message_id or b"" for m in messages[40:]
        )


async def test_an_id_may_be_any_bytes(topics):
    async with topics() as here:
        ids = [bytes([byte]) for byte in range(256)] + [bytes(range(k, 256)) for k in range(1, 9)]
        due = Millis(here.clock.now_ms() + HOUR_MS)
        await here.publish("t", [Message(None, message_id=i, due_ms=due) for i in ids])

        outcomes, _ = await here.pending.cancel("t", [Named(i) for i in ids])

        assert outcomes.tolist() == [DONE] * len(ids)


async def test_ids_that_look_alike_to_the_index_are_told_apart(topics, monkeypatch):
    monkeypatch.setattr(
        "waterclock.log.id_index.index.fingerprints", lambda ids, _: np.full(len(ids), 7, np.uint64)
    )

    async with topics(partitions=1) as here:
        await here.publish("t", [later(here, f"m{n}") for n in range(9)])

        outcomes, _ = await here.pending.cancel("t", [Named(b"m4"), Named(b"m"), Named(b"m44")])

        assert outcomes.tolist() == [DONE, UNKNOWN, UNKNOWN]
        assert sorted(await listed(here)) == [f"m{n}" for n in range(9) if n != 4]


async def test_a_key_whose_partition_has_changed_does_not_hide_a_message(topics):
    async with topics() as here:
        await here.publish("t", [later(here, f"m{n}", key=b"k%d" % n) for n in range(20)])
        await here.topics.update("t", TopicSettings(partitions=7))

        named = [Named(b"m%d" % n, key=b"k%d" % n) for n in range(20)]

        assert (await here.pending.cancel("t", named)).outcomes.tolist() == [DONE] * 20


async def test_a_message_is_named_by_its_position(topics):
    async with topics() as here:
        published = await here.publish("t", [later(here, "m")])
        position = published.partition, published.first_offset

        changed = await here.pending.cancel("t", [Named(position=position)])
        assert changed.outcomes.tolist() == [DONE]
        with pytest.raises(NotFound):
            await here.pending.cancel("t", [Named(position=(3, 0))])
        other = Named(position=(0, 77))
        assert (await here.pending.cancel("t", [other])).outcomes.tolist() == [UNKNOWN]


async def test_a_repeat_that_was_allowed_is_cancelled_by_its_id(topics):
    async with topics() as here:
        await here.publish("t", [later(here, "c")])
        assert (await here.pending.cancel("t", [Named(b"c")])).outcomes.tolist() == [DONE]
        await here.publish("t", [later(here, "c", 2_000)], allow_duplicate=True)

        outcomes, reached = await here.pending.cancel("t", [Named(b"c")])

        assert (outcomes.tolist(), reached.tolist()) == ([DONE], [1])
        here.clock.advance(2 * HOUR_MS)
        assert await here.fired("t") == []


async def test_an_id_names_every_pending_message_that_has_it(topics):
    async with topics() as here:
        for number, key in enumerate((b"a", b"b", b"c")):
            await here.publish("t", [later(here, "x", key=key)], partition=number)
        await here.publish("t", [later(here, "x", key=b"a")] * 3, allow_duplicate=True)
        await here.publish("t", [later(here, "y")] * 2, allow_duplicate=True)
        due_ms = here.clock.now_ms() + 5_000

        moved = await here.pending.reschedule("t", [Named(b"x"), Named(b"no")], [due_ms])
        by_key = await here.pending.cancel("t", [Named(b"x", key=b"a"), Named(b"x", key=b"no")])
        rest = await here.pending.cancel("t", [Named(b"x"), Named(b"y"), Named(b"no")])

        assert (moved.outcomes.tolist(), moved.reached.tolist()) == ([DONE, UNKNOWN], [6, 0])
        assert (by_key.outcomes.tolist(), by_key.reached.tolist()) == ([DONE, UNKNOWN], [4, 0])
        assert rest.reached.tolist() == [2, 2, 0]
        here.clock.advance(2 * HOUR_MS)
        assert await here.fired("t") == []


async def test_the_search_goes_on_behind_a_partition_where_the_id_has_fired(topics):
    async with topics() as here:
        for number in range(3):
            await here.publish("t", [later(here, "x", 1_000)], partition=number)
        here.clock.advance(1_000)
        assert len(await here.fired("t")) == 3
        for number in (0, 1, 2, 2):
            message = later(here, "x")
            await here.publish("t", [message], partition=number, allow_duplicate=True)

        outcomes, reached = await here.pending.cancel("t", [Named(b"x")])

        assert (outcomes.tolist(), reached.tolist()) == ([DONE], [4])
        assert await listed(here) == []


@pytest.mark.parametrize(
    "turn", ["rolled", "rewritten", "reopened", "rebuilt", "forgotten", "too many"]
)
async def test_allowed_repeats_are_found_by_id_whatever_became_of_their_segment(tmp_path, turn):
    dedup = DedupConfig(window_ms=1_000) if turn == "forgotten" else DedupConfig()
    if turn == "too many":
        dedup = DedupConfig(ids_max=4)
    async with timed_topics(tmp_path, dedup=dedup) as here:
        await here.create("t")
        await here.publish("t", [later(here, n) for n in "abcab"], allow_duplicate=True)
        await here.pending.cancel("t", [Named(b"c")])
        host = here.topics.get("t").partitions[0]
        if turn != "reopened":
            host.store.roll(here.clock.now_ms())
            host.store.run_jobs()
        if turn == "too many":
            assert host.store.ids is not None
            assert len(host.store.ids.untracked) == 0
        if turn == "rewritten":
            for job in rewrites(host.store, Wanted(keep_from=host.store.end), now_ms=0):
                job.run()
                job.finish()
        if turn == "forgotten":
            here.clock.advance(60_000)
            await here.publish("t", [later(here, "z")])
            host.store.roll(here.clock.now_ms())
            assert host.store.ids is not None
            assert not host.store.ids.knows(0)
    if turn == "rebuilt":
        for ids in tmp_path.rglob("*.ids"):
            ids.unlink()
    async with timed_topics(tmp_path, dedup=dedup) as here:
        _, reached = await here.pending.cancel("t", [Named(b"a"), Named(b"b")])
        assert reached.tolist() == [2, 2]


async def test_one_of_an_id_that_fires_while_the_others_are_looked_for_is_not_counted(
    topics, monkeypatch
):
    async with topics() as here:
        for number, delay_ms in enumerate((1_000, HOUR_MS, HOUR_MS)):
            await here.publish("t", [later(here, "x", delay_ms)], partition=number)
        pending = IdSearch.pending

        async def found_then_fired(self, host, ids, keys):
            async for found in pending(self, host, ids, keys):
                yield found
            here.clock.advance(1_000)
            for each in here.topics.get("t").partitions:
                each.scheduler.firing.fire_slice()

        monkeypatch.setattr(IdSearch, "pending", found_then_fired)
        due_ms = here.clock.now_ms() + 2 * HOUR_MS
        outcomes, reached = await here.pending.reschedule("t", [Named(b"x")], [due_ms])

        assert (outcomes.tolist(), reached.tolist()) == ([DONE], [2])
        assert len(await here.fired("t")) == 1


def expiring(here: TimedTopics, name: str, delay_ms: int, span_ms: int) -> Message:
    end_ms = here.clock.now_ms() + delay_ms + span_ms
    return later(here, name, delay_ms, headers={"a": b"b", "wc-expires-ms": b"%d" % end_ms})


async def test_when_a_message_expires_moves_along_with_its_due_time(topics):
    async with topics() as here:
        begun_ms = here.clock.now_ms()
        names = ["later", "sooner", "now", "late"]
        await here.publish("t", [expiring(here, name, 60_000, 5_000) for name in names])
        due = [begun_ms + HOUR_MS, begun_ms + 1_000, 0, begun_ms + 2_000]
        await here.pending.reschedule("t", [Named(name.encode()) for name in names], due)

        page = await here.pending.list("t", Filter())
        assert {
            (one.message.message_id or b"").decode(): one.message.headers for one in page.scheduled
        } == {
            name: {"a": b"b", "wc-expires-ms": b"%d" % (max(at, begun_ms) + 5_000)}
            for name, at in zip(names, due, strict=True)
        }

        here.clock.advance(1_000)
        fired = {m.message_id: m.headers for m in await here.fired("t")}
        assert fired[b"now"] == {"a": b"b", "wc-expires-ms": b"%d" % (begun_ms + 5_000)}
        assert fired[b"sooner"] == {"a": b"b", "wc-expires-ms": b"%d" % (begun_ms + 6_000)}
        here.clock.advance(6_000)
        assert b"late" not in {m.message_id for m in await here.fired("t")}
        here.clock.advance(HOUR_MS - 7_000)
        fired = {m.message_id: m.headers for m in await here.fired("t")}
        assert fired[b"later"] == {"a": b"b", "wc-expires-ms": b"%d" % (due[0] + 5_000)}


async def test_without_an_index_of_ids_only_positions_name_messages(topics):
    async with topics(dedup=DedupConfig(enabled=False)) as here:
        await here.publish("t", [later(here, "m")])

        with pytest.raises(BadInput, match="name the message by its partition and offset"):
            await here.pending.cancel("t", [Named(b"m")])


@pytest.mark.parametrize("is_rewritten", [False, True])
async def test_a_message_outlives_the_memory_of_dedup_and_is_still_found_by_its_id(
    topics, is_rewritten
):
    async with topics(partitions=1, dedup=DedupConfig(window_ms=1000)) as here:
        names = [f"m{n}" for n in range(20)]
        await here.publish("t", [later(here, name) for name in names])
        await here.pending.cancel("t", [Named(b"m3")])
        host = here.topics.get("t").partitions[0]
        for turn in range(3):
            host.store.roll(here.clock.now_ms())
            here.clock.advance(60_000)
            await here.publish("t", [later(here, f"later {turn}")])
        host.store.run_jobs()
        if is_rewritten:
            wanted = Wanted(keep_from=host.store.end)
            for job in rewrites(host.store, wanted, now_ms=here.clock.now_ms()):
                job.run()
                job.finish()
        assert host.store.ids is not None
        assert not host.store.ids.knows(0)

        named = [Named(name.encode()) for name in [*names, "never"]]
        outcomes, _ = await here.pending.cancel("t", named)

        expected = [DONE] * 21
        expected[3] = UNKNOWN if is_rewritten else CANCELLED
        expected[20] = UNKNOWN
        assert outcomes.tolist() == expected


async def test_what_has_fired_is_told_apart_from_what_never_was(topics):
    async with topics() as here:
        await here.publish("t", [later(here, "soon", 1_000), later(here, "late")])
        here.clock.advance(1_000)
        await here.fired("t")

        named = [Named(b"soon"), Named(b"late"), Named(b"never")]
        due = [here.clock.now_ms() + 5_000]
        outcomes, _ = await here.pending.reschedule("t", named, due)
        assert outcomes.tolist() == [ALREADY_FIRED, DONE, UNKNOWN]
        outcomes, _ = await here.pending.cancel("t", named)
        assert outcomes.tolist() == [ALREADY_FIRED, DONE, UNKNOWN]


async def test_new_due_times_are_checked_before_anything_is_moved(topics):
    async with topics() as here:
        await here.publish("t", [later(here, "m")])
        named = [Named(b"m")]

        with pytest.raises(LimitExceeded, match="due_ms"):
            await here.pending.reschedule("t", named, [1 << 60])
        with pytest.raises(BadInput, match="due_ms"):
            await here.pending.reschedule("t", named, [-1])
        with pytest.raises(BadInput, match="one for each"):
            await here.pending.reschedule("t", named, [1, 2])
        with pytest.raises(BadInput, match="neither"):
            await here.pending.cancel("t", [Named()])


async def test_each_message_gets_the_due_time_beside_it(topics):
    async with topics() as here:
        now = here.clock.now_ms()
        await here.publish("t", [later(here, f"m{n}") for n in range(9)])

        named = [Named(b"m%d" % n) for n in range(9)]
        due = [now + 90_000 - 1_000 * n for n in range(9)]
        await here.pending.reschedule("t", named, due)

        assert await listed(here) == [f"m{n}" for n in reversed(range(9))]


FILTERS = [
    (Filter(key=b"a1"), {"a1"}),
    (Filter(key_prefix=b"a"), {"a1", "a2"}),
    (Filter(key_prefix=b""), {"a1", "a2", "b1"}),
    (Filter(headers={"x": b"1"}), {"a1", "none"}),
    (Filter(headers={"x": b"1", "y": b"2"}), {"none"}),
    (Filter(headers={"x": b"1"}, key_prefix=b"a"), {"a1"}),
    (Filter(key=b"zz"), set()),
    (Filter(key_prefix=b"1"), set()),
]


@pytest.mark.parametrize(("wanted", "expected"), FILTERS)
async def test_all_that_match_are_listed_and_cancelled_and_nothing_else(topics, wanted, expected):
    async with topics() as here:
        messages = [
            later(here, "a1", 1_000, key=b"a1", headers={"x": b"1"}),
            later(here, "a2", 2_000, key=b"a2", headers={"x": b"2"}),
            later(here, "b1", 3_000, key=b"b1"),
            later(here, "none", 4_000, headers={"y": b"2", "x": b"1"}),
            later(here, "bare", 5_000),
        ]
        await here.publish("t", messages)
        everything = {(m.message_id or b"").decode() for m in messages}

        assert set(await listed(here, wanted)) == expected
        counted = await here.pending.cancel_where("t", wanted, dry_run=True)
        assert counted == CancelCount(len(expected), 0)
        assert set(await listed(here)) == everything
        done = await here.pending.cancel_where("t", wanted)
        assert done == CancelCount(len(expected), len(expected))
        assert set(await listed(here)) == everything - expected


async def test_a_filter_by_time_and_partition_needs_no_look_inside(topics):
    async with topics() as here:
        now = here.clock.now_ms()
        for partition in range(3):
            batch = [later(here, f"{partition}-{n}", 1_000 * (n + 1)) for n in range(4)]
            await here.publish("t", batch, partition=partition)

        wanted = Filter(start_ms=now + 2_000, end_ms=now + 4_000, partitions=[0, 2, 2])

        assert await listed(here, wanted) == ["0-1", "2-1", "0-2", "2-2"]
        assert await here.pending.cancel_where("t", wanted) == CancelCount(4, 4)
        assert len(await listed(here)) == 8
        with pytest.raises(NotFound):
            await listed(here, Filter(partitions=[3]))


@pytest.mark.parametrize("limit", [1, 3, 4, 1000])
@pytest.mark.parametrize("wanted", [Filter(), Filter(key_prefix=b"k")])
async def test_pages_follow_each_other_without_gap_or_repeat(topics, limit, wanted):
    async with topics() as here:
        for partition in range(3):
            batch = [
                later(here, f"{partition}-{n}", 1_000 * (1 + n // 5), key=b"k") for n in range(12)
            ]
            await here.publish("t", batch, partition=partition)

        seen: list[str] = []
        page = ""
        while True:
            answer = await here.pending.list("t", wanted, limit=limit, page=page)
            assert len(answer.scheduled) <= limit
            seen += ids_of(answer)
            page = answer.next_page
            if not page:
                break

        expected = sorted((1 + n // 5, p, n) for p in range(3) for n in range(12))
        assert seen == [f"{p}-{n}" for _, p, n in expected]


async def test_a_listed_message_is_whole_and_due_when_it_is_due_now(topics):
    async with topics() as here:
        now = here.clock.now_ms()
        message = later(here, "m", key=b"k", headers={"a": b"b"})
        published = await here.publish("t", [message])
        await here.pending.reschedule("t", [Named(b"m")], [now + 9_000])

        (one,) = (await here.pending.list("t", Filter(), with_values=True)).scheduled
        assert (one.partition, one.offset) == (published.partition, published.first_offset)
        assert one.value_bytes == len(b"value of m")
        assert one.message == Message(
            b"value of m",
            key=b"k",
            message_id=b"m",
            headers={"a": b"b"},
            due_ms=Millis(now + 9_000),
        )
        (bare,) = (await here.pending.list("t", Filter())).scheduled
        assert bare.message.value is None
        assert bare.value_bytes == len(b"value of m")


@pytest.mark.parametrize("page", ["x", "####", "AAAA", "é"])
async def test_a_page_that_nobody_gave_out_is_refused(topics, page):
    async with topics() as here:
        with pytest.raises(BadInput, match="page"):
            await here.pending.list("t", Filter(), page=page)
        with pytest.raises(LimitExceeded, match="limit"):
            await here.pending.list("t", Filter(), limit=1_001)


async def test_pending_messages_are_counted_by_how_soon_they_are_due(topics):
    async with topics() as here:
        await here.create("other")
        delays = [1_000, 30_000, 600_000, 40 * 24 * HOUR_MS]
        await here.publish("t", [later(here, f"m{d}", d) for d in delays])
        await here.publish("other", [later(here, "m")])
        here.clock.advance(2_000)

        counts = await here.pending.count("t")
        assert [horizon.count for horizon in counts.horizons] == [1, 1, 1, 0, 0, 1]
        assert counts.horizons[0].within_ms == 0
        assert counts.horizons[-1].within_ms == -1
        everything = await here.pending.count_all(lambda topic: True)
        assert everything.by_due.total == 5


async def test_what_may_fire_yet_is_pending_or_where_nobody_can_see_it(topics):
    async with topics() as here:
        for delay_ms in (1_000, HOUR_MS):
            await here.publish("t", [later(here, f"in {delay_ms}", delay_ms)], partition=0)
        here.clock.advance(1_000)
        await here.fired("t")
        assert [here.pending.may_fire("t", (0, offset)) for offset in (0, 1)] == [False, True]

        here.topics.get("t").partition(0).close()

        assert here.pending.may_fire("t", (0, 0))
        assert not here.pending.may_fire("t", (3, 0))
        assert not here.pending.may_fire("gone", (0, 0))
