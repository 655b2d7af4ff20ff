"""Principals: who there is, what each may do and use, and which of its tokens are good.

They are kept in one file, `principals.json` (docs/formats/credential.md). Its bytes are read here
and written here; where it lies is the secure folder's business. A file that is wrong anywhere is
refused as a whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec

from waterclock.model.errors import BadInput, Forbidden
from waterclock.model.names import check_name
from waterclock.security.quotas import UNBOUNDED, Quotas
from waterclock.security.rights import KINDS, Right, RightKind, Rights, parse_rights

VERSION = 1
FILE = "principals.json"
PRINCIPALS_MAX = 100_000
TOKENS_MAX = 1_000
"""Most tokens of one principal."""
NAME_CHARS_MAX = 64
"""As many as the common name of a certificate has room for."""
ADMIN = "admin"


class TokenRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token that is good: which key has signed it, and when it ends."""

    kid: str
    expires_ms: int


class PrincipalRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A principal as the file has it."""

    made_ms: int
    rights: dict[RightKind, list[str]] = {}
    quotas: dict[str, int] = {}
    tokens: dict[str, TokenRecord] = {}
    is_outside: bool = False


class PrincipalsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of the file. Where the node is goes into the credentials that are made."""

    version: int
    grpc: str
    http: str
    principals: dict[str, PrincipalRecord]


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks: what they may do and use, and the token that says so."""

    name: str
    rights: Rights
    quotas: Quotas = UNBOUNDED
    token_id: str = ""
    """Empty if it is known by a certificate, by another issuer, or not at all."""
    expires_ms: int | None = None

    def demand(
        self,
        kind: RightKind,
        *,
        topic: str | None = None,
        stream: str | None = None,
        group: str | None = None,
    ) -> None:
        """Raise Forbidden unless `Rights.allows` it."""
        if not self.rights.allows(kind, topic=topic, stream=stream, group=group):
            raise Forbidden(
                kind, resource_text(topic=topic, stream=stream, group=group), principal=self.name
            )


ANYONE = Principal("anyone", Rights([Right("admin", "any", "*")]))
"""Who asks a node that is not secured."""


@dataclass(frozen=True, slots=True)
class KnownPrincipal:
    """A principal of the file, made ready."""

    name: str
    rights: Rights
    quotas: Quotas
    tokens: Mapping[str, TokenRecord]
    is_outside: bool
    made_ms: int


@dataclass(frozen=True, slots=True)
class Principals:
    """Everyone the file knows, by name."""

    grpc_address: str
    http_address: str
    known: Mapping[str, KnownPrincipal]

    def __repr__(self) -> str:
        return f"<Principals: {len(self.known)}>"


def decode_principals(data: bytes) -> Principals:
    """Return what the file says, all of it; raises BadInput, naming what is wrong."""
    try:
        version = msgspec.json.decode(data, type=dict[str, Any]).get("version")
        if version != VERSION:
            raise BadInput(f"principals.json: version {version!r:.20} is not {VERSION}")
        file = msgspec.json.decode(data, type=PrincipalsFile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"principals.json: {error}") from None
    if len(file.principals) > PRINCIPALS_MAX:
        raise BadInput(f"principals.json: more than {PRINCIPALS_MAX} principals")
    known = {name: known_of(name, record) for name, record in file.principals.items()}
    return Principals(file.grpc, file.http, MappingProxyType(known))


def encode_principals(principals: Principals) -> bytes:
    """Return the file, indented: people read it."""
    records = {name: record_of(known) for name, known in sorted(principals.known.items())}
    file = PrincipalsFile(VERSION, principals.grpc_address, principals.http_address, records)
    return msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n"


def record_of(known: KnownPrincipal) -> PrincipalRecord:
    """Return a principal as the file has it: of equal ones, equal records."""
    return PrincipalRecord(
        made_ms=known.made_ms,
        rights=rights_texts(known.rights),
        quotas=known.quotas.as_dict(),
        tokens=dict(known.tokens),
        is_outside=known.is_outside,
    )


def known_of(name: str, record: PrincipalRecord) -> KnownPrincipal:
    """Return a principal of the file, made ready; raises BadInput if something in it is wrong."""
    try:
        check_principal_name(name)
        if len(record.tokens) > TOKENS_MAX:
            raise BadInput(f"more than {TOKENS_MAX} tokens")
        quotas = Quotas(**record.quotas)
        rights = parse_rights(record.rights)
    except TypeError:
        raise BadInput(f"principals.json: {name}: a quota that is none") from None
    except BadInput as error:
        raise BadInput(f"principals.json: {name[:NAME_CHARS_MAX]!a}: {error}") from None
    return KnownPrincipal(
        name, rights, quotas, MappingProxyType(record.tokens), record.is_outside, record.made_ms
    )


def rights_texts(rights: Rights) -> dict[RightKind, list[str]]:
    """Return rights as people write them, by kind."""
    return {
        kind: texts
        for kind in KINDS
        if (texts := sorted(right.text for right in rights.rights if right.kind == kind))
    }


def check_principal_name(name: str) -> None:
    """Raise BadInput unless somebody can be called so."""
    check_name("principal", name, chars_max=NAME_CHARS_MAX)


def resource_text(*, topic: str | None, stream: str | None, group: str | None) -> str:
    """Return what a request is about, as errors name it."""
    named = [
        f"{what} {name!r}"
        for what, name in (("topic", topic), ("stream", stream), ("group", group))
        if name is not None
    ]
    return " as ".join(named) or "everything"
