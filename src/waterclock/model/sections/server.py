"""What a node's server lets in, asks for and tells."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from waterclock.model.errors import (
    BadConfig,
)
from waterclock.model.settings import (
    HostNames,
    Maybe,
    Origins,
    Section,
    Text,
    Toggle,
    count,
    duration,
    size,
)
from waterclock.model.units import (
    DAY_MS,
    GIB,
    KIB,
    MIB,
    MINUTE_MS,
    SECOND_MS,
    TIB,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig(Section):
    """Who may use a node that `waterclock secure` has secured."""

    section: ClassVar[str] = "security"

    folder: Annotated[str | None, Maybe(Text(4_096))] = None
    """Certificates, keys and principals, made by `waterclock secure init`. None is `secure` in the
    data folder. If it is there, the node speaks TLS and asks for credentials."""

    issuer: Annotated[str | None, Maybe(Text(4_096))] = None
    """Another issuer whose tokens are taken: what their `iss` says. It can name principals that
    were added with `--outside`, and no other. Needs `security.jwks` and `security.audience`."""

    jwks: Annotated[str | None, Maybe(Text(4_096))] = None
    """Where its public keys are (JWKS): an `https://` URL, or a file."""

    audience: Annotated[str | None, Maybe(Text(4_096))] = None
    """What `aud` of its tokens must name, so that those made for other services are refused."""

    claim: Annotated[str, Text(255)] = "sub"
    """The claim of its tokens that names the principal."""

    grpc_certificates: Annotated[bool, Toggle()] = False
    """Whether gRPC clients must show a certificate of the node's CA; who sends no token is who it
    names. gRPC asks for one always or never. HTTP takes one in any case."""

    audit: Annotated[bool | None, Maybe(Toggle())] = None
    """Whether denials and admin calls are written to the topic `__audit`. None: if the node is
    secured. On, an admin call is answered once its entry is on disk."""

    audit_age_ms: Annotated[int | None, Maybe(duration(1 * SECOND_MS, 36_500 * DAY_MS))] = (
        365 * DAY_MS
    )
    """Entries of the audit that are older may go. None keeps them until there are too many."""

    audit_bytes: Annotated[int | None, Maybe(size(4 * KIB, 1_024 * TIB))] = 1 * GIB
    """The oldest go once a partition of the audit is larger: denials have one, and calls another,
    which no flood of denials reaches. None sets no bound; the disk does."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        together = {"issuer": self.issuer, "jwks": self.jwks, "audience": self.audience}
        missing = [name for name, value in together.items() if value is None]
        if 0 < len(missing) < len(together):
            raise BadConfig(f"security.{missing[0]}", "is needed to take tokens of another issuer")


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingConfig(Section):
    """Which spans a node makes, by OpenTelemetry."""

    section: ClassVar[str] = "tracing"

    enabled: Annotated[bool, Toggle()] = False
    """Whether the node makes spans of calls, batches and timers that carry a context, and exports
    them as the variables `OTEL_*` say: by OTLP to localhost:4317 if they say nothing. Needs
    `pip install 'waterclock[otel]'`. On, each such call costs a span."""

    sample_percent: Annotated[int, count(0, 100)] = 0
    """Of 100 calls that carry no context, how many begin a trace. More shows more of clients that
    are not traced themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig(Section):
    """What clients may ask of a node at once."""

    section: ClassVar[str] = "server"

    host: Annotated[str, Text(255)] = "127.0.0.1"
    """The address to listen on. One that other machines reach, such as `0.0.0.0`, needs a node that
    is secured (`waterclock secure init`), or `server.insecure`."""

    insecure: Annotated[bool, Toggle()] = False
    """Whether a node that is not secured may listen beyond this machine. On, whoever reaches its
    ports reads, publishes and deletes: only where something else guards them."""

    linger_ms: Annotated[int, duration(0, 100)] = 2
    """How long a single publish over gRPC or HTTP waits at most for others to share its batch; one
    that comes alone does not wait. Longer makes larger batches and adds up to that much to an
    answer; 0 batches only what came in the same turn of the loop."""

    publish_bytes_max: Annotated[int, size(64 * KIB, 16 * GIB)] = 256 * MIB
    """Bytes of publishes being worked on; more are refused until some are answered. Higher absorbs
    bigger bursts in memory."""

    receive_bytes_max: Annotated[int, size(1 * MIB, 16 * GIB)] = 256 * MIB
    """Room for gRPC requests on their way in, each counted as the largest there may be until it is
    there. Higher lets more slow senders of large batches in at once."""

    calls_max: Annotated[int, count(1, 1_000_000)] = 10_000
    """Calls being worked on, subscriptions included; more are refused."""

    drain_ms: Annotated[int, duration(0, 10 * MINUTE_MS)] = 10 * SECOND_MS
    """How long a stopping node lets calls finish."""

    metrics_groups_max: Annotated[int, count(1, 100_000)] = 100
    """Lines of each metric of groups in `/metrics`: those with the most lag, and one for all the
    others. Each takes a few hundred bytes at most, in 16 metrics."""

    cors_origins: Annotated[tuple[str, ...], Origins()] = ()
    """Web pages that may use the HTTP API from a browser, besides the node's own. `*` is any page
    that anyone opens who can reach the port: it may then read, publish and delete."""

    hosts: Annotated[tuple[str, ...], HostNames()] = ()
    """Names by which HTTP clients call the node, such as that of a proxy before it or of a service;
    `.example.com` is every name below. Addresses, `localhost`, the machine's name and `server.host`
    need no entry. Requests to other names are refused, for a page could have one lead here (DNS
    rebinding). `*` is any name: only where something else checks them."""
