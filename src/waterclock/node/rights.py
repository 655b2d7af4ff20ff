"""The rights of principals among the records that all nodes of a cluster have.

`rights/<name>` is the standing of a principal, and `rights` says which records these are and counts
their changes (docs/formats/shared_rights.md). The leader of `__meta` writes them, as
`security/shared_rights.py` decides; every node goes by what is committed. A record that cannot be
read is passed over, by whoever reads it: what a folder has of that principal stays.

Secrets are not among them: tokens are known by their ids, and verified by keys in the folder.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from waterclock.model.clock import Clock
from waterclock.model.errors import BadInput, Fenced, NotLeader
from waterclock.model.units import DAY_MS
from waterclock.node.metadata import Metadata
from waterclock.security.principals import (
    PrincipalRecord,
    check_principal_name,
    known_of,
    record_of,
)
from waterclock.security.shared_rights import (
    Change,
    Decision,
    Records,
    Standing,
    Standings,
    decided,
)

MARK: Final = "rights"
"""The record that says which records these are; it is there once there are any."""
RECORD: Final = "rights/"
COMMITTED_S_MAX: Final = 10.0
"""How long a change waits for a majority of nodes."""
ENDED_MS: Final = 30 * DAY_MS
"""For how long it is remembered that somebody is ended: until then old copies are known as such."""

log = logging.getLogger(__name__)


class Mark(msgspec.Struct, frozen=True):
    """Which records there are, and how often they were changed."""

    identity: str
    revision: int


class RightsRecords:
    """The records of rights as this node has them; changed on the leader of `__meta` only."""

    def __init__(self, metadata: Metadata, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock
        self._mark: Mark | None = None
        self._committed: dict[str, Standing] = {}
        self._unclear: set[str] = set()
        self.on_changed: list[Callable[[], None]] = []
        """Called when something was committed, or this node begins or ceases to lead."""
        metadata.on_committed(MARK, self._apply)
        metadata.on_leading.append(lambda is_leading: self._tell())

    def __repr__(self) -> str:
        return f"<RightsRecords {len(self._committed)} by {self._mark}>"

    @property
    def is_leading(self) -> bool:
        return self._metadata.is_leading

    def committed(self) -> Records | None:
        """Return what is committed; None if there are no such records yet."""
        if self._mark is None:
            return None
        mark, unclear = self._mark, frozenset(self._unclear)
        return Records(mark.identity, mark.revision, dict(self._committed), unclear)

    def is_to_begin(self) -> bool:
        """Say if this node leads, and there are no such records yet."""
        return self.is_leading and self._metadata.get(MARK) is None

    async def begin(self, identity: str, found: Mapping[str, PrincipalRecord]) -> None:
        """Make the records of what a folder has, unless there are some."""
        if self.is_to_begin():
            standings = {name: Standing(record) for name, record in found.items()}
            await self._write(Mark(identity, 1), standings)
            log.info("rights_begun principals=%d", len(standings))

    async def share(self, changes: Iterable[Change], *, keeps_admin: bool) -> Decision:
        """Write what the folder of a node has to tell, as far as it holds; it is committed then.

        Raises NotLeader if another node is to, Fenced if nobody knows whether it is committed.
        """
        mark, standings, unclear = self._written()
        changes = [_checked(each) for each in changes]
        answer = decided(changes, standings, unclear=unclear, keeps_admin=keeps_admin)
        if answer.written:
            await self._write(Mark(mark.identity, mark.revision + 1), answer.written)
            log.info("rights_changed principals=%s", ",".join(sorted(answer.written)))
        return answer

    async def overtake(self, revision: int) -> None:
        """Count from a revision on that a folder knows: the records are of an older backup."""
        mark = self._written()[0]
        if mark.revision < revision:
            await self._write(Mark(mark.identity, revision), {})

    async def drop_old(self) -> None:
        """Forget who is ended for so long that nobody has a copy from before."""
        if not self.is_leading or self._metadata.get(MARK) is None:
            return
        mark, standings, _ = self._written()
        before_ms = self._clock.now_ms() - ENDED_MS
        old = [
            name
            for name, each in standings.items()
            if each.principal is None and each.ended_ms < before_ms
        ]
        if old:
            await self._write(Mark(mark.identity, mark.revision + 1), dict.fromkeys(old))

    def _written(self) -> tuple[Mark, Standings, set[str]]:
        """Return all records as the leader has written them, committed or not."""
        data = self._metadata.get(MARK)
        mark = None if data is None else _mark_of(data)
        if not self.is_leading or mark is None:
            raise NotLeader("the records of rights")
        standings: dict[str, Standing] = {}
        unclear: set[str] = set()
        for key, value in self._metadata.items(RECORD):
            name = key.removeprefix(RECORD)
            standing = _standing_of(name, value)
            if standing is None:
                unclear.add(name)
            else:
                standings[name] = standing
        return mark, standings, unclear

    async def _write(self, mark: Mark, standings: Mapping[str, Standing | None]) -> None:
        records: dict[str, bytes | None] = {MARK: msgspec.json.encode(mark)}
        for name, standing in standings.items():
            records[RECORD + name] = None if standing is None else msgspec.json.encode(standing)
        ticket = self._metadata.write(records)
        try:
            async with asyncio.timeout(COMMITTED_S_MAX):
                await self._metadata.wait_flushed(ticket)
        except TimeoutError as error:
            raise Fenced("most nodes do not answer: the rights may be changed when they do") from (
                error
            )

    def _apply(self, key: str, value: bytes | None) -> None:
        """Take up a record that is committed."""
        if key == MARK:
            self._mark = None if value is None else _mark_of(value) or self._mark
        elif key.startswith(RECORD):
            self._apply_standing(key.removeprefix(RECORD), value)
        self._tell()

    def _apply_standing(self, name: str, value: bytes | None) -> None:
        standing = None if value is None else _standing_of(name, value)
        self._committed.pop(name, None)
        self._unclear.discard(name)
        if standing is not None:
            self._committed[name] = standing
        elif value is not None:
            # Of a later release, perhaps: all others go on, and so does this one as it was.
            log.error("rights_not_understood principal=%s", name)
            self._unclear.add(name)

    def _tell(self) -> None:
        for callback in self.on_changed:
            callback()


def new_identity() -> str:
    """Return what records are known by that are to be made."""
    return os.urandom(16).hex()


def _checked(change: Change) -> Change:
    """Return a change as records have it; raises BadInput unless they may."""
    record = change.mine.principal
    if record is None:
        check_principal_name(change.name)
        return change
    normal = Standing(record_of(known_of(change.name, record)))
    return msgspec.structs.replace(change, mine=normal)


def _mark_of(value: bytes) -> Mark | None:
    try:
        return msgspec.json.decode(value, type=Mark)
    except msgspec.MsgspecError as error:
        log.error("rights_not_understood error=%s", error)
        return None


def _standing_of(name: str, value: bytes) -> Standing | None:
    """Return what a record says; None if that is nothing a node could go by."""
    try:
        standing = msgspec.json.decode(value, type=Standing)
        if standing.principal is not None:
            known_of(name, standing.principal)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, BadInput):
        return None
    return standing
