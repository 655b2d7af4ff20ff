"""Credit: how much a member can hold at a time, in messages and bytes, over all its partitions.

Absolute, as in AMQP 1.0: a member says "I can hold N messages and B bytes", not "N more", so that
saying it twice, or losing it once, does no harm. What is handed out and not yet acked, nacked,
timed out or dead-lettered is held. gRPC windows count bytes on the wire and end there; only this
bounds what a member has to keep in memory.

A message larger than the whole byte credit would never fit. A member that holds nothing at all is
therefore given one message, whatever its size, if it has any credit: as Kafka does with a fetch.

The credit of a session is one object, shared by the cursors of its partitions: any of them that has
messages may use it.
"""


class Credit:
    """What one session of a member may hold, and what it holds."""

    __slots__ = ("bytes_max", "held_bytes", "held_messages", "messages_max")

    def __init__(self, *, messages: int, bytes: int) -> None:  # noqa: A002
        self.set(messages=messages, bytes=bytes)
        self.held_messages = 0
        self.held_bytes = 0

    def __repr__(self) -> str:
        return (
            f"<Credit {self.held_messages} of {self.messages_max} messages, "
            f"{self.held_bytes} of {self.bytes_max} bytes>"
        )

    @property
    def free(self) -> int:
        """How many messages more the member could hold; 0 if it has no bytes left for one."""
        if self.held_messages and self.held_bytes >= self.bytes_max:
            return 0
        return max(0, self.messages_max - self.held_messages) if self.bytes_max else 0

    def set(self, *, messages: int, bytes: int) -> None:  # noqa: A002
        """Set what the member can hold from now on.

        Tick the member's cursors afterwards: they may have something for it.
        """
        self.messages_max = messages
        self.bytes_max = bytes

    def take(self, messages: int, *, bytes_each: int) -> int:
        """Use credit for up to so many messages; return for how many there was some."""
        fitting = min(messages, self.messages_max - self.held_messages)
        if bytes_each:
            fitting = min(fitting, (self.bytes_max - self.held_bytes) // bytes_each)
        if fitting <= 0:
            if self.held_messages or not (messages and self.messages_max and self.bytes_max):
                return 0
            fitting = 1
        self.held_messages += fitting
        self.held_bytes += fitting * bytes_each
        return fitting

    def give(self, messages: int, *, bytes: int) -> None:  # noqa: A002
        """Free what messages held."""
        self.held_messages -= messages
        self.held_bytes -= bytes
        assert self.held_messages >= 0
        assert self.held_bytes >= 0
