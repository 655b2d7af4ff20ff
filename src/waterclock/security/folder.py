"""The secure folder: everything a node needs to be reached by TLS and to know who asks.

    ca.pem  ca.key  node.pem  node.key  signing/<kid>.key  principals.json  admin.credential
    cluster.json  shared.json

What each holds, and its mode, is in docs/formats/credential.md. The folder appears whole; a file is
replaced whole, and the node's certificate together with its key: both are links into the folder
`pair`, itself a link, which one rename points elsewhere (as Kubernetes does with mounted secrets).
`load` reads all of it or raises, so who loads keeps what it had. `changed` is cheap
enough to be asked several times a second: it looks at names, times and sizes.
"""

import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType
from typing import TYPE_CHECKING

from waterclock.model.errors import (
    AlreadyExists,
    BadConfig,
    BadInput,
    CapacityReached,
    NotFound,
    StorageFailed,
    translate,
)
from waterclock.model.units import DAY_MS
from waterclock.security.certificates import (
    KeyPair,
    check_pair,
    hosts_of,
    is_host,
    make_ca,
    make_client_certificate,
    make_node_certificate,
)
from waterclock.security.cluster_keys import FILE as _CLUSTER
from waterclock.security.cluster_keys import ClusterKeys, decode_cluster_keys
from waterclock.security.credential import Credential
from waterclock.security.principals import (
    ADMIN,
    TOKENS_MAX,
    KnownPrincipal,
    Principals,
    TokenRecord,
    check_principal_name,
    decode_principals,
    encode_principals,
)
from waterclock.security.principals import FILE as _PRINCIPALS
from waterclock.security.private_files import (
    PUBLIC_MODE,
    SECRET_MODE,
    locked,
    make_folder,
    read_secret,
    sync_folder,
    write_file,
    write_link,
)
from waterclock.security.quotas import UNBOUNDED, Quotas
from waterclock.security.rights import Right, Rights
from waterclock.security.shared_folder import known_until_ms
from waterclock.security.tokens import SigningKey, new_token_id

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from waterclock.model.config import Config

FOLDER_NAME = "secure"
EXPIRES_MS = 365 * DAY_MS
"""How long a credential is good if nobody says otherwise."""
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")

_CA, _CA_KEY = "ca.pem", "ca.key"
_NODE, _NODE_KEY = "node.pem", "node.key"
_PAIR = "pair"
_SIGNING = "signing"
_KEY_SUFFIX = ".key"
_ADMIN_CREDENTIAL = "admin.credential"
_ALL_RIGHTS = Rights([Right("admin", "any", "*")])

Fingerprint = frozenset[tuple[str, int, int, int]]
"""Name, inode, time and size of every file."""


@dataclass(frozen=True, slots=True)
class SecureState:
    """All a node needs of the folder, as it was at one moment."""

    ca_pem: bytes
    node: KeyPair
    verifying_keys: Mapping[str, "Ed25519PublicKey"]
    principals: Principals
    cluster_keys: ClusterKeys | None
    """What nodes of one cluster share; None in a folder that was made before there were such."""

    def __repr__(self) -> str:
        return f"<SecureState {self.principals!r}, {len(self.verifying_keys)} signing keys>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What somebody is given."""

    rights: Rights
    quotas: Quotas = UNBOUNDED
    expires_ms: int
    is_outside: bool = False
    """Another issuer vouches for it: it gets no token of ours."""


class SecureFolder:
    """A secure folder on disk. Writers take turns; readers need no lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: Fingerprint | None = None

    def __repr__(self) -> str:
        return f"<SecureFolder {self.path}>"

    @property
    def node_certificate(self) -> Path:
        return self.path / _NODE

    @property
    def node_key(self) -> Path:
        return self.path / _NODE_KEY

    @property
    def ca(self) -> Path:
        return self.path / _CA

    @property
    def admin_credential(self) -> Path:
        return self.path / _ADMIN_CREDENTIAL

    def exists(self) -> bool:
        """Say if there is one: then the node is to be secure, whatever state it is in."""
        return self.path.exists()

    # Reading

    def load(self) -> SecureState:
        """Return all of it; raises BadInput or StorageFailed, and then nothing of it counts."""
        while True:
            self._seen = self._fingerprint()
            try:
                return self._load()
            except (BadInput, StorageFailed):
                # Of a certificate before a rotation and a key after it, no fault is found.
                if not self.changed():
                    raise

    def _load(self) -> SecureState:
        with translate({OSError: StorageFailed}):
            node = KeyPair(self.node_certificate.read_bytes(), read_secret(self.node_key))
            ca_pem = self.ca.read_bytes()
            keys = {key.kid: key.public for key in self._signing_keys()}
            principals = self._principals()
            cluster_keys = self._cluster_keys()
        try:
            check_pair(node, ca_pem)
        except BadInput as error:
            raise BadInput(
                f"{self.node_certificate}: {error}; `waterclock secure rotate` makes another"
            ) from None
        return SecureState(ca_pem, node, MappingProxyType(keys), principals, cluster_keys)

    def changed(self) -> bool:
        """Say if anything is different from when `load` was called last, well or not."""
        return self._fingerprint() != self._seen

    def principals(self) -> Principals:
        """Return who there is; raises NotFound if there is no secure folder."""
        self._must_exist()
        with translate({OSError: StorageFailed}):
            return self._principals()

    # Writing

    def make(
        self, *, hosts: Sequence[str] = (), grpc_port: int, http_port: int, now_ms: int
    ) -> None:
        """Make the folder: a CA, a node certificate, a signing key and the principal `admin`.

        The first host is where credentials lead; without any, localhost. Raises AlreadyExists.
        """
        if self.exists():
            raise AlreadyExists("secure folder", str(self.path))
        host = hosts[0] if hosts else LOCAL_HOSTS[0]
        place = f"[{host.strip('[]')}]" if ":" in host else host
        empty = Principals(f"{place}:{grpc_port}", f"https://{place}:{http_port}", {})
        with translate({OSError: StorageFailed}):
            building = SecureFolder(self.path.with_name(f"{self.path.name}.{os.getpid()}.new"))
            try:
                building._fill(empty, every_host(hosts), now_ms)
                building.path.rename(self.path)
            finally:
                shutil.rmtree(building.path, ignore_errors=True)
            sync_folder(self.path.parent)

    def complete(self) -> bool:
        """Make what a folder of an earlier release lacks; say if there was anything."""
        self._must_exist()
        with translate({OSError: StorageFailed}), locked(self.path):
            return self._add_cluster_keys()

    def add(
        self, name: str, grant: Grant, *, now_ms: int, is_replacing: bool = False
    ) -> Credential | None:
        """Let somebody in; return the credential, None if another issuer vouches for them.

        Raises AlreadyExists; `is_replacing` ends the older credentials of that name instead.
        """
        check_principal_name(name)
        self._must_exist()
        with translate({OSError: StorageFailed}), locked(self.path):
            principals = self._principals()
            if name in principals.known and not is_replacing:
                raise AlreadyExists("principal", name)
            made_ms = self._made_ms(principals, name, now_ms)
            known = KnownPrincipal(name, grant.rights, grant.quotas, {}, grant.is_outside, made_ms)
            if not grant.is_outside:
                return self._give_token(principals, known, grant.expires_ms, now_ms)
            self._write_principals(_with(principals, name, known))
            return None

    def renew(self, name: str, *, expires_ms: int, now_ms: int) -> Credential:
        """Return another credential of a principal; its older ones stay good until they end.

        Raises NotFound.
        """
        self._must_exist()
        with translate({OSError: StorageFailed}), locked(self.path):
            principals = self._principals()
            known = principals.known.get(name)
            if known is None:
                raise NotFound("principal", name)
            if known.is_outside:
                raise BadInput(f"{name} has no credentials: another issuer vouches for it")
            return self._give_token(principals, known, expires_ms, now_ms)

    def revoke(self, name: str) -> None:
        """Let somebody in no more: all their credentials end. Raises NotFound."""
        self._must_exist()
        with translate({OSError: StorageFailed}), locked(self.path):
            principals = self._principals()
            if name not in principals.known:
                raise NotFound("principal", name)
            self._write_principals(_with(principals, name, None))
            if name == ADMIN:
                self.admin_credential.unlink(missing_ok=True)

    def certify(self, name: str, into: Path, *, now_ms: int) -> None:
        """Put a certificate of a principal and its key into a folder, as `NAME.pem` and `NAME.key`.

        Raises NotFound, also if the CA's key is kept elsewhere.
        """
        if name not in self.principals().known:
            raise NotFound("principal", name)
        with translate({OSError: StorageFailed}):
            pair = make_client_certificate(self._ca_pair(), name, now_ms=now_ms)
            if not into.exists():
                make_folder(into)
            write_file(into / f"{name}.key", pair.key_pem, mode=SECRET_MODE)
            write_file(into / f"{name}.pem", pair.certificate_pem, mode=PUBLIC_MODE)

    def rotate(self, *, hosts: Sequence[str] = (), now_ms: int) -> None:
        """Make a new node certificate, a new signing key and a new key of the cluster; the CA and
        all credentials stay good.

        The certificate is for the hosts of the old one and these. Signing keys that have signed
        nothing that is still good go.
        """
        self._must_exist()
        with translate({OSError: StorageFailed}), locked(self.path):
            names = _once([*hosts_of(self.node_certificate.read_bytes()), *hosts])
            self._write_node(make_node_certificate(self._ca_pair(), names, now_ms=now_ms))
            self._write_signing_key(now_ms)
            self._drop_signing_keys(now_ms)
            if not self._add_cluster_keys():
                keys = self._cluster_keys()
                assert keys is not None
                self._write_cluster_keys(keys.rotated())

    # The parts

    def _fill(self, principals: Principals, hosts: Sequence[str], now_ms: int) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        make_folder(self.path)
        make_folder(self.path / _SIGNING)
        ca = make_ca("Waterclock", now_ms=now_ms)
        write_file(self.ca, ca.certificate_pem, mode=PUBLIC_MODE)
        write_file(self.path / _CA_KEY, ca.key_pem, mode=SECRET_MODE)
        self._write_node(make_node_certificate(ca, hosts, now_ms=now_ms))
        self._write_signing_key(now_ms)
        self._write_cluster_keys(ClusterKeys.make())
        self._write_principals(principals)
        grant = Grant(rights=_ALL_RIGHTS, expires_ms=now_ms + EXPIRES_MS)
        self.add(ADMIN, grant, now_ms=now_ms)

    def _ca_pair(self) -> KeyPair:
        key = self.path / _CA_KEY
        if not key.exists():
            raise NotFound("file", str(key))
        return KeyPair(self.ca.read_bytes(), read_secret(key))

    def _write_node(self, node: KeyPair) -> None:
        made = self.path / f"{_PAIR}.{token_hex(8)}"
        make_folder(made)
        write_file(made / _NODE_KEY, node.key_pem, mode=SECRET_MODE)
        write_file(made / _NODE, node.certificate_pem, mode=PUBLIC_MODE)
        pair = self.path / _PAIR
        if pair.is_dir() and not pair.is_symlink():  # a copy, made by who follows links
            pair.rename(pair.with_name(f"{_PAIR}.{token_hex(8)}"))
        # From here on both are the new ones; a crash before leaves both old.
        write_link(pair, made.name)
        for name in (_NODE_KEY, _NODE):
            if not (self.path / name).is_symlink():
                write_link(self.path / name, f"{_PAIR}/{name}")
        for older in self.path.glob(f"{_PAIR}.*"):
            if older != made:
                shutil.rmtree(older)

    def _write_signing_key(self, now_ms: int) -> None:
        kids = self._kids()
        newest_ms = int(kids[-1].partition("-")[0]) if kids else 0
        # The greatest signs, also after the clock went back.
        key = SigningKey.make(now_ms=max(now_ms, newest_ms + 1))
        write_file(self._signing_file(key.kid), key.pem(), mode=SECRET_MODE)

    def _drop_signing_keys(self, now_ms: int) -> None:
        in_use = {
            token.kid
            for known in self._principals().known.values()
            for token in known.tokens.values()
            if token.expires_ms > now_ms
        }
        for kid in self._kids()[:-1]:
            if kid not in in_use:
                self._signing_file(kid).unlink()

    def _cluster_keys(self) -> ClusterKeys | None:
        file = self.path / _CLUSTER
        return decode_cluster_keys(read_secret(file)) if file.exists() else None

    def _write_cluster_keys(self, keys: ClusterKeys) -> None:
        write_file(self.path / _CLUSTER, keys.encode(), mode=SECRET_MODE)

    def _add_cluster_keys(self) -> bool:
        is_missing = self._cluster_keys() is None
        if is_missing:
            self._write_cluster_keys(ClusterKeys.make())
        return is_missing

    def _write_principals(self, principals: Principals) -> None:
        write_file(self.path / _PRINCIPALS, encode_principals(principals), mode=PUBLIC_MODE)

    def _give_token(
        self, principals: Principals, known: KnownPrincipal, expires_ms: int, now_ms: int
    ) -> Credential:
        """Write down a principal with one more token; return the credential with it."""
        if expires_ms <= now_ms:
            raise BadInput("a credential must end later than now")
        tokens = {i: token for i, token in known.tokens.items() if token.expires_ms > now_ms}
        if len(tokens) >= TOKENS_MAX:
            raise CapacityReached(f"tokens of {known.name}", TOKENS_MAX)
        key, token_id = self._signing_keys()[-1], new_token_id()
        tokens[token_id] = TokenRecord(key.kid, expires_ms)
        token = key.sign(
            principal=known.name, token_id=token_id, now_ms=now_ms, expires_ms=expires_ms
        )
        place = principals.grpc_address, principals.http_address
        credential = Credential(*place, self.ca.read_bytes(), token)
        self._write_principals(_with(principals, known.name, replace(known, tokens=tokens)))
        if known.name == ADMIN:
            data = f"{credential.encode()}\n".encode()
            write_file(self.admin_credential, data, mode=SECRET_MODE)
        return credential

    def _made_ms(self, principals: Principals, name: str, now_ms: int) -> int:
        """Return when somebody is added: later than all that is known of that name here, whatever
        the clock says, for nodes of a cluster go by the later."""
        before = principals.known.get(name)
        known_ms = 0 if before is None else before.made_ms
        return max(now_ms, known_ms + 1, known_until_ms(self.path, name) + 1)

    def _principals(self) -> Principals:
        return decode_principals((self.path / _PRINCIPALS).read_bytes())

    def _signing_keys(self) -> list[SigningKey]:
        """Return all, the one that signs last."""
        keys = [SigningKey.load(kid, read_secret(self._signing_file(kid))) for kid in self._kids()]
        if not keys:
            raise BadInput(
                f"{self.path / _SIGNING} has no key: `waterclock secure rotate` makes one"
            )
        return keys

    def _kids(self) -> list[str]:
        names = (self.path / _SIGNING).glob(f"[0-9]*-*{_KEY_SUFFIX}")
        return sorted(path.name.removesuffix(_KEY_SUFFIX) for path in names)

    def _signing_file(self, kid: str) -> Path:
        return self.path / _SIGNING / f"{kid}{_KEY_SUFFIX}"

    def _fingerprint(self) -> Fingerprint:
        files = [self.path / name for name in (_CA, _NODE, _NODE_KEY, _PRINCIPALS, _CLUSTER)]
        found = set()
        for file in [*files, *(self._signing_file(kid) for kid in self._kids())]:
            try:
                seen = file.stat()
            except OSError:  # `load` says what is wrong
                continue
            found.add((str(file), seen.st_ino, seen.st_mtime_ns, seen.st_size))
        return frozenset(found)

    def _must_exist(self) -> None:
        if not self.exists():
            raise NotFound("secure folder", str(self.path))


def folder_of(config: "Config") -> SecureFolder:
    """Return the secure folder of a node; it may not be there."""
    named = config.security.folder
    return SecureFolder(
        Path(config.node.data_folder) / FOLDER_NAME if named is None else Path(named)
    )


def folder_in_use(config: "Config") -> SecureFolder | None:
    """Return the secure folder that a node must go by, None if the node is not secured.

    Raises BadConfig if one is named and is not there: such a node must not start without it.
    """
    folder = folder_of(config)
    if folder.exists():
        return folder
    if config.security.folder is not None:
        raise BadConfig(
            "security.folder", f"there is no {folder.path}; `waterclock secure init` makes it"
        )
    return None


def every_host(hosts: Sequence[str]) -> list[str]:
    """Return what a node's certificate is for: those named, this machine and its own addresses."""
    own = socket.gethostname()
    return _once([*hosts, *LOCAL_HOSTS, *([own] if is_host(own) else [])])


def _once(hosts: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(host.strip("[]") for host in hosts))


def _with(principals: Principals, name: str, known: KnownPrincipal | None) -> Principals:
    others = {other: record for other, record in principals.known.items() if other != name}
    return replace(principals, known=others if known is None else others | {name: known})
