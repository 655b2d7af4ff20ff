"""Those who wait for what is stored, when something is."""

from waterclock.streams.effects import Deliver, Effect, ReadStore
from waterclock.streams.ring import Item
from waterclock.streams.waiters import Receiver, WaitQueue


def told_of_stored(tailing: WaitQueue[Receiver], position: int, item: Item | None) -> list[Effect]:
    """Give a message to those who wait for it; without it, and to those behind, say to read on."""
    effects: list[Effect] = []
    for receiver in tailing.clear():
        assert receiver.after is not None
        if receiver.after >= position:
            tailing.join(receiver)
        elif item is not None and receiver.after == position - 1:
            effects.append(Deliver(receiver, [position], [item]))
        else:
            effects.append(ReadStore(receiver))
    return effects
