"""The blocking face of a log: what a script publishes is durable, deduplicated and read back."""

import pytest

from waterclock.model.errors import BadBatch, Closed, FolderInUse, OffsetOutOfRange
from waterclock.model.ids import Millis, Offset
from waterclock.model.message import Message
from waterclock.model.sections import DedupConfig, LogConfig
from waterclock.storage.local_log import StoredMessage, open_log


@pytest.fixture
def log(tmp_path):
    with open_log(tmp_path / "log", log=LogConfig(preallocate_bytes=0)) as log:
        yield log


def numbered(*numbers: int) -> list[Message]:
    return [Message(b"%d" % n, message_id=b"id-%d" % n) for n in numbers]


def test_messages_come_back_as_they_were_published(log):
    message = Message(b"v", key=b"k", message_id=b"i", headers={"a": b"1", "b": b""})

    log.publish([message, Message(None, message_id=b"tombstone")])

    assert list(log.read()) == [
        StoredMessage(Offset(0), message),
        StoredMessage(Offset(1), Message(None, message_id=b"tombstone")),
    ]


def test_a_repeat_is_answered_with_its_first_offset_and_not_written(log):
    log.publish(numbered(0, 1))

    again = log.publish(numbered(1, 2))

    assert (list(again.offsets), again.new_count, log.end) == ([1, 2], 1, 3)


def test_a_repeat_is_written_where_it_is_allowed(log):
    log.publish(numbered(0))

    assert log.publish(numbered(0), allow_duplicate=True).new_count == 1


def test_a_message_without_an_id_is_given_one(log):
    log.publish([Message(b"a"), Message(b"a")])

    first, second = (stored.message.message_id for stored in log.read())
    assert first is not None
    assert first != second


def test_reading_starts_in_the_middle_of_a_batch(log):
    log.publish(numbered(0, 1, 2, 3))

    assert [offset for offset, _ in log.read(2)] == [2, 3]
    assert list(log.read(4)) == []
    with pytest.raises(OffsetOutOfRange):
        list(log.read(5))


def test_scheduled_messages_are_listed_by_due_time_and_not_read(log):
    now_ms = log.now_ms()
    dues = [now_ms + 60_000, now_ms + 30_000, None]

    log.publish([Message(b"m", due_ms=due_ms) for due_ms in dues])

    # What is due now goes first.
    assert log.scheduled() == [(2, now_ms + 30_000), (1, now_ms + 60_000)]
    assert [offset for offset, _ in log.read()] == [0]


def test_a_log_opened_again_has_everything(tmp_path):
    with open_log(tmp_path / "log") as log:
        log.publish([*numbered(0), Message(b"later", due_ms=Millis(log.now_ms() + 60_000))])
        scheduled = log.scheduled()

    with open_log(tmp_path / "log", dedup=DedupConfig(enabled=True)) as log:
        assert log.publish(numbered(0)).new_count == 0
        assert log.scheduled() == scheduled
        assert repr(log) == "<Log [0, 2)>"


def test_a_closed_log_says_so(tmp_path):
    log = open_log(tmp_path / "log")
    log.close()
    log.close()

    assert repr(log) == "<Log closed>"
    for use in (lambda: log.publish(numbered(0)), lambda: list(log.read()), log.scheduled):
        with pytest.raises(Closed, match="open it again"):
            use()


def test_bad_messages_change_nothing(log):
    with pytest.raises(BadBatch):
        log.publish([])
    with pytest.raises(BadBatch, match="value: must be bytes, not str"):
        log.publish([Message("text")])  # type: ignore[arg-type]

    assert log.end == 0


def test_a_log_belongs_to_one_at_a_time(log, tmp_path):
    with pytest.raises(FolderInUse):
        open_log(tmp_path / "log")
