"""What every store promises, one call after another; run on each of them for real."""

import random

import pytest

from tests.stores.backend import opened
from tests.stores.streams import NOW_MS, ids_of, numbered_records, read_all
from waterclock.model.errors import BadInput
from waterclock.stores.base import BODY_BYTES_MAX, Page, Record, Stored, StoredMessage

HOSTILE_NAMES = [
    "'; DROP TABLE waterclock_messages; --",
    'double " quote',
    "back\\slash \\' \\0 %s %(x)s $1 ? :name {}",
    "nul \0 inside",
    "\0",
    "trailing space ",
    "trailing space",
    " ",
    "Case",
    "case",
    "stra\u00dfe",
    "strasse",
    "\u00e9",
    "e\u0301",
    "\u0430dmin",  # a Cyrillic letter that looks like a Latin one
    "admin",
    "\U0001f680",
    "\uffff\U0010ffff",
    "\u202eright to left",
    "line\nbreak\r\n\t",
    "../../etc/passwd",
    "x" * 512,
    "\U0001f680" * 128,
]


async def test_messages_are_read_as_they_were_stored_by_ascending_position(url):
    async with opened(url) as store:
        records = [Record("a", b"one"), Record("b", b"", NOW_MS + 5), Record("c", b"\0\xff")]

        assert await store.store("s", records, now_ms=NOW_MS) == [
            Stored(1, True),
            Stored(2, True),
            Stored(3, True),
        ]
        assert await store.read("s", after=0, limit=10, now_ms=NOW_MS) == Page(
            [
                StoredMessage(1, "a", b"one", NOW_MS, None),
                StoredMessage(2, "b", b"", NOW_MS, NOW_MS + 5),
                StoredMessage(3, "c", b"\0\xff", NOW_MS, None),
            ],
            last=3,
        )


async def test_a_stream_nobody_stored_to_is_empty(url):
    async with opened(url) as store:
        assert await store.read("s", after=0, limit=10, now_ms=NOW_MS) == Page([], last=0)
        assert await store.read("s", after=7, limit=10, now_ms=NOW_MS) == Page([], last=0)
        assert await store.delete("s") == 0
        assert await store.purge(now_ms=NOW_MS) == 0
        assert await store.store("s", [], now_ms=NOW_MS) == []
        assert await store.read("s", after=0, limit=10, now_ms=NOW_MS) == Page([], last=0)


async def test_a_page_begins_behind_a_position_and_ends_at_the_limit(url):
    async with opened(url) as store:
        await store.store("s", numbered_records(10), now_ms=NOW_MS)

        page = await store.read("s", after=3, limit=4, now_ms=NOW_MS)
        assert [message.position for message in page.messages] == [4, 5, 6, 7]
        assert page.last == 10
        assert await store.read("s", after=10, limit=4, now_ms=NOW_MS) == Page([], last=10)
        assert await store.read("s", after=99, limit=4, now_ms=NOW_MS) == Page([], last=10)


async def test_a_page_ends_before_its_bodies_get_too_large_but_is_never_empty(url):
    async with opened(url) as store:
        records = [Record(str(number), bytes(100)) for number in range(5)]
        await store.store("s", records, now_ms=NOW_MS)

        async def count(after, bytes_max):
            page = await store.read("s", after=after, limit=9, now_ms=NOW_MS, bytes_max=bytes_max)
            return len(page.messages)

        assert await count(0, 300) == 3
        assert await count(0, 299) == 2
        assert await count(1, 1) == 1
        assert await count(0, 500) == 5


async def test_an_id_is_stored_once_and_repeats_are_told_its_first_position(url):
    async with opened(url) as store:
        await store.store("s", [Record("a", b"1"), Record("b", b"2")], now_ms=NOW_MS)
        again = [Record("b", b"other"), Record("c", b"3"), Record("c", b"4"), Record("a", b"")]

        assert await store.store("s", again, now_ms=NOW_MS + 9) == [
            Stored(2, False),
            Stored(3, True),
            Stored(3, False),
            Stored(1, False),
        ]
        page = await store.read("s", after=0, limit=9, now_ms=NOW_MS)
        assert [message.body for message in page.messages] == [b"1", b"2", b"3"]
        assert page.last == 3


async def test_a_call_of_nothing_but_repeats_stores_nothing(url):
    async with opened(url) as store:
        first = await store.store("s", numbered_records(3), now_ms=NOW_MS)

        again = await store.store("s", numbered_records(3), now_ms=NOW_MS)
        assert again == [Stored(position, False) for position, _ in first]
        assert (await store.read("s", after=0, limit=9, now_ms=NOW_MS)).last == 3


async def test_streams_do_not_know_each_other(url):
    async with opened(url) as store:
        for stream in ("one", "two"):
            assert await store.store(stream, numbered_records(2), now_ms=NOW_MS) == [
                Stored(1, True),
                Stored(2, True),
            ]
        assert await store.delete("one") == 2
        assert await ids_of(store, "two") == ["0", "1"]


async def test_names_are_any_text_and_distinct_if_a_byte_differs(url):
    async with opened(url) as store:
        for number, name in enumerate(HOSTILE_NAMES):
            message_id = name[:64]
            record = Record(message_id, name.encode())
            assert await store.store(name, [record], now_ms=NOW_MS) == [Stored(1, True)], number
        for name in HOSTILE_NAMES:
            page = await store.read(name, after=0, limit=9, now_ms=NOW_MS)
            expected = StoredMessage(1, name[:64], name.encode(), NOW_MS, None)
            assert page == Page([expected], last=1)


async def test_ids_are_any_text_and_distinct_if_a_byte_differs(url):
    async with opened(url) as store:
        ids = [*dict.fromkeys(name.encode()[:256].decode() for name in HOSTILE_NAMES)]
        records = [Record(message_id, b"") for message_id in ids]
        stored = await store.store("s", records, now_ms=NOW_MS)

        assert stored == [Stored(position, True) for position in range(1, len(ids) + 1)]
        assert await ids_of(store, "s") == ids
        again = await store.store("s", records, now_ms=NOW_MS)
        assert again == [Stored(position, False) for position, _ in stored]


@pytest.mark.parametrize(
    ("stream", "record", "problem"),
    [
        ("", Record("a", b""), "stream is empty"),
        ("x" * 513, Record("a", b""), "stream exceeds its limit of 512"),
        ("\ud800", Record("a", b""), "surrogate"),
        ("s", Record("", b""), "message_id is empty"),
        ("s", Record("\u20ac" * 86, b""), "message_id exceeds its limit of 256"),
        ("s", Record("a", bytes(BODY_BYTES_MAX + 1)), "body exceeds its limit"),
        ("s", Record("a", b"", -1), "expires_ms"),
        ("s", Record("a", b"", 1 << 63), "expires_ms"),
    ],
)
async def test_what_cannot_be_stored_is_refused_by_field_and_limit(url, stream, record, problem):
    async with opened(url) as store:
        with pytest.raises(BadInput, match=problem):
            await store.store(stream, [Record("fine", b""), record], now_ms=NOW_MS)
        if stream == "s":
            assert (await store.read("s", after=0, limit=9, now_ms=NOW_MS)).last == 0
        else:
            with pytest.raises(BadInput, match=problem):
                await store.read(stream, after=0, limit=1, now_ms=NOW_MS)


async def test_values_of_ten_mebibytes_are_stored_and_read_whole(url):
    dice = random.Random(4)
    bodies = [
        bytes(BODY_BYTES_MAX),  # zeros: a driver that escapes them doubles them
        b"\\'\"\n" * (BODY_BYTES_MAX // 4),
        dice.randbytes(BODY_BYTES_MAX),
    ]
    async with opened(url) as store:
        records = [Record(str(number), body) for number, body in enumerate(bodies)]
        await store.store("s", records, now_ms=NOW_MS)

        for number, body in enumerate(bodies):
            page = await store.read("s", after=number, limit=9, now_ms=NOW_MS)
            # Two do not fit into one page.
            assert [message.position for message in page.messages] == [number + 1]
            assert page.messages[0].body == body


async def test_an_expired_message_is_not_read_and_the_others_keep_their_positions(url):
    async with opened(url) as store:
        records = [Record(str(n), b"", NOW_MS + 100 if n % 2 else None) for n in range(6)]
        await store.store("s", records, now_ms=NOW_MS)

        assert len(await read_all(store, "s", now_ms=NOW_MS + 99)) == 6
        page = await store.read("s", after=0, limit=2, now_ms=NOW_MS + 100)
        assert [message.position for message in page.messages] == [1, 3]
        assert page.last == 6
        page = await store.read("s", after=5, limit=2, now_ms=NOW_MS + 100)
        assert page == Page([], last=6)


async def test_purge_removes_what_is_expired_and_no_more_than_it_is_asked(url):
    async with opened(url) as store:
        for stream in ("a", "b"):
            records = [Record(str(n), b"", NOW_MS + 100 + n) for n in range(10)]
            await store.store(stream, [*records, Record("kept", b"")], now_ms=NOW_MS)

        assert await store.purge(now_ms=NOW_MS + 99) == 0
        assert await store.purge(now_ms=NOW_MS + 104) == 10
        assert await store.purge(now_ms=NOW_MS + 104) == 0
        assert await store.purge(now_ms=NOW_MS + 200, limit=7) == 7
        assert await store.purge(now_ms=NOW_MS + 200, limit=7) == 3
        for stream in ("a", "b"):
            # By an earlier clock too: they are gone, not hidden.
            page = await store.read(stream, after=0, limit=99, now_ms=NOW_MS)
            assert [message.message_id for message in page.messages] == ["kept"]
            assert page.messages[0].position == page.last == 11


async def test_an_id_whose_message_was_purged_or_deleted_is_new_again_at_a_new_position(url):
    async with opened(url) as store:
        records = [Record("a", b"1", NOW_MS + 1), Record("b", b"2")]
        await store.store("s", records, now_ms=NOW_MS)
        await store.purge(now_ms=NOW_MS + 1)

        assert await store.store("s", [Record("a", b"3")], now_ms=NOW_MS) == [Stored(3, True)]
        assert await store.delete("s") == 2
        stored = await store.store("s", [Record("b", b"4"), Record("a", b"5")], now_ms=NOW_MS)
        assert stored == [Stored(4, True), Stored(5, True)]
        again = await store.store("s", [Record("a", b"6")], now_ms=NOW_MS)
        assert again == [Stored(5, False)]
        page = await store.read("s", after=0, limit=9, now_ms=NOW_MS)
        assert [(m.position, m.body) for m in page.messages] == [(4, b"4"), (5, b"5")]


@pytest.mark.parametrize("size", [1, 600_000])
async def test_an_id_whose_message_has_expired_is_new_again_and_can_be_read(url, size):
    async with opened(url) as store:
        body, later = bytes(size), NOW_MS + 10
        records = [Record("a", body, later), Record("b", b"2"), Record("c", body, later)]
        await store.store("s", records, now_ms=NOW_MS)
        before = await store.store("s", [Record("a", b"x")], now_ms=later - 1)
        assert before == [Stored(1, False)]

        again = [Record("c", b"3"), Record("b", b"x"), Record("a", b"4", later + 5)]
        stored = await store.store("s", [*again, Record("c", b"x")], now_ms=later)
        expected = [Stored(4, True), Stored(2, False), Stored(5, True), Stored(4, False)]
        assert stored == expected

        async def bodies(now_ms):
            page = await store.read("s", after=0, limit=9, now_ms=now_ms)
            assert page.last == 5
            return [(m.position, m.message_id, m.body) for m in page.messages]

        assert await bodies(later) == [(2, "b", b"2"), (4, "c", b"3"), (5, "a", b"4")]
        assert await store.store("s", [Record("c", b"")], now_ms=later) == [Stored(4, False)]
        # Of the old ones nothing is left to be purged, nor to take the new ones with it.
        assert await store.purge(now_ms=later) == 0
        assert await bodies(later) == [(2, "b", b"2"), (4, "c", b"3"), (5, "a", b"4")]
        assert await store.purge(now_ms=later + 5) == 1
        assert await bodies(later + 5) == [(2, "b", b"2"), (4, "c", b"3")]
    async with opened(url) as store:
        assert await bodies(later) == [(2, "b", b"2"), (4, "c", b"3")]


async def test_delete_removes_what_is_older_and_positions_go_on_counting(url):
    async with opened(url) as store:
        for number in range(6):
            await store.store("s", [Record(str(number), b"")], now_ms=NOW_MS + number)

        assert await store.delete("s", older_than_ms=NOW_MS) == 0
        assert await store.delete("s", older_than_ms=NOW_MS + 2) == 2
        assert await ids_of(store, "s") == ["2", "3", "4", "5"]
        assert await store.delete("s") == 4
        assert await store.read("s", after=0, limit=9, now_ms=NOW_MS) == Page([], last=6)
        assert await store.store("s", [Record("x", b"")], now_ms=NOW_MS) == [Stored(7, True)]


async def test_everything_is_there_after_closing_and_opening(url):
    async with opened(url) as store:
        await store.store("s", numbered_records(100, expires_ms=NOW_MS + 9), now_ms=NOW_MS)
        await store.store("t", numbered_records(5), now_ms=NOW_MS)
        await store.delete("t", older_than_ms=NOW_MS + 1)
        await store.store("t", [Record("x", b"")], now_ms=NOW_MS)
        before = await read_all(store, "s", now_ms=NOW_MS)

    async with opened(url) as store:
        assert await read_all(store, "s", now_ms=NOW_MS) == before
        assert await read_all(store, "s", now_ms=NOW_MS + 9) == []
        assert await store.store("s", [Record("7", b"")], now_ms=NOW_MS) == [Stored(8, False)]
        assert await store.store("s", [Record("x", b"")], now_ms=NOW_MS) == [Stored(101, True)]
        assert [message.position for message in await read_all(store, "t")] == [6]
        assert await store.store("t", [Record("0", b"")], now_ms=NOW_MS) == [Stored(7, True)]
    async with opened(url) as store:
        assert await store.purge(now_ms=NOW_MS + 9) == 100
