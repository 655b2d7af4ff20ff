"""The credential: one line of text with which a client reaches a node and is known there.

    wc1.<where the node is, and its CA>.<token>            docs/formats/credential.md

Everything that connects takes it: `connect`, the variable WATERCLOCK_CREDENTIAL, `--credential`, a
bearer header. It is a secret, so an object of it shows itself without its token, and no error
repeats what it could not read.
"""

import json
import re
from base64 import b64decode, b64encode, urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from waterclock.model.errors import BadInput, NotAuthenticated

CREDENTIAL_VARIABLE = "WATERCLOCK_CREDENTIAL"
"""What the environment calls it. A value that begins with `@` names a file that has it."""

PREFIX = "wc1"
CHARS_MAX = 16_384
TOKEN_PARTS = 3

_PART = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_HOST = r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])"
_ADDRESS = re.compile(rf"{_HOST}:[0-9]{{1,5}}", re.ASCII)
_URL = re.compile(rf"https://{_HOST}(?::[0-9]{{1,5}})?", re.ASCII)
_PEM_BEGIN = b"-----BEGIN CERTIFICATE-----\n"
_PEM_END = b"-----END CERTIFICATE-----\n"
_PEM_LINE = 64
_SEQUENCE = 0x30
"""How every certificate begins, in DER."""


class _Place(NamedTuple):
    """The second part: where the node is, and its CA."""

    grpc: str
    http: str
    ca: str


@dataclass(frozen=True, slots=True, repr=False)
class Credential:
    """Where a node is, the CA of its certificate, and the token that says who asks."""

    grpc_address: str
    http_address: str
    ca_pem: bytes
    token: str

    def __repr__(self) -> str:
        return f"<Credential for {self.grpc_address} and {self.http_address}, token hidden>"

    @classmethod
    def read(cls, value: str) -> "Credential":
        """Return the credential that a person gave, or, after an `@`, the file that has it.

        Raises BadInput.
        """
        if not value.startswith("@"):
            return cls.parse(value)
        path = value.removeprefix("@")
        try:
            text = Path(path).read_text(encoding="ascii")
        except UnicodeDecodeError:
            raise BadInput(f"credential file {path!r}: it is no text") from None
        except (OSError, ValueError) as error:  # the latter of what cannot be a path
            reason = getattr(error, "strerror", None) or "is no path"
            raise BadInput(f"credential file {path!r}: {reason}") from None
        return cls.parse(text)

    @classmethod
    def parse(cls, text: str) -> "Credential":
        """Return what the text says; raises BadInput, which does not repeat it."""
        text = text.strip()
        if len(text) > CHARS_MAX:
            raise BadInput(f"credential has {len(text)} characters; at most {CHARS_MAX}")
        prefix, *parts = text.split(".")
        if prefix != PREFIX:
            raise BadInput(
                f"credential does not begin with {PREFIX}. as those do that "
                "`waterclock secure add` prints (a file that has one is given as @FILE)"
            )
        if len(parts) != 1 + TOKEN_PARTS or not all(map(_PART.fullmatch, parts)):
            raise BadInput("credential is cut off or damaged: copy all of it")
        place, *token = parts
        return cls._of(_place_of(place), ".".join(token))

    @classmethod
    def _of(cls, place: _Place, token: str) -> "Credential":
        if not _ADDRESS.fullmatch(place.grpc):
            raise BadInput("credential: its gRPC address is not host:port")
        if not _URL.fullmatch(place.http):
            raise BadInput("credential: its HTTP address is not https://host:port")
        try:
            der = b64decode(place.ca, validate=True)
        except (NotBase64, ValueError):
            der = b""
        if not der or der[0] != _SEQUENCE or b64encode(der).decode() != place.ca:
            raise BadInput("credential: its CA is not a certificate")
        return cls(place.grpc, place.http, pem_of(der), token)

    def encode(self) -> str:
        """Return the one line of text: a secret."""
        ca = b64encode(der_of(self.ca_pem)).decode()
        place = {"grpc": self.grpc_address, "http": self.http_address, "ca": ca}
        text = json.dumps(place, separators=(",", ":"))
        return f"{PREFIX}.{base64url(text.encode())}.{self.token}"


def token_of(bearer: str) -> str:
    """Return the token of a bearer header: it may be a whole credential or the token alone.

    Raises NotAuthenticated, which does not repeat it.
    """
    parts = bearer.split(".") if len(bearer) <= CHARS_MAX else []
    if len(parts) == TOKEN_PARTS + 2 and parts[0] == PREFIX:
        parts = parts[2:]
    if len(parts) != TOKEN_PARTS or not all(map(_PART.fullmatch, parts)):
        raise NotAuthenticated("what was sent is no credential")
    return ".".join(parts)


def pem_of(der: bytes) -> bytes:
    """Return a certificate as text."""
    text = b64encode(der)
    lines = [text[at : at + _PEM_LINE] + b"\n" for at in range(0, len(text), _PEM_LINE)]
    return b"".join([_PEM_BEGIN, *lines, _PEM_END])


def der_of(pem: bytes) -> bytes:
    """Return the one certificate that a text holds, as bytes; raises BadInput."""
    if not (pem.startswith(_PEM_BEGIN) and pem.endswith(_PEM_END)):
        raise BadInput("not a certificate in PEM")
    try:
        return b64decode(pem[len(_PEM_BEGIN) : -len(_PEM_END)].replace(b"\n", b""), validate=True)
    except (NotBase64, ValueError):
        raise BadInput("not one certificate in PEM") from None


def base64url(data: bytes) -> str:
    """Return bytes in base64url, without padding."""
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def from_base64url(text: str) -> bytes:
    """Return the bytes; raises ValueError unless `base64url` would write them so."""
    data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if base64url(data) != text:
        raise ValueError("not written as base64url is")
    return data


def _place_of(part: str) -> _Place:
    try:
        found = json.loads(from_base64url(part))
    except (ValueError, RecursionError):
        found = None
    match found:
        case {"grpc": str(grpc), "http": str(http), "ca": str(ca)}:
            return _Place(grpc, http, ca)
    raise BadInput("credential is damaged: copy all of it")
