"""A DynamoDB table as a handful of calls: bounded in time, and with errors of ours.

Reads are consistent throughout. A transaction that is cancelled is no error but an answer: each of
its actions says what it found in its way.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from typing import Any

from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore.exceptions import (
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
)
from botocore.exceptions import ConnectionError as NoConnection

from waterclock.model.errors import BadConfig, Closed, StoreUnavailable
from waterclock.stores.dynamodb.items import ACTIONS_MAX, INDEX, TABLE, Item, TransactItem, number
from waterclock.stores.tls import problem_of

CALL_S_MAX = 20.0
CONNECT_S_MAX = 2.0
CREATE_S_MAX = 120.0
ASK_S = 0.2
CONNECTIONS_MAX = 32
ATTEMPTS_MAX = 2
BATCH_MAX = 25
"""Items written by one call, by DynamoDB's rules."""

AWAY_CODES = {
    "InternalServerError", "InternalFailure", "ItemCollectionSizeLimitExceededException",
    "LimitExceededException", "ProvisionedThroughputExceededException", "RequestLimitExceeded",
    "ServiceUnavailable", "ThrottlingException", "TransactionInProgressException",
}  # fmt: skip
REFUSED_CODES = {
    "AccessDenied", "AccessDeniedException", "ExpiredTokenException", "IncompleteSignature",
    "InvalidClientTokenId", "InvalidSignatureException", "MissingAuthenticationToken",
    "MissingAuthenticationTokenException", "OptInRequired", "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}  # fmt: skip
"""The account does not exist, or may not do what it must."""
Arguments = dict[str, Any]

FAILED, CONFLICT = "ConditionalCheckFailed", "TransactionConflict"


class Reason:
    """Why an action kept a transaction from happening, if it did."""

    def __init__(self, code: str, item: Item | None) -> None:
        self.is_failed = code == FAILED
        """Its condition did not hold."""
        self.is_passing = code not in (FAILED, "None")
        """Another transaction is under way, or there is too much of them: try again."""
        self.item = item
        """What was there, if it was asked for."""


class DynamodbTable:
    """A table, by its name."""

    def __init__(self, name: str, *, region: str, endpoint: str | None) -> None:
        self.name = name
        self._region = region
        self._endpoint = endpoint
        self._client: Any = None
        self._until_closed = AsyncExitStack()

    async def open(self) -> None:
        """Connect, and create the table if there is none."""
        config = AioConfig(
            connect_timeout=CONNECT_S_MAX,
            read_timeout=CALL_S_MAX,
            max_pool_connections=CONNECTIONS_MAX,
            # Its waits are short at first; those of the other modes begin with a second.
            retries={"max_attempts": ATTEMPTS_MAX - 1, "mode": "legacy"},
        )
        client = _session().create_client(
            "dynamodb", region_name=self._region, endpoint_url=self._endpoint, config=config
        )
        try:
            self._client = await self._until_closed.enter_async_context(client)
            await self._create()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the connections. Again is harmless."""
        self._client = None
        await self._until_closed.aclose()

    async def get(self, key: Item) -> Item | None:
        """Give an item, if there is one."""
        answer = await self._call(
            "get_item", {"TableName": self.name, "Key": key, "ConsistentRead": True}
        )
        item: Item | None = answer.get("Item")
        return item

    async def get_settled(self, keys: Sequence[Item]) -> list[Item]:
        """Give the items that are there, when no transaction on any of them is under way."""
        gets = [{"Get": {"TableName": self.name, "Key": key}} for key in keys]
        async with self._reaching():
            while True:
                try:
                    answer = await self._send("transact_get_items", {"TransactItems": gets})
                except ClientError as error:
                    if _reasons(error) is None:
                        raise
                    await asyncio.sleep(ASK_S)
                    continue
                return [found["Item"] for found in answer["Responses"] if "Item" in found]

    async def get_many(self, keys: Sequence[Item]) -> list[Item]:
        """Give the items that are there, in any order."""
        found: list[Item] = []
        for start in range(0, len(keys), ACTIONS_MAX):
            wanted = list(keys[start : start + ACTIONS_MAX])
            while wanted:
                request = {self.name: {"Keys": wanted, "ConsistentRead": True}}
                answer = await self._call("batch_get_item", {"RequestItems": request})
                found += answer["Responses"].get(self.name, [])
                wanted = answer["UnprocessedKeys"].get(self.name, {}).get("Keys", [])
        return found

    async def put(self, item: Item) -> None:
        await self._call("put_item", {"TableName": self.name, "Item": item})

    async def delete_many(self, keys: Sequence[Item]) -> None:
        """Remove items, whether they are there or not."""
        for start in range(0, len(keys), BATCH_MAX):
            left = [{"DeleteRequest": {"Key": key}} for key in keys[start : start + BATCH_MAX]]
            while left:
                request = {self.name: left}
                answer = await self._call("batch_write_item", {"RequestItems": request})
                left = answer["UnprocessedItems"].get(self.name, [])

    async def query(
        self, pk: bytes, *, start: bytes, end: bytes, names: Sequence[str] = (), page: int = 1_000
    ) -> AsyncGenerator[list[Item], None]:
        """Give the items of a key between two sort keys, page by page."""
        values = {":pk": {"B": pk}, ":start": {"B": start}, ":end": {"B": end}}
        arguments: Arguments = {
            "TableName": self.name,
            "KeyConditionExpression": "pk = :pk AND sk BETWEEN :start AND :end",
            "ExpressionAttributeValues": values,
            "ConsistentRead": True,
            "Limit": page,
        }
        if names:
            arguments["ProjectionExpression"] = ", ".join(f"#{name}" for name in names)
            arguments["ExpressionAttributeNames"] = {f"#{name}": name for name in names}
        while True:
            answer = await self._call("query", arguments)
            yield answer["Items"]
            if "LastEvaluatedKey" not in answer:
                return
            arguments["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    async def expired(self, shard: int, *, now_ms: int, limit: int) -> list[Item]:
        """Give what the index says has expired, the earliest first."""
        answer = await self._call(
            "query",
            {
                "TableName": self.name,
                "IndexName": INDEX,
                "KeyConditionExpression": "#shard = :shard AND #until <= :now",
                "ExpressionAttributeNames": {"#shard": "shard", "#until": "until"},
                "ExpressionAttributeValues": {":shard": number(shard), ":now": number(now_ms)},
                "Limit": limit,
            },
        )
        items: list[Item] = answer["Items"]
        return items

    async def transact(self, actions: Sequence[TransactItem]) -> list[Reason] | None:
        """Do all of it, or nothing and give the reasons, one for each action."""
        named = [
            {verb: {"TableName": self.name, **action} for verb, action in one.items()}
            for one in actions
        ]
        async with self._reaching():
            try:
                await self._send("transact_write_items", {"TransactItems": named})
            except ClientError as error:
                if (reasons := _reasons(error)) is None:
                    raise
                return reasons
        return None

    async def _create(self) -> None:
        """Create the table, and wait until it is there; others may do the same."""
        async with asyncio.timeout(CREATE_S_MAX):
            while (status := await self._status()) != "ACTIVE":
                if status is None:
                    await self._create_table()
                else:
                    await asyncio.sleep(ASK_S)

    async def _status(self) -> str | None:
        try:
            answer = await self._call("describe_table", {"TableName": self.name})
        except ClientError as error:
            if _code(error) != "ResourceNotFoundException":
                raise
            return None
        status: str = answer["Table"]["TableStatus"]
        return status

    async def _create_table(self) -> None:
        try:
            await self._call("create_table", {"TableName": self.name, **TABLE})
        except ClientError as error:
            if _code(error) != "ResourceInUseException":
                raise

    async def _call(self, method: str, arguments: Arguments) -> Arguments:
        async with self._reaching():
            return await self._send(method, arguments)

    async def _send(self, method: str, arguments: Arguments) -> Arguments:
        if self._client is None:
            raise Closed("the store is not open")
        answer: Arguments = await getattr(self._client, method)(**arguments)
        return answer

    @asynccontextmanager
    async def _reaching(self) -> AsyncIterator[None]:
        """Bound what is done in the block, and say if the database is out of reach."""
        try:
            async with asyncio.timeout(CALL_S_MAX):
                yield
        except TimeoutError as error:
            raise StoreUnavailable(f"dynamodb took longer than {CALL_S_MAX} s") from error
        except (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError) as error:
            raise BadConfig("streams.store", f"dynamodb: {error}") from error
        except (NoConnection, HTTPClientError, OSError) as error:
            raise StoreUnavailable(f"dynamodb: {problem_of(error)}") from error
        except ClientError as error:
            if _code(error) in REFUSED_CODES:
                raise BadConfig("streams.store", f"dynamodb: {error}") from error
            if _code(error) in AWAY_CODES:
                raise StoreUnavailable(f"dynamodb: {error}") from error
            raise


@cache
def _session() -> AioSession:
    """Give the one session: each would read the description of the service, for half a second."""
    return AioSession()


def _code(error: ClientError) -> str:
    code: str = error.response["Error"]["Code"]
    return code


def _reasons(error: ClientError) -> list[Reason] | None:
    """Give the reasons of a cancelled transaction; None: it is another error."""
    if _code(error) == "TransactionConflictException":
        return [Reason(CONFLICT, None)]
    if _code(error) != "TransactionCanceledException":
        return None
    found = error.response["CancellationReasons"]
    return [Reason(reason["Code"], reason.get("Item")) for reason in found]
