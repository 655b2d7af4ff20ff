"""Journals: what is written is read, also while it grows."""

from tests.burrow.chaos.commit_log import parsed
from tests.burrow.chaos.journal import JournalReader, JournalWriter, What


def test_what_is_written_is_read_once(tmp_path):
    path = tmp_path / "a.journal"
    reader = JournalReader(path)
    assert list(reader.more()) == []
    writer = JournalWriter(path)

    writer.note(What.BEGUN, (1, 2), 3)
    (entry,) = reader.more()
    assert (entry.what, entry.place, entry.number) == (What.BEGUN, (1, 2), 3)
    writer.note(What.FINISHED, (1, 2), 3)
    assert [entry.what for entry in reader.more()] == [What.FINISHED]
    assert list(reader.more()) == []


def test_half_a_line_is_left_for_the_next_time(tmp_path):
    path = tmp_path / "a.journal"
    reader = JournalReader(path)
    path.write_bytes(b"b 0 1 2 3\nf 0 1")

    assert [entry.what for entry in reader.more()] == [What.BEGUN]
    with path.open("ab") as file:
        file.write(b" 2 4\n")
    (entry,) = reader.more()
    assert (entry.what, entry.at_ns) == (What.FINISHED, 4)


def test_a_commit_as_kafka_keeps_it():
    key = b"\0\1\0\1g\0\1t\0\0\0\1"
    value = b"\0\4\0\0\0\0\0\0\0\5\xff\xff\xff\xff\7hello\0\0\0\1\xa1\xe1'\x12E\1\0\x10" + bytes(16)

    assert parsed(key, value) == ("g", "t", 1, 5, "hello", 0x1A1E1271245)
    assert parsed(b"\0\2\0\1g", value) is None
