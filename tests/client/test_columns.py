"""Columns become the batch that was meant, the same at every attempt."""

from waterclock.client.producer.columns import Columns
from waterclock.log.batch import decode_untrusted
from waterclock.log.schema import MESSAGES
from waterclock.model.ids import Millis

NOW_MS = Millis(1_700_000_000_000)


def columns(*rows: tuple[bytes | None, bytes | None, bytes | None]) -> Columns:
    made = Columns()
    for id_, key, value in rows:
        made.ids.append(id_)
        made.keys.append(key)
        made.values.append(value)
        made.headers.append(None)
        made.dues.append(None)
    return made


def test_all_fields_arrive():
    made = columns((b"i", b"k", b"v"), (b"j", None, None))
    made.headers[1] = [("a", b"1"), ("b", b"2")]
    made.dues[0] = 17
    made.name_all(NOW_MS)

    rows = decode_untrusted(made.encode(0, 2))
    assert rows.schema == MESSAGES
    assert rows.to_pylist() == [
        {"message_id": b"i", "key": b"k", "value": b"v", "headers": None, "due_ms": 17},
        {
            "message_id": b"j",
            "key": None,
            "value": None,
            "headers": [("a", b"1"), ("b", b"2")],
            "due_ms": None,
        },
    ]


def test_ids_are_made_once_and_only_where_there_are_none():
    made = columns((None, None, b"a"), (b"mine", None, b"b"), (None, None, b"c"))

    ids = made.name_all(NOW_MS)
    assert ids[1] == b"mine"
    assert len({*ids}) == 3
    assert made.encode(0, 3) == made.encode(0, 3)
    assert decode_untrusted(made.encode(0, 3)).column(0).to_pylist() == ids


def test_a_part_of_the_rows_is_a_batch_too():
    made = columns(*((b"%d" % n, None, b"v%d" % n) for n in range(5)))
    made.name_all(NOW_MS)

    rows = decode_untrusted(made.encode(1, 3))
    assert rows.column("value").to_pylist() == [b"v1", b"v2"]


def test_a_batch_is_sticky_unless_somebody_named_an_id_without_a_key():
    Rows = list[tuple[bytes | None, bytes | None, bytes | None]]
    cases: list[tuple[Rows, bool]] = [
        ([(None, None, b"x")], True),
        ([(None, b"k", b"x")], True),
        ([(b"mine", b"k", b"x")], True),
        ([(b"mine", None, b"x")], False),
        ([(None, None, b"x"), (b"mine", None, b"x")], False),
    ]
    for rows, is_sticky in cases:
        made = columns(*rows)
        made.name_all(NOW_MS)
        assert made.is_sticky is is_sticky, rows
