"""What a fetch plans to read of a log, and what is handed out of it."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.stores import Partition, message, offsets
from waterclock.delivery.events import RangeReadable, RangeSkipped
from waterclock.log.schema import MESSAGES
from waterclock.model.message import Message
from waterclock.node.groups import fetch_plan, outbound
from waterclock.node.groups.fetch_plan import plan_fetch
from waterclock.node.groups.outbound import read_batch
from waterclock.node.partition.log_reader import LogReader

PLENTY = 1 << 30


def planned(partition: Partition, start: int = 0, *, room: int = 1_000, free: int = PLENTY):
    """Return what is planned: (start, end), or (start, end, None) where there is nothing."""
    now_ms = partition.clock.now_ms()
    reader = LogReader(partition.store)
    found = plan_fetch(reader, start, room=room, bytes_free=free, now_ms=now_ms)
    return [
        (event.start, event.end, *([None] if isinstance(event, RangeSkipped) else []))
        for event in found
    ]


def sized(number: int, size: int) -> Message:
    return message(number, value=b"x" * size)


def test_frames_alike_are_announced_as_one_and_what_lies_between_as_skipped():
    partition = Partition()
    partition.publish(message(0), message(1))
    partition.fill([2])
    partition.publish(message(3, due_ms=partition.clock.now_ms() + 1_000))
    partition.store.cancel(offsets(3), now_ms=partition.clock.now_ms())
    partition.flush()
    partition.fill([4])

    assert planned(partition) == [(0, 3), (3, 5, None), (5, 6)]
    assert planned(partition, 1) == [(1, 3), (3, 5, None), (5, 6)]
    assert planned(partition, 6) == []


def test_no_more_is_announced_than_there_is_room_for():
    partition = Partition()
    partition.publish(*map(message, range(5)))
    partition.fill([5])

    assert planned(partition, room=3) == [(0, 3)]
    assert planned(partition, 3, room=2) == [(3, 5)]
    assert planned(partition, 3, room=9) == [(3, 5), (5, 6)]


def test_messages_of_very_different_size_are_announced_apart_where_it_matters():
    partition = Partition()
    sizes = [100, 100, 50_000, 100, 100]
    partition.publish(*[sized(number, size) for number, size in enumerate(sizes)])

    assert planned(partition) == [(0, 5)], "all of it fits"
    assert planned(partition, free=1_000) == [(0, 2), (2, 3), (3, 5)]


def test_frames_of_very_different_size_are_announced_apart():
    partition = Partition()
    for number, size in enumerate([100, 50_000, 100]):
        partition.publish(sized(number, size))

    assert planned(partition) == [(0, 1), (1, 2), (2, 3)]


def test_without_bytes_left_no_further_frame_is_announced():
    partition = Partition()
    partition.fill(range(4))

    assert planned(partition, free=1) == [(0, 1)]


def test_what_is_too_late_is_skipped():
    partition = Partition()
    now_ms = partition.clock.now_ms()
    ends = [0, now_ms, now_ms + 1, now_ms - 5, 0]
    messages = [
        Message(b"v", message_id=b"%d" % n, headers={"wc-expires-ms": b"%d" % end} if end else None)
        for n, end in enumerate(ends)
    ]
    partition.publish(*messages)

    assert planned(partition) == [(0, 1), (1, 2, None), (2, 3), (3, 4, None), (4, 5)]
    assert planned(partition, 1, room=1) == [(1, 2, None), (2, 3)]


def test_offsets_that_compaction_emptied_are_skipped():
    partition = Partition()
    keys = [b"a", b"b", b"a", b"b", b"c"]
    partition.publish(*[message(number, key=key) for number, key in enumerate(keys)])
    partition.roll()
    partition.rewrite(keep_from=5, by_key=True)

    assert planned(partition) == [(0, 2, None), (2, 5)]


def test_a_long_stretch_of_scheduled_messages_is_passed_in_several_goes(monkeypatch):
    monkeypatch.setattr(fetch_plan, "FRAMES_MAX", 2)
    partition = Partition()
    for number in range(3):
        partition.publish(message(number, due_ms=partition.clock.now_ms() + 1_000))

    assert planned(partition) == [(0, 2, None)]
    assert planned(partition, 2) == [(2, 3, None)]


LOG = st.lists(
    st.tuples(
        st.sampled_from(["data", "scheduled", "fired", "expired", "large"]), st.integers(1, 4)
    ),
    min_size=1,
    max_size=8,
)


def written(partition: Partition, log: list[tuple[str, int]]) -> list[int]:
    """Write frames; return the offsets that have something to deliver."""
    now_ms = partition.clock.now_ms()
    deliverable: list[int] = []
    for number, (kind, count) in enumerate(log):
        base = partition.store.end
        ids = [1_000 * number + n for n in range(count)]
        if kind in ("scheduled", "fired"):
            partition.publish(*[message(n, due_ms=now_ms + 1_000) for n in ids])
            if kind == "fired":
                scheduled = np.arange(base, base + count)
                base = partition.store.end
                partition.store.fire(scheduled, now_ms=now_ms)
                partition.flush()
        elif kind == "expired":
            headers = {"wc-expires-ms": b"%d" % now_ms}
            partition.publish(*[Message(b"v", message_id=b"%d" % n, headers=headers) for n in ids])
        else:
            size = 3_000 if kind == "large" else 10
            partition.publish(*[sized(n, size + n % 7) for n in ids])
        if kind not in ("scheduled", "expired"):
            deliverable += range(base, base + count)
    return deliverable


@given(log=LOG, room=st.integers(1, 9), free=st.sampled_from([1, 500, 5_000, PLENTY]))
def test_announcements_have_no_gap_and_say_of_each_offset_what_is_there(log, room, free):
    partition = Partition()
    deliverable = written(partition, log)
    reader, at, readable = LogReader(partition.store), 0, list[int]()
    while at < partition.store.end:
        found = plan_fetch(reader, at, room=room, bytes_free=free, now_ms=partition.clock.now_ms())
        assert found
        assert sum(e.end - e.start for e in found if isinstance(e, RangeReadable)) <= room
        for event in found:
            assert event.start == at < event.end
            at = event.end
            if isinstance(event, RangeReadable):
                readable += range(event.start, event.end)
                assert event.size_bytes > 0

    assert readable == deliverable
    assert at == partition.store.end


@given(
    log=LOG,
    picks=st.sets(st.integers(0, 31)),
    rows_max=st.integers(1, 6),
)
def test_what_is_gathered_is_what_was_asked_for_in_order(log, picks, rows_max):
    partition = Partition()
    deliverable = written(partition, log)
    wanted = sorted(picks & set(range(partition.store.end)))
    if not wanted:
        return
    values = {offset: row.value for offset, row in partition.rows().items()}
    reader, now_ms = LogReader(partition.store), partition.clock.now_ms()
    before, outbound.MERGED_ROWS_MAX = outbound.MERGED_ROWS_MAX, rows_max
    try:
        ranges = [(offset, offset + 1) for offset in wanted]
        got, gone = [], []
        while ranges:
            found = read_batch(reader, ranges, now_ms)
            ranges = [span for span in ranges if span[0] >= found.end]
            gone += [offset for start, end in found.gone for offset in range(start, end)]
            if found.messages is not None:
                rows = found.messages.rows()
                assert rows.schema.names == MESSAGES.names
                places = [o for start, end in found.messages.ranges for o in range(start, end)]
                got += list(zip(places, rows.column("value").to_pylist(), strict=True))
                assert found.messages.count == len(places) == rows.num_rows
    finally:
        outbound.MERGED_ROWS_MAX = before

    assert got == [(offset, values[offset]) for offset in wanted if offset in deliverable]
    assert sorted(gone) == [offset for offset in wanted if offset not in deliverable]


def test_a_portion_says_when_its_last_message_became_deliverable():
    partition = Partition()
    partition.fill([0])
    partition.clock.advance(500)
    partition.fill([1])

    messages = read_batch(LogReader(partition.store), [(0, 2)], partition.clock.now_ms()).messages

    assert messages is not None
    assert messages.append_ms == partition.clock.now_ms()


def test_arrow_of_a_cut_frame_reads_as_its_rows():
    partition = Partition()
    partition.publish(*map(message, range(5)))

    messages = read_batch(LogReader(partition.store), [(1, 2), (3, 5)], 0).messages

    assert messages is not None
    assert messages.bounds == [1, 2, 3, 5]
    rows = pa.ipc.read_record_batch(pa.py_buffer(messages.arrow), MESSAGES)
    assert rows.column("value").to_pylist() == [b"value 1", b"value 3", b"value 4"]
