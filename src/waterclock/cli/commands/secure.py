"""`waterclock secure`: make a node ask who is there, and let people in.

The commands edit the secure folder; no node need run, and one that runs notices within a second.
What `add` prints on stdout is the credential and nothing else, so that it can be put into a file or
a variable; all that is for people goes to stderr.
"""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waterclock.cli.daemon import ConfigFile, file_text, flags_of
from waterclock.cli.options import AsJson
from waterclock.cli.output.terminal import (
    console,
    counted,
    next_lines,
    note,
    print_json,
    program,
    size_text,
    span_text,
    table,
)
from waterclock.model.errors import AlreadyExists, BadInput
from waterclock.model.units import COUNT, DAY_MS, DURATION, SIZE, Units

if TYPE_CHECKING:
    from waterclock.model.config import Config
    from waterclock.security.folder import Grant, SecureFolder
    from waterclock.security.principals import KnownPrincipal
    from waterclock.security.quotas import Quotas
    from waterclock.security.rights import Rights

app = typer.Typer(
    help="Let a node ask who is there: certificates, credentials, rights.", no_args_is_help=True
)

EXPIRES = "365d"
SOON_MS = 30 * DAY_MS
"""Before the end of a certificate or credential, `list` says so."""
_PER_SECOND = re.compile(r"\s*(?:/\s*s)?\s*$")

Data = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Where the node keeps its data.", show_default="waterclock-data"
    ),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of a principal.")]
Hosts = Annotated[
    list[str] | None,
    typer.Option(
        "--host", metavar="HOST", help="A name or address of this node; may be given again."
    ),
]


def _glob(name: str, meaning: str) -> object:
    return typer.Option(f"--{name}", metavar="GLOB", help=f"{meaning}; may be given again.")


def _most(what: str) -> object:
    return typer.Option(min=1, metavar="N", help=f"Most {what}.")


Port = Annotated[int | None, typer.Option(metavar="N", help="Where the node listens.")]
Publish = Annotated[list[str] | None, _glob("publish", "Publish to these")]
Consume = Annotated[list[str] | None, _glob("consume", "Consume these, as 'orders.*:billing'")]
Schedule = Annotated[list[str] | None, _glob("schedule", "Schedule and cancel messages of these")]
Read = Annotated[list[str] | None, _glob("read", "Read, replay and look at these")]
Tenant = Annotated[
    str | None, typer.Option(metavar="NAME", help="All of that to what begins with NAME and a dot.")
]
IsAdmin = Annotated[bool, typer.Option("--admin", help="Everything.")]
Rate = Annotated[
    str | None, typer.Option(metavar="SIZE/s", help="Bytes of messages, as in 10MiB/s.")
]
Requests = Annotated[str | None, typer.Option(metavar="N/s", help="Requests, as in 100/s.")]
Connections = Annotated[int | None, _most("connections at once")]
Topics = Annotated[int | None, _most("topics")]
Partitions = Annotated[int | None, _most("partitions, over all topics")]
Groups = Annotated[int | None, _most("groups")]
Streams = Annotated[int | None, _most("streams")]
Expires = Annotated[str, typer.Option(metavar="TIME", help="How long the credential is good.")]
IsOutside = Annotated[
    bool, typer.Option("--outside", help="Known by tokens of security.issuer; gets none here.")
]
IsReplacing = Annotated[
    bool, typer.Option("--replace", help="End the credentials of that name, and its rights.")
]
Certificate = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Put a TLS certificate there too: NAME.pem, NAME.key."),
]
IsRenewing = Annotated[
    bool, typer.Option("--renew", help="One more credential of that name; older ones stay good.")
]


@app.command("init")
def init(
    hosts: Hosts = None,
    data: Data = None,
    config_file: ConfigFile = None,
    grpc_port: Port = None,
    http_port: Port = None,
    as_json: AsJson = False,
) -> None:
    """Make the certificates, keys and the admin's credential of a node. Again, it changes nothing
    that is there.

    The first --host is where credentials lead; this machine's own names are always in the
    certificate.
    """
    config = _config(config_file, data, grpc_port=grpc_port, http_port=http_port)
    folder = _folder(config)
    try:
        folder.make(
            hosts=hosts or [],
            grpc_port=config.cluster.grpc_port,
            http_port=config.cluster.http_port,
            now_ms=_now_ms(),
        )
        is_new = True
    except AlreadyExists:
        folder.load()  # what cannot be read is no reason to be at ease
        _complete(folder)
        is_new = False
    if as_json:
        print_json(
            {
                "folder": str(folder.path),
                "is_new": is_new,
                "admin_credential": str(folder.admin_credential),
            }
        )
    else:
        _tell_made(folder, is_new=is_new)


@app.command("add")
def add(
    name: Name,
    publish: Publish = None,
    consume: Consume = None,
    schedule: Schedule = None,
    read: Read = None,
    tenant: Tenant = None,
    is_admin: IsAdmin = False,
    rate: Rate = None,
    requests: Requests = None,
    connections: Connections = None,
    topics: Topics = None,
    partitions: Partitions = None,
    groups: Groups = None,
    streams: Streams = None,
    expires: Expires = EXPIRES,
    is_outside: IsOutside = False,
    is_replacing: IsReplacing = False,
    is_renewing: IsRenewing = False,
    certificate: Certificate = None,
    data: Data = None,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Let somebody in: prints the credential, which is shown only now.

    GLOB is a name of topics and streams, with * for anything; topic:GLOB or stream:GLOB means only
    those. With --consume, GLOB:GROUP means members of that group only.
    """
    folder = _folder(_config(config_file, data))
    given = {"publish": publish, "consume": consume, "schedule": schedule, "read": read}
    rights = _rights_of(given, tenant=tenant, is_admin=is_admin)
    quotas = _quotas_of(
        rate, requests, connections=connections, topics=topics, partitions=partitions,
        groups=groups, streams=streams,
    )  # fmt: skip
    now_ms = _now_ms()
    grant = _grant(rights, quotas, now_ms + _amount("--expires", expires, DURATION), is_outside)
    text = _given(folder, name, grant, now_ms, is_replacing=is_replacing, is_renewing=is_renewing)
    if certificate is not None:
        folder.certify(name, certificate, now_ms=now_ms)
    if as_json:
        print_json({"name": name, "credential": text, "expires_ms": grant.expires_ms})
    elif text is None:
        typer.echo(f"{name} is known by tokens of another issuer", err=True)
    else:
        print(text)
        note("This is a secret, and is not shown again. It is taken by --credential, by the")
        note("variable WATERCLOCK_CREDENTIAL and as a bearer token.")


@app.command("list")
def list_principals(
    data: Data = None, config_file: ConfigFile = None, as_json: AsJson = False
) -> None:
    """Show who may do what, and until when."""
    from waterclock.security.certificates import expires_ms_of

    folder = _folder(_config(config_file, data))
    known = _principals(folder)
    certificate_ms = expires_ms_of(folder.node_certificate.read_bytes())
    if as_json:
        print_json(
            {
                "folder": str(folder.path),
                "certificate_expires_ms": certificate_ms,
                "principals": [plain(each) for each in known],
            }
        )
        return
    now_ms = _now_ms()
    out = console()
    rows = table(out, "name", "~may", "~at most", "until")
    for each in known:
        rows.add_row(each.name, _rights_text(each), _quotas_text(each), _until_text(each, now_ms))
    out.print(rows)
    left_ms = certificate_ms - now_ms
    if left_ms < SOON_MS:
        state = f"ends in {span_text(left_ms)}" if left_ms > 0 else "has ended"
        typer.echo(f"The node's certificate {state}: run `waterclock secure rotate`", err=True)


@app.command("revoke")
def revoke(
    name: Name, data: Data = None, config_file: ConfigFile = None, as_json: AsJson = False
) -> None:
    """Let somebody in no more: all credentials of that name end, within a second."""
    folder = _folder(_config(config_file, data))
    _principals(folder)
    _complete(folder)
    folder.revoke(name)
    if as_json:
        print_json({"name": name, "is_revoked": True})
    else:
        typer.echo(f"{name} is revoked", err=True)


@app.command("rotate")
def rotate(
    hosts: Hosts = None, data: Data = None, config_file: ConfigFile = None, as_json: AsJson = False
) -> None:
    """Make a new node certificate, signing key and cluster key; the CA and all credentials stay
    good. Copy the folder to the other nodes of the cluster before it is rotated again."""
    from waterclock.security.certificates import expires_ms_of, hosts_of

    folder = _folder(_config(config_file, data))
    _principals(folder)
    folder.rotate(hosts=hosts or [], now_ms=_now_ms())
    certificate = folder.node_certificate.read_bytes()
    names = hosts_of(certificate)
    if as_json:
        expires_ms = expires_ms_of(certificate)
        print_json({"hosts": names, "certificate_expires_ms": expires_ms})
    else:
        typer.echo(f"New certificate for {', '.join(names)}, and new keys", err=True)
        typer.echo(
            "If the node is one of a cluster, copy the folder to the others, too, before it is "
            "rotated again",
            err=True,
        )


def plain(known: "KnownPrincipal") -> dict[str, object]:
    """Return a principal for machines; ids of tokens are no secrets, and tokens are not kept."""
    from waterclock.security.principals import rights_texts

    return {
        "name": known.name,
        "rights": rights_texts(known.rights),
        "quotas": known.quotas.as_dict(),
        "credentials": [
            {"token_id": token_id, "expires_ms": token.expires_ms}
            for token_id, token in known.tokens.items()
        ],
        "is_outside": known.is_outside,
        "made_ms": known.made_ms,
    }


# What was typed


def _config(config_file: Path | None, data: Path | None, **ports: int | None) -> "Config":
    from waterclock.model.config import load_config

    named: dict[str, object] = {f"cluster.{name}": port for name, port in ports.items()}
    named["node.data_folder"] = None if data is None else str(data)
    flags = flags_of(None, named, example="")
    return load_config(yaml_text=file_text(config_file), environ=os.environ, flags=flags)


def _folder(config: "Config") -> "SecureFolder":
    from waterclock.security.folder import folder_of

    return folder_of(config)


def _complete(folder: "SecureFolder") -> None:
    """Make what a folder of an earlier release lacks, and say so."""
    if folder.complete():
        typer.echo(
            f"{folder.path} has new keys for a cluster: nodes of one cluster need copies of the "
            "same folder",
            err=True,
        )


def _principals(folder: "SecureFolder") -> "list[KnownPrincipal]":
    """Return who there is, or say how to begin."""
    if not folder.exists():
        raise BadInput(
            f"there is no {folder.path}: make it with `waterclock secure init`, or name the node's "
            "data with --data FOLDER"
        )
    return list(folder.principals().known.values())


def _rights_of(
    given: dict[str, list[str] | None], *, tenant: str | None, is_admin: bool
) -> "Rights":
    from waterclock.security.rights import KINDS, Right, Rights, parse_rights, tenant_rights

    typed = parse_rights({kind: given.get(kind) or [] for kind in KINDS})
    rights = set(typed.rights)
    if tenant is not None:
        rights |= tenant_rights(tenant).rights
    if is_admin:
        rights.add(Right("admin", "any", "*"))
    return Rights(rights)


def _quotas_of(rate: str | None, requests: str | None, **counts: int | None) -> "Quotas":
    from waterclock.security.quotas import Quotas

    return Quotas(
        bytes_per_s=None if rate is None else _amount("--rate", rate, SIZE),
        requests_per_s=None if requests is None else _amount("--requests", requests, COUNT),
        **counts,
    )


def _amount(option: str, text: str, units: Units) -> int:
    """Return an amount that was typed; of a rate, with or without `/s`."""
    example = {SIZE.noun: "10MiB/s", COUNT.noun: "100/s", DURATION.noun: EXPIRES}[units.noun]
    typed = text if units is DURATION else _PER_SECOND.sub("", text)
    try:
        amount = units.parse(typed)
    except ValueError:
        amount = 0
    if amount <= 0:
        raise BadInput(f"{option} {text[:40]!a}: write {units.noun}, as in {example}")
    return amount


def _grant(rights: "Rights", quotas: "Quotas", expires_ms: int, is_outside: bool) -> "Grant":
    from waterclock.security.folder import Grant

    return Grant(rights=rights, quotas=quotas, expires_ms=expires_ms, is_outside=is_outside)


def _given(
    folder: "SecureFolder",
    name: str,
    grant: "Grant",
    now_ms: int,
    *,
    is_replacing: bool,
    is_renewing: bool,
) -> str | None:
    """Let somebody in, as the flags say; return the text of the credential."""
    _principals(folder)
    _complete(folder)
    has_said = bool(grant.rights.rights or grant.quotas.as_dict() or grant.is_outside)
    if is_renewing:
        if has_said or is_replacing:
            raise BadInput(f"--renew leaves {name} as it is: rights and quotas need --replace")
        return folder.renew(name, expires_ms=grant.expires_ms, now_ms=now_ms).encode()
    if not grant.rights.rights:
        raise BadInput(
            f"{name} could do nothing: add --publish, --consume, --schedule, --read, --tenant "
            "or --admin"
        )
    try:
        credential = folder.add(name, grant, now_ms=now_ms, is_replacing=is_replacing)
    except AlreadyExists as error:
        raise BadInput(
            f"{error}: --renew gives it one more credential, --replace ends those it has"
        ) from None
    return None if credential is None else credential.encode()


def _now_ms() -> int:
    from waterclock.runtime.clock import SystemClock

    return SystemClock().now_ms()


# What is shown


def _tell_made(folder: "SecureFolder", *, is_new: bool) -> None:
    out = console()
    said = (
        "is made: the node asks for credentials" if is_new else "is there already: nothing changed"
    )
    out.print(f"{folder.path} {said}")
    called = program()
    admin = f"WATERCLOCK_CREDENTIAL=@{folder.admin_credential}"
    next_lines(
        out,
        [
            (f"{called} secure add billing --publish 'orders.*'", "let somebody in"),
            (f"{called} up", "run the node"),
            (f"{admin} {called} topics", "as the admin"),
        ],
    )


def _rights_text(known: "KnownPrincipal") -> str:
    from waterclock.security.principals import rights_texts

    if known.rights.is_admin:
        return "admin"
    texts = rights_texts(known.rights).items()
    return "; ".join(f"{kind} {' '.join(globs)}" for kind, globs in texts)


def _quotas_text(known: "KnownPrincipal") -> str:
    shown = []
    for name, value in known.quotas.as_dict().items():
        if name == "bytes_per_s":
            shown.append(f"{size_text(value)}/s")
        elif name == "requests_per_s":
            shown.append(f"{value:,} requests/s")
        else:
            shown.append(counted(value, name.removesuffix("s")))
    return ", ".join(shown)


def _until_text(known: "KnownPrincipal", now_ms: int) -> str:
    if known.is_outside:
        return "its issuer says"
    ends_ms = max((token.expires_ms for token in known.tokens.values()), default=0)
    if ends_ms <= now_ms:
        return "has ended"
    return f"for {span_text(ends_ms - now_ms)}"
