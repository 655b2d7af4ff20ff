"""Rights that the nodes of a cluster share: which of two standings of a principal holds.

Each node has a folder, which people change without asking any node, and all nodes have the same
records (docs/formats/shared_rights.md). A folder keeps beside its principals what it last had in
common with the records. So it is known what was changed in it: that is brought to the records, and
all else is taken from them.

What is known of a principal is its *standing*: what it may do, or that it is ended. Adding somebody
begins an *incarnation*, known by the time it was made; a removal ends all that were made until
then. Of two standings the later holds, and of two of the same time the one that ends. Whoever adds
in a folder is later than all that is known there, whatever the clock says. So what was removed
comes back by being added anew and not by a copy that is old, however late it comes. Two standings
of one incarnation are merged: each may have been given tokens.

Nothing here does anything: folder and records are arguments.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

import msgspec

from waterclock.security.principals import PRINCIPALS_MAX, TOKENS_MAX, PrincipalRecord, TokenRecord

T = TypeVar("T")


class Standing(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is known of a principal: what it may do, or until when it is ended."""

    principal: PrincipalRecord | None = None
    ended_ms: int = 0
    """Every incarnation that was made until then is ended."""

    @property
    def at_ms(self) -> int:
        """When it came to be so."""
        return self.ended_ms if self.principal is None else self.principal.made_ms

    @property
    def is_admin(self) -> bool:
        return self.principal is not None and bool(self.principal.rights.get("admin"))


UNKNOWN: Final = Standing()
"""Nobody has heard of it, or it is ended for so long that this was forgotten."""

Standings = Mapping[str, Standing]
"""By the names of principals; one that is missing is unknown."""


class Change(msgspec.Struct, frozen=True):
    """What a folder has to say of a principal, beside what it had in common with the records."""

    name: str
    base: Standing
    mine: Standing


class Records(NamedTuple):
    """The records as a node has them: all that was committed until a revision."""

    identity: str
    """Drawn when they were first written: of other records, other revisions."""
    revision: int
    standings: Standings
    unclear: Collection[str] = ()
    """Of whom there is a record that this release does not understand."""


class Common(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a folder last had in common with the records."""

    identity: str
    revision: int
    principals: dict[str, Standing]
    pending: dict[str, int] = {}
    """Of whom the folder had something to tell, with the time of their standing: the records may
    have heard of it by now, so who is in the folder no more was removed."""


class Exchange(NamedTuple):
    """What is to be done about a folder."""

    found: dict[str, PrincipalRecord]
    """1. Who is to be in it."""
    common: Common
    """2. What it has in common with the records then."""
    changes: tuple[Change, ...] = ()
    """3. What is to be told to the records."""
    dropped: tuple[str, ...] = ()
    """Who was in a folder that had nothing in common with the records, and is in none of them."""


class Decision(NamedTuple):
    """What the records make of changes."""

    written: dict[str, Standing]
    kept: tuple[str, ...] = ()
    """Admins that stay: without them there would be none."""
    refused: Mapping[str, str] = {}
    """Who cannot be changed now, and why."""


def merged(base: Standing, mine: Standing, theirs: Standing) -> Standing:
    """Return which standing of a principal holds: that of a folder, or that of the records, which
    were the same at `base`."""
    if theirs == UNKNOWN and base.principal is not None:
        theirs = Standing(ended_ms=base.at_ms)  # it was ended, and that is forgotten
    if mine.at_ms != theirs.at_ms:
        return max(mine, theirs, key=_at_ms)
    if mine.principal is None or theirs.principal is None:
        return Standing(ended_ms=mine.at_ms)
    return Standing(_renewed(base.principal, mine.principal, theirs.principal))


def exchanged(
    found: Mapping[str, PrincipalRecord],
    common: Common | None,
    records: Records,
    *,
    changed_ms: int,
    kept: Collection[str] = (),
) -> Exchange:
    """Return what a folder is to become, and what it has to tell.

    It was last changed at `changed_ms`, and what was removed since it was last looked at, no later.
    Of those who are `kept`, the records hold whatever the folder says.
    """
    if common is None or common.identity != records.identity:
        return _taken(found, records)
    if records.revision < common.revision:  # another node that goes by this folder is ahead
        return Exchange(dict(found), common)
    base, theirs = common.principals, records.standings
    said = _said(found, common, changed_ms)
    principals = dict(found)
    after: dict[str, Standing] = {}
    pending: dict[str, int] = {}
    changes = []
    for name in sorted(said.keys() | base.keys() | theirs.keys()):
        before, mine = base.get(name, UNKNOWN), said.get(name, UNKNOWN)
        held = theirs.get(name, UNKNOWN)
        wanted = held if name in kept else merged(before, mine, held)
        if name in records.unclear:
            is_settled, held = mine == before, before
        else:
            is_heard = mine == before and name not in common.pending
            is_settled = wanted == held or (
                # That somebody is ended who is unknown is forgotten, once the records have had it.
                is_heard and wanted.principal is None and held == UNKNOWN
            )
        if is_settled:
            _put(principals, name, held.principal)
            _put(after, name, None if held == UNKNOWN else held)
        else:
            # A removal is remembered with its time: the file may be changed again.
            noted = mine if mine.principal is None else before
            _put(after, name, None if noted == UNKNOWN else noted)
            pending[name] = mine.at_ms
            changes.append(Change(name, before, mine))
    common = Common(records.identity, records.revision, after, pending)
    return Exchange(principals, common, tuple(changes))


def begun(found: Mapping[str, PrincipalRecord], identity: str) -> Common:
    """Return what a folder has in common with records that are to be made of it."""
    return Common(identity, 0, {name: Standing(record) for name, record in found.items()})


def decided(
    changes: Iterable[Change],
    standings: Standings,
    *,
    unclear: Collection[str] = (),
    keeps_admin: bool,
) -> Decision:
    """Return what the records, as they are now, make of the changes of a folder.

    If the folder `keeps_admin`, nobody meant to take the last one away: it comes of two changes at
    two nodes, and the second does not hold.
    """
    written: dict[str, Standing] = {}
    refused: dict[str, str] = {}
    count = sum(each.principal is not None for each in standings.values())
    for change in changes:
        name, mine = change.name, change.mine
        theirs = standings.get(name, UNKNOWN)
        if name in unclear and mine.principal is not None:
            refused[name] = "its record is not understood by the node that leads the records"
            continue
        wanted = mine if name in unclear else merged(change.base, mine, theirs)
        if name not in unclear and wanted == theirs:
            continue
        if wanted.principal is not None and theirs.principal is None:
            if count >= PRINCIPALS_MAX:
                refused[name] = f"there are {PRINCIPALS_MAX} principals, and no more can be"
                continue
            count += 1
        written[name] = wanted
    kept: tuple[str, ...] = ()
    if keeps_admin and _has_admin(standings) and not _has_admin({**standings, **written}):
        kept = tuple(name for name in written if standings.get(name, UNKNOWN).is_admin)
        for name in kept:
            del written[name]
    return Decision(written, kept, refused)


def _taken(found: Mapping[str, PrincipalRecord], records: Records) -> Exchange:
    """A folder that has nothing in common with the records takes them."""
    principals = {name: found[name] for name in records.unclear if name in found}
    for name, standing in records.standings.items():
        _put(principals, name, standing.principal)
    common = Common(records.identity, records.revision, dict(records.standings))
    return Exchange(principals, common, (), tuple(sorted(found.keys() - principals.keys())))


def _said(
    found: Mapping[str, PrincipalRecord], common: Common, changed_ms: int
) -> dict[str, Standing]:
    """Return what a folder says of everyone it knows, or did."""
    base, pending = common.principals, common.pending
    said = {name: Standing(record) for name, record in found.items()}
    for name in (base.keys() | pending.keys()) - said.keys():
        before = base.get(name, UNKNOWN)
        if before.principal is not None or pending.get(name, 0) > before.at_ms:
            ended_ms = max(before.at_ms, pending.get(name, 0), changed_ms)
            before = Standing(ended_ms=ended_ms)
        said[name] = before
    return said


def _renewed(
    base: PrincipalRecord | None, mine: PrincipalRecord, theirs: PrincipalRecord
) -> PrincipalRecord:
    """Return one incarnation with all that was changed in it on both sides."""
    if base is None or base.made_ms != mine.made_ms:
        base = None
    before = {} if base is None else base.tokens
    both = {**theirs.tokens, **mine.tokens}
    ended = before.keys() - (mine.tokens.keys() & theirs.tokens.keys())
    tokens = {each: token for each, token in both.items() if each not in ended}

    def is_changed(field: str) -> bool:
        return base is not None and getattr(mine, field) != getattr(base, field)

    fields = ("rights", "quotas", "is_outside")
    edited = {field: getattr(mine, field) for field in fields if is_changed(field)}
    return msgspec.structs.replace(theirs, tokens=_bounded(tokens), **edited)


def _bounded(tokens: dict[str, TokenRecord]) -> dict[str, TokenRecord]:
    if len(tokens) <= TOKENS_MAX:
        return tokens
    last = sorted(tokens, key=lambda each: (tokens[each].expires_ms, each))[-TOKENS_MAX:]
    return {each: tokens[each] for each in last}


def _has_admin(standings: Standings) -> bool:
    return any(each.is_admin for each in standings.values())


def _at_ms(standing: Standing) -> int:
    return standing.at_ms


def _put(into: dict[str, T], name: str, value: T | None) -> None:
    if value is None:
        into.pop(name, None)
    else:
        into[name] = value
