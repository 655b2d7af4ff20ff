"""The settings of a client, each field saying what it trades. The defaults suit most programs."""

from dataclasses import dataclass

from waterclock.model.errors import BadConfig
from waterclock.model.message import ACKS, Acks
from waterclock.model.units import KIB, MIB, SECOND_MS

DEFAULT_PORT = 9000
DEFAULT_ADDRESS = f"localhost:{DEFAULT_PORT}"
ADDRESS_VARIABLE = "WATERCLOCK_ADDRESS"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """How a client batches, waits and retries."""

    linger_ms: int = 5
    """How long a message may wait for others while batches of its topic are in flight; with none
    in flight it never waits. Longer makes fewer, larger batches."""

    batch_messages: int = 4_000
    """A batch is sent at once when it has so many messages. More costs less for each and makes all
    of them wait for the largest."""

    batch_bytes: int = 1 * MIB
    """The same in bytes."""

    in_flight_max: int = 4
    """Batches of a topic on their way at once. More hides more of the round trip; batches that
    share a key go one after the other anyway."""

    buffer_bytes_max: int = 32 * MIB
    """Bytes of messages published and not yet answered; `publish` waits while there are more.
    Higher absorbs longer hiccups in memory."""

    delivery_timeout_ms: int = 60 * SECOND_MS
    """How long a publish is tried before it fails. Longer survives longer outages of the node, and
    the caller learns of them later."""

    call_timeout_ms: int = 15 * SECOND_MS
    """How long one request may take. Shorter notices a hanging node sooner, and takes a slow one
    for hanging."""

    connect_timeout_ms: int = 5 * SECOND_MS
    """How long to look for the node at the start: enough for one that was started together with
    this program."""

    retry_delay_ms: int = 50
    """The wait before the first retry; doubles with each, jitter aside."""

    retry_delay_ms_max: int = 2 * SECOND_MS
    """The longest wait between retries. Shorter finds a returned node sooner and beats harder on
    one that is down."""

    acks: Acks = "quorum"
    """When a publish that does not say so itself is answered: once a majority of the replicas has
    flushed it, the leader has ("leader": sooner, and lost if the leader is before others have it),
    or every replica has ("all": later, and not while one is away)."""

    ack_flush_ms: int = 5
    """How long acks are queued before they are sent. Longer costs less; a crash then has more
    messages delivered again, and a member without credit to spare waits longer for new ones."""

    stream_connections_max: int = 1_000
    """Requests about streams under way at once, each on a connection of its own: so many that send
    or look, and so many that wait for messages. More wait for their turn."""

    close_timeout_ms: int = 10 * SECOND_MS
    """How long leaving waits for what was published to be answered."""

    native: bool = True
    """Whether publishes and subscriptions go by the native protocol where a node offers it, over
    its port for HTTP. It costs less for each message, and one connection more for publishes and one
    for all else; else, and where the port is not reached, all goes by gRPC."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if name == "native" and isinstance(value, bool):
                continue
            if name == "acks":
                if value not in ACKS:
                    raise BadConfig("client.acks", f"must be one of {', '.join(ACKS)}")
                continue
            if type(value) is not int or value < (0 if name in _MAY_BE_ZERO else 1):
                raise BadConfig(f"client.{name}", f"must be a positive whole number, not {value!r}")
        if self.batch_bytes < 1 * KIB:
            raise BadConfig("client.batch_bytes", f"must be at least {KIB}")


_MAY_BE_ZERO = {"linger_ms", "ack_flush_ms", "close_timeout_ms"}
