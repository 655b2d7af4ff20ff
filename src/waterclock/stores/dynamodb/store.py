"""Streams in a DynamoDB table: one transaction for some messages, their ids and the stream's head.

The transaction holds only if the head is as we know it and no id is taken; if not, it says what it
found instead, and we try again with that. Large bodies are cut into parts and written before, under
a claim that has them swept should the transaction never come; it lifts the claim.

DynamoDB commits a transaction item by item: a reader may see the new head and not yet a message
below it, and take that for removed. So the head says where the latest transaction begins, nobody
writes on top of another's transaction before it is whole, and a reader that misses one of its
messages asks for it by a transaction of its own, which waits for that one.

A call of more than some fifty messages, or 3 MiB, takes several transactions: if the store fails in
between, the first of them are stored.
"""

import asyncio
import os
import random
from collections.abc import Sequence
from contextlib import aclosing
from urllib.parse import parse_qs, urlsplit

from waterclock.model.errors import BadConfig, StoreUnavailable
from waterclock.model.units import MIB
from waterclock.stores.base import READ_BYTES_MAX, Page, Record, Stored, StoredMessage, stream_key
from waterclock.stores.dynamodb.items import (
    CLAIM_MS,
    HEAD,
    INLINE_BYTES_MAX,
    SCHEMA_KEY,
    SHARDS,
    Body,
    Head,
    Item,
    TransactItem,
    body_of,
    claim_item,
    claim_key,
    cut,
    head_of,
    in_transactions,
    is_expired,
    message_item,
    message_of,
    message_sk,
    number,
    part_key,
    position_of,
    stream_item,
)
from waterclock.stores.dynamodb.table import DynamodbTable, Reason
from waterclock.stores.together import together
from waterclock.stores.write_queue import Entry, Known, WriteQueues, place_entries, write_in_chunks

SCHEMA_VERSION = 1
GROUP_RECORDS_MAX = 500
GROUP_BYTES_MAX = 16 * MIB
TRIES_MAX = 200
CONFLICT_MS_MAX = 50
HEADS_MAX = 10_000
"""Streams whose head is remembered. It saves a read; what it says is checked when writing."""
REMOVE_MAX = 33
"""Messages removed by one transaction: three actions each."""
PARTS_AT_ONCE = 4


class DynamodbStore:
    """A table of streams."""

    is_shared = True

    def __init__(self, url: str) -> None:
        self._table = _table(url)
        self._heads: dict[bytes, Head] = {}
        self._queues = WriteQueues(
            self._write, records_max=GROUP_RECORDS_MAX, bytes_max=GROUP_BYTES_MAX
        )

    def __repr__(self) -> str:
        return f"<DynamodbStore {self._table.name}>"

    async def open(self) -> None:
        """Connect, and create the table if there is none."""
        await self._table.open()
        try:
            found = await self._table.get(SCHEMA_KEY)
            version = int(found["version"]["N"]) if found else 0
            if version > SCHEMA_VERSION:
                raise BadConfig("streams.store", f"the table is of the later version {version}")
            if version < SCHEMA_VERSION:
                await self._table.put({**SCHEMA_KEY, "version": number(SCHEMA_VERSION)})
        except BaseException:
            await self.close()
            raise

    async def store(self, stream: str, records: Sequence[Record], *, now_ms: int) -> list[Stored]:
        """Store all of them in order. They are durable on return."""
        return await self._queues.store(stream_key(stream), records, now_ms=now_ms)

    async def read(
        self, stream: str, *, after: int, limit: int, now_ms: int, bytes_max: int = READ_BYTES_MAX
    ) -> Page:
        """Give messages at positions > `after`: at least one if there is one."""
        name = stream_key(stream)
        head = head_of(await self._table.get(stream_item(name, HEAD)))
        messages: list[StoredMessage] = []
        size = 0
        for_more = True
        while for_more and after < head.last:
            items, after = await self._next(name, head, after=after, limit=limit - len(messages))
            for item in items:
                if is_expired(item, now_ms):
                    continue
                size += int(item["size"]["N"])
                for_more = not messages or (size <= bytes_max and len(messages) < limit)
                if not for_more:
                    break
                body = await self._body(item)
                if body is not None:
                    messages.append(message_of(item, body))
            for_more = for_more and len(messages) < limit
        return Page(messages, head.last)

    async def delete(self, stream: str, *, older_than_ms: int | None = None) -> int:
        """Remove the messages stored before then, or all; say how many."""
        name = stream_key(stream)
        head = head_of(await self._table.get(stream_item(name, HEAD)))
        if not head.last:
            return 0
        total = 0
        pages = self._table.query(
            b"s" + name, start=message_sk(1), end=message_sk(head.last),
            names=["pk", "sk", "id", "at", "ref", "parts"],
        )  # fmt: skip
        async with aclosing(pages):
            async for items in pages:
                total += await self._remove(
                    [i for i in items if older_than_ms is None or int(i["at"]["N"]) < older_than_ms]
                )
        return total

    async def purge(self, *, now_ms: int, limit: int = 1_000) -> int:
        """Remove expired messages, at most so many; say how many. Sweep parts nobody claims."""
        found: list[Item] = []
        for shard in range(SHARDS):
            found += await self._table.expired(shard, now_ms=now_ms, limit=limit)
        found = sorted(found, key=lambda item: int(item["until"]["N"]))[:limit]
        for item in found:
            if item["pk"]["B"][:1] == b"p" and (body := body_of(item)):
                await self._sweep(body)
        return await self._remove([item for item in found if item["pk"]["B"][:1] == b"s"])

    async def close(self) -> None:
        """Close the connections. Again is harmless."""
        await self._table.close()

    # Writing

    async def _write(self, stream: bytes, entries: list[Entry]) -> list[Stored]:
        return await write_in_chunks(
            entries, in_transactions, lambda chunk: self._write_chunk(stream, chunk)
        )

    async def _write_chunk(self, stream: bytes, entries: Sequence[Entry]) -> list[Stored]:
        head = self._heads.pop(stream, None) or await self._settled_head(stream)
        known: dict[bytes, Known] = {}
        bodies: dict[bytes, Body] = {}
        for _ in range(TRIES_MAX):
            placed = place_entries(entries, known, head.last)
            for row in placed.new_rows:
                if entries[row].key not in bodies:
                    await self._put_body(entries[row], bodies)
            if not placed.new_rows:
                break
            new = Head(head.last + 1, placed.last)
            keys, actions = (
                [entries[row].key for row in placed.new_rows],
                [_move(stream, head, new)],
            )
            for row in placed.new_rows:
                body = bodies.get(entries[row].key)
                actions += _add(stream, placed.stored[row].position, entries[row], body)
            reasons = await self._table.transact(actions)
            if reasons is None:
                self._remember(stream, new)
                head = new
                break
            if len(reasons) > 1 and reasons[0].is_failed:
                head = await self._settled_head(stream)
            _learn(reasons, actions, keys, known, bodies)
            await self._remove_expired(stream, entries, known)
            if any(reason.is_passing for reason in reasons):
                await asyncio.sleep(random.uniform(0, CONFLICT_MS_MAX / 1_000))
        else:
            raise StoreUnavailable("dynamodb: too many others write to the stream")
        for key in known.keys() & bodies.keys():
            await self._sweep(bodies[key])
        return placed.stored

    async def _remove_expired(
        self, stream: bytes, entries: Sequence[Entry], known: dict[bytes, Known]
    ) -> None:
        """Remove what is known of ids whose messages have expired: they are new."""
        now_ms = max(entry.now_ms for entry in entries)
        keys = [stream_item(stream, message_sk(found.position)) for found in known.values()]
        items = await self._table.get_many(keys) if keys else []
        expired = [item for item in items if is_expired(item, now_ms)]
        await self._remove(expired)
        for item in expired:
            del known[item["id"]["B"]]

    async def _settled_head(self, stream: bytes) -> Head:
        """Give the head, and see that its latest transaction is whole."""
        head = head_of(await self._table.get(stream_item(stream, HEAD)))
        if head.last:
            await self._table.get_settled(
                [stream_item(stream, message_sk(p)) for p in range(head.first, head.last + 1)]
            )
        return head

    def _remember(self, stream: bytes, head: Head) -> None:
        if len(self._heads) >= HEADS_MAX:
            self._heads.pop(next(iter(self._heads)))
        self._heads[stream] = head

    async def _put_body(self, entry: Entry, bodies: dict[bytes, Body]) -> None:
        """Write a large body in parts, to be swept unless a message takes them."""
        if len(entry.record.body) <= INLINE_BYTES_MAX:
            return
        ref, parts = os.urandom(16), cut(entry.record.body)
        await self._table.put(claim_item(ref, len(parts), entry.now_ms + CLAIM_MS))
        for start in range(0, len(parts), PARTS_AT_ONCE):
            some = enumerate(parts[start : start + PARTS_AT_ONCE], start)
            await together(
                self._table.put({**part_key(ref, index), "body": {"B": part}})
                for index, part in some
            )
        bodies[entry.key] = Body(ref, len(parts))

    # Reading

    async def _next(
        self, stream: bytes, head: Head, *, after: int, limit: int
    ) -> tuple[list[Item], int]:
        """Give some messages behind a position, and the position up to which these are all."""
        pages = self._table.query(
            b"s" + stream, start=message_sk(after + 1), end=message_sk(head.last),
            page=max(1, min(limit, 1_000)),
        )  # fmt: skip
        async with aclosing(pages):
            items = await anext(pages)
        end = position_of(items[-1]) if items else head.last
        found = {position_of(item): item for item in items}
        expected = range(max(after + 1, head.first), end + 1)
        if missing := [position for position in expected if position not in found]:
            keys = [stream_item(stream, message_sk(position)) for position in missing]
            for item in await self._table.get_settled(keys):
                found[position_of(item)] = item
        return [found[position] for position in sorted(found)], end

    async def _body(self, item: Item) -> bytes | None:
        """Give the body of a message; None if it has been removed meanwhile."""
        where = body_of(item)
        if where is None:
            body: bytes = item["body"]["B"]
            return body
        keys = [part_key(where.ref, index) for index in range(where.parts)]
        found = await self._table.get_many(keys)
        if len(found) < where.parts:
            return None
        parts = {part["sk"]["B"]: part["body"]["B"] for part in found}
        return b"".join(parts[sk] for sk in sorted(parts))

    # Removing

    async def _remove(self, items: list[Item]) -> int:
        """Remove messages, their ids and bodies; say how many were still there."""
        total = 0
        for start in range(0, len(items), REMOVE_MAX):
            total += await self._remove_some(items[start : start + REMOVE_MAX])
        return total

    async def _remove_some(self, items: list[Item]) -> int:
        left = [_Removal(item) for item in items]
        for _ in range(TRIES_MAX):
            if not left:
                return 0
            pairs = [(removal, action) for removal in left for action in removal.actions()]
            reasons = await self._table.transact([action for _, action in pairs])
            if reasons is None:
                for removal in left:
                    if body := body_of(removal.item):
                        await self._sweep(body)
                return len(left)
            for (removal, action), reason in zip(pairs, reasons, strict=False):
                if reason.is_failed:
                    removal.learn(action)
            left = [removal for removal in left if not removal.is_gone]
            if any(reason.is_passing for reason in reasons):
                await asyncio.sleep(random.uniform(0, CONFLICT_MS_MAX / 1_000))
        raise StoreUnavailable("dynamodb: too many others write to the stream")

    async def _sweep(self, body: Body) -> None:
        """Remove parts, and then the claim on them."""
        await self._table.delete_many([part_key(body.ref, index) for index in range(body.parts)])
        await self._table.delete_many([claim_key(body.ref)])


def _table(url: str) -> DynamodbTable:
    parts = urlsplit(url)
    name = parts.path.strip("/")
    if not parts.netloc or not name:
        raise BadConfig("streams.store", "must be dynamodb://region/table?endpoint=url")
    endpoint = parse_qs(parts.query).get("endpoint", [None])[0]
    return DynamodbTable(name, region=parts.netloc, endpoint=endpoint)


def _move(stream: bytes, old: Head, new: Head) -> TransactItem:
    """Move the head on, if it is as we know it."""
    condition, values = "attribute_not_exists(pk)", {}
    if old.last:
        condition, values = "#last = :old", {":old": number(old.last)}
    return {
        "Update": {
            "Key": stream_item(stream, HEAD),
            "UpdateExpression": "SET #first = :first, #last = :last",
            "ConditionExpression": condition,
            "ExpressionAttributeNames": {"#first": "first", "#last": "last"},
            "ExpressionAttributeValues": {
                ":first": number(new.first), ":last": number(new.last), **values
            },
        }
    }  # fmt: skip


def _add(stream: bytes, position: int, entry: Entry, body: Body | None) -> list[TransactItem]:
    """Add a message and its id, unless the id is taken; take its parts, if they are still there."""
    id_item = {
        **stream_item(stream, b"i" + entry.key),
        "position": number(position),
        "token": {"B": entry.token},
    }
    actions: list[TransactItem] = [
        {"Put": {"Item": message_item(stream, position, entry, body)}},
        {"Put": {
            "Item": id_item, "ConditionExpression": "attribute_not_exists(pk)",
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }},
    ]  # fmt: skip
    if body is not None:
        claim = {"Key": claim_key(body.ref), "ConditionExpression": "attribute_exists(pk)"}
        actions.append({"Delete": claim})
    return actions


def _learn(
    reasons: list[Reason],
    actions: list[TransactItem],
    keys: list[bytes],
    known: dict[bytes, Known],
    bodies: dict[bytes, Body],
) -> None:
    """Note which ids are taken, and which parts were swept."""
    index = -1
    for action, reason in zip(actions, reasons, strict=False):
        if "Put" in action and action["Put"]["Item"]["sk"]["B"][:1] == b"m":
            index += 1
        if not reason.is_failed or index < 0:
            continue
        if reason.item is not None:
            found = reason.item
            known[keys[index]] = Known(int(found["position"]["N"]), found["token"]["B"])
        elif "Delete" in action:
            bodies.pop(keys[index], None)


class _Removal:
    """A message to be removed: with its id, unless that is a later message's by now."""

    def __init__(self, item: Item) -> None:
        self.item = item
        self.is_gone = False
        self._has_id = True

    def actions(self) -> list[TransactItem]:
        """Remove a message and its id; put its parts under a claim that has run out."""
        item = self.item
        key = {"pk": item["pk"], "sk": item["sk"]}
        actions: list[TransactItem] = [
            {"Delete": {"Key": key, "ConditionExpression": "attribute_exists(pk)"}}
        ]
        if self._has_id:
            actions.append({"Delete": {
                "Key": stream_item(item["pk"]["B"][1:], b"i" + item["id"]["B"]),
                "ConditionExpression": "attribute_not_exists(pk) OR #position = :position",
                "ExpressionAttributeNames": {"#position": "position"},
                "ExpressionAttributeValues": {":position": number(position_of(item))},
            }})  # fmt: skip
        if body := body_of(item):
            actions.append({"Put": {"Item": claim_item(body.ref, body.parts, 0)}})
        return actions

    def learn(self, failed: TransactItem) -> None:
        """Take note of which action found things otherwise."""
        if failed["Delete"]["Key"]["sk"] == self.item["sk"]:
            self.is_gone = True
        else:
            self._has_id = False
