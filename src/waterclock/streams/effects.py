"""What the shell has to do for streams, in this order."""

from typing import NamedTuple

from waterclock.streams.ring import Item
from waterclock.streams.waiters import Receiver, Sender, Waiter


class Deliver(NamedTuple):
    """Give messages to a receiver. If it is not there any more: `Streams.give_back`."""

    receiver: Receiver
    positions: list[int]
    items: list[Item]
    missed: int = 0
    """Messages it was too late for: overwritten before it came."""
    sender: Sender | None = None
    """The sender that waits until this is taken; answer it after the receiver, and only then."""
    others: int = 0
    """How many more are given the same by that sender."""


class Accept(NamedTuple):
    """Tell a sender that its message was taken."""

    sender: Sender
    position: int
    receivers: int
    """How many were waiting for it."""


class Refuse(NamedTuple):
    """Tell a receiver that what follows its position is gone."""

    receiver: Receiver
    missed: int
    oldest: int
    """It may go on after this position."""


class ReadStore(NamedTuple):
    """Read what a receiver wants from the store: there is more than it has seen."""

    receiver: Receiver


class TimeOut(NamedTuple):
    """Tell a waiter that the other side did not come in time."""

    waiter: Waiter


class Dismiss(NamedTuple):
    """Tell a waiter to ask again, elsewhere or later."""

    waiter: Waiter


class Move(NamedTuple):
    """Tell a waiter that its stream goes to another node: nothing was done for it here."""

    waiter: Waiter


Effect = Deliver | Accept | Refuse | ReadStore | TimeOut | Dismiss | Move
