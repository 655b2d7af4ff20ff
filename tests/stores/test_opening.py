"""From URLs to stores, and what is said about URLs that lead nowhere."""

import asyncio
import sys
from pathlib import Path

import pytest
from cassandra import AuthenticationFailed, OperationTimedOut, Unauthorized
from cassandra.cluster import NoHostAvailable

from waterclock.model.errors import BadConfig, LimitExceeded, StoreUnavailable
from waterclock.stores.base import BODY_BYTES_MAX, Placed, Record, Stored, check_records, place
from waterclock.stores.cassandra.session import CassandraSession
from waterclock.stores.log.store import LogStore
from waterclock.stores.mysql.store import MysqlStore
from waterclock.stores.opening import open_store
from waterclock.stores.postgres import PostgresStore
from waterclock.stores.sqlite import SqliteStore


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("log:///var/lib/streams", LogStore),
        ("sqlite:///var/lib/streams.db", SqliteStore),
        ("postgresql://user:secret@host/name", PostgresStore),
        ("mysql://user:secret@host:3306/name?ssl=true", MysqlStore),
    ],
)
def test_a_scheme_names_a_store_and_its_repr_keeps_secrets(url, kind):
    store = open_store(url)

    assert isinstance(store, kind)
    assert "secret" not in repr(store)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("oracle://host/name", "no scheme 'oracle'; there are .*log.*mysql.*postgresql"),
        ("", "no scheme ''"),
        ("log:", "log:///absolute/path"),
        ("sqlite://streams.db", "sqlite:///absolute/path"),
        ("sqlite:///a?mode=ro", "sqlite:///absolute/path"),
        ("mysql://host", "mysql://user:password@host:port/database"),
        ("mysql://host/name?charset=latin1", "no option charset=latin1"),
    ],
)
def test_a_url_that_leads_nowhere_is_refused(url, problem):
    with pytest.raises(BadConfig, match=problem):
        open_store(url)


@pytest.mark.parametrize(
    "url",
    [
        "cassandra://user:secret@host/Not-A-Keyspace",
        "cassandra://user:secret/s@host/streams",
        "cassandra://user:pass@host/streams?replication=secret",
        "dynamodb://user:secret@eu-west-1",
        "mysql://user:secret/s@host/name",
        "mongodb://user:secret/s@host/name",
    ],
)
def test_what_is_said_about_a_url_keeps_its_secrets(url):
    with pytest.raises(BadConfig) as raised:
        asyncio.run(open_store(url).open())

    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Unauthorized("no permission"), BadConfig),
        (NoHostAvailable("none", {"host": AuthenticationFailed("bad credentials")}), BadConfig),
        (NoHostAvailable("none", {"host": OSError("refused")}), StoreUnavailable),
        (OperationTimedOut(), StoreUnavailable),
    ],
)
def test_an_account_that_cassandra_refuses_is_a_mistake_in_the_configuration(error, kind):
    session = CassandraSession(["host"], port=9042, credentials=None)

    def fail():
        raise error

    with pytest.raises(kind, match="cassandra"):
        asyncio.run(session._on_thread(fail))


def test_a_missing_driver_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    monkeypatch.delitem(sys.modules, "waterclock.stores.postgres")

    with pytest.raises(BadConfig, match=r"pip install 'waterclock\[postgres\]'"):
        open_store("postgresql://host/name")


def test_a_path_may_hold_any_character():
    assert repr(open_store("sqlite:///tmp/a%20b%3F")) == f"<SqliteStore {Path('/tmp/a b?')}>"


def test_a_call_may_be_too_large_although_no_message_is():
    records = [Record(str(number), bytes(BODY_BYTES_MAX)) for number in range(7)]

    assert check_records(records[:6]) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    with pytest.raises(LimitExceeded, match="bodies of one call exceeds its limit of 67108864"):
        check_records(records)


def test_new_records_get_the_next_positions_and_repeats_their_first():
    assert place([b"a", b"b", b"a", b"c"], {b"b": 2}, 5) == Placed(
        [Stored(6, True), Stored(2, False), Stored(6, False), Stored(7, True)], [0, 3], 7
    )
