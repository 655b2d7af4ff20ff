"""What only DynamoDB can do to us: transactions seen by halves, and bodies in parts left behind."""

from contextlib import asynccontextmanager

import pytest
from botocore.exceptions import ClientError

from tests.stores.streams import NOW_MS, ids_of, numbered_records, read_all
from waterclock.model.errors import BadConfig, StoreUnavailable
from waterclock.model.units import HOUR_MS, MIB
from waterclock.stores.base import Record, Stored
from waterclock.stores.dynamodb.items import position_of
from waterclock.stores.dynamodb.store import DynamodbStore

pytestmark = [
    pytest.mark.parametrize("backend", ["dynamodb"], indirect=True),
]


@asynccontextmanager
async def opened(url):
    """Open a store whose inner parts a test may touch."""
    store = DynamodbStore(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def test_a_reader_that_sees_a_transaction_by_halves_waits_for_the_rest(url):
    async with opened(url) as store:
        await store.store("s", numbered_records(3), now_ms=NOW_MS)
        await store.store("s", numbered_records(3, start=3), now_ms=NOW_MS)
        query = store._table.query

        async def by_halves(*arguments, **options):
            # The stand-in commits at once; the service shows an item earlier than another.
            async for items in query(*arguments, **options):
                yield [item for item in items if position_of(item) not in (4, 6)]

        store._table.query = by_halves
        for limit in (99, 1):
            messages = await read_all(store, "s", limit=limit)
            assert [message.position for message in messages] == [1, 2, 3, 4, 5, 6]


async def test_a_long_call_takes_several_transactions_and_repeats_are_still_found(url):
    async with opened(url) as store:
        records = [*numbered_records(120), *numbered_records(3)]
        stored = await store.store("s", records, now_ms=NOW_MS)

        assert stored[:120] == [Stored(position, True) for position in range(1, 121)]
        assert stored[120:] == [Stored(1, False), Stored(2, False), Stored(3, False)]
        assert len(await ids_of(store, "s")) == 120


async def test_parts_are_swept_if_their_message_never_came_and_with_their_message(url):
    async with opened(url) as store:
        body = b"x" * MIB
        await store.store("s", [Record("kept", body)], now_ms=NOW_MS)
        transact = store._table.transact

        async def fail(actions):
            raise StoreUnavailable("it died before the transaction")

        store._table.transact = fail
        with pytest.raises(StoreUnavailable):
            await store.store("s", [Record("lost", body)], now_ms=NOW_MS)
        store._table.transact = transact

        assert await parts(store) == 7  # three each, and one claim
        assert await store.purge(now_ms=NOW_MS + 2 * HOUR_MS) == 0
        assert await parts(store) == 3
        assert [message.body for message in await read_all(store, "s")] == [body]
        # A repeat is known only once its parts are written: they go again.
        assert await store.store("s", [Record("kept", body)], now_ms=NOW_MS) == [Stored(1, False)]
        assert await parts(store) == 3
        assert await store.delete("s") == 1
        assert await parts(store) == 0


async def parts(store):
    """Count the parts and claims of the table."""
    count, request = 0, {"TableName": store._table.name}
    while True:
        answer = await store._table._call("scan", request)
        count += sum(item["pk"]["B"].startswith(b"p") for item in answer["Items"])
        if "LastEvaluatedKey" not in answer:
            return count
        request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]


async def test_a_purge_does_not_take_messages_of_two_streams_for_each_other(url):
    async with opened(url) as store, opened(url) as other:
        for name in ("a", "b"):
            record = Record("x", b"", expires_ms=NOW_MS + 1)
            await store.store(name, [record], now_ms=NOW_MS)
        transact = store._table.transact

        async def late(actions):
            store._table.transact = transact
            await other.delete("a")  # another node was faster
            return await transact(actions)

        store._table.transact = late
        assert await store.purge(now_ms=NOW_MS + 2) == 1
        assert await store.purge(now_ms=NOW_MS + 2) == 0
        for name in ("a", "b"):
            record = Record("x", b"again")
            assert await store.store(name, [record], now_ms=NOW_MS) == [Stored(2, True)]


@pytest.mark.parametrize("code", ["AccessDeniedException", "UnrecognizedClientException"])
async def test_what_the_account_may_not_do_is_a_mistake_in_the_configuration(url, code):
    async with opened(url) as store:
        with pytest.raises(BadConfig, match=r"streams\.store.*may not"):
            async with store._table._reaching():
                raise ClientError({"Error": {"Code": code, "Message": "may not"}}, "GetItem")
