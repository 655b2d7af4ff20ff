"""What only MongoDB can do to us: transactions left open, and schemas of others."""

from typing import Any

import pytest
from bson.binary import Binary
from pymongo import AsyncMongoClient
from pymongo.errors import OperationFailure

from tests.stores.backend import opened
from tests.stores.streams import NOW_MS
from waterclock.model.errors import BadConfig
from waterclock.stores.base import Record, Stored
from waterclock.stores.mongodb import APP_NAME, MongodbStore

pytestmark = [
    pytest.mark.parametrize("backend", ["mongodb"], indirect=True),
]


def client_of(url) -> "AsyncMongoClient[dict[str, Any]]":
    return AsyncMongoClient(url, appname=APP_NAME)


async def test_a_transaction_left_open_by_a_dead_node_is_ended_by_whoever_it_keeps_out(url):
    async with opened(url) as store:
        await store.store("s", [Record("a", b"")], now_ms=NOW_MS)
        # A node that hangs: it has moved the stream on and says no more.
        async with (
            client_of(url) as client,
            client.start_session() as session,
        ):
            await session.start_transaction()
            streams = client.get_default_database()["waterclock_streams"]
            await streams.update_one({"_id": Binary(b"s")}, {"$inc": {"last": 1}}, session=session)

            stored = await store.store("s", [Record("b", b"")], now_ms=NOW_MS)
            assert stored == [Stored(2, True)]


async def test_a_schema_of_a_later_version_is_refused(url):
    async with opened(url), client_of(url) as client:
        schema = client.get_default_database()["waterclock_schema"]
        await schema.update_one({"_id": "schema"}, {"$set": {"version": 2}})

        with pytest.raises(BadConfig, match="later version 2"):
            async with opened(url):
                pass


async def test_an_account_that_is_none_is_a_mistake_in_the_configuration(url):
    with pytest.raises(BadConfig, match="Authentication failed"):
        async with opened(url.replace("mongodb://", "mongodb://nobody:secret@")):
            pass


@pytest.mark.parametrize("code", [13, 8000])
async def test_what_the_account_may_not_do_is_a_mistake_in_the_configuration(url, code):
    async with opened(url) as store:
        assert isinstance(store, MongodbStore)
        with pytest.raises(BadConfig, match="not authorized"):
            async with store._reaching():
                raise OperationFailure("not authorized", code)


async def test_where_to_read_is_not_for_the_url_to_say(url):
    # There is no secondary: to read there fails. Elsewhere, it would show the past.
    async with opened(f"{url}&readPreference=secondary") as store:
        await store.store("s", [Record("a", b"")], now_ms=NOW_MS)
        assert (await store.read("s", after=0, limit=1, now_ms=NOW_MS)).last == 1
