"""What is asked of a topic in a history: drawn by chance, noted by the model when it is answered.

Ids are few, so that they meet: in one partition and in several, with and without `allowDuplicate`.
"""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.kit.clock import ManualClock
from tests.simulation.message_model import Known, Meant, Messages, Outcome

IDS = ["one", "two", "three", "four", "five"]
KEYS = [None, "ada", "bob", "cyd", "dan"]
DELAYS_MS = [300, 2_000, 5_000, 30_000, 3_600_000, 9_000_000]
LASTS_MS = [2_500, 20_000, 3_000_000]

Json = dict[str, Any]


class TopicRequest(NamedTuple):
    """Something to be asked, and what follows."""

    verb: str
    body: Json
    answered: Callable[[Json], None]
    """Holds the answer against the model."""
    unanswered: Callable[[], None]
    """Tells the model that it may have been done."""


def changes_of(response: Json) -> list[tuple[str, int | None]]:
    """Return the outcome of each change, and the number of messages reached if it is given."""
    outcomes = response["outcomes"]
    return list(zip(outcomes, response.get("reached", [None] * len(outcomes)), strict=True))


class DrawnRequests:
    """Draws requests by chance."""

    def __init__(self, chance: random.Random, clock: ManualClock, messages: Messages) -> None:
        self.random = chance
        self.clock = clock
        self.messages = messages
        self.kinds = [
            self.publishing,
            self.cancelling,
            self.cancelling_by_key,
            self.rescheduling,
        ]

    def drafted(self) -> tuple[Known, Json]:
        """Return a message to be and how it is asked for."""
        chance, now_ms = self.random, int(self.clock.now_ms())
        number = len(self.messages.all)
        body: Json = {"value": str(number), "messageId": chance.choice(IDS)}
        key = chance.choice(KEYS)
        if key is not None:
            body["key"] = key
        due_ms, outcomes = now_ms, {Outcome.FIRED}
        when = chance.random()
        if when < 0.7:
            delay_ms = chance.choice(DELAYS_MS)
            due_ms += delay_ms
            body["delay"] = f"{delay_ms}ms"
            outcomes = {Outcome.PENDING}
        elif when < 0.85:
            due_ms -= chance.choice([0, 1, 5_000])
            body["dueMs"] = due_ms
        lasts_ms = None
        if chance.random() < 0.4 and "dueMs" not in body:
            lasts_ms = chance.choice(LASTS_MS)
            body["expiresIn"] = f"{lasts_ms}ms"
        message_id = body["messageId"]
        message = Known(
            number, message_id, key, due_ms, lasts_ms, now_ms, outcomes | {Outcome.ABSENT}
        )
        self.messages.add(message)
        return message, body

    def publishing(self) -> TopicRequest:
        """Return a request to publish a message, or a few at once."""
        drafts = [self.drafted()]
        while self.random.random() < 0.25:
            drafts.append(self.drafted())
        messages = [message for message, _ in drafts]
        body: Json = drafts[0][1]
        if len(drafts) > 1:
            body = {"messages": [asked for _, asked in drafts]}
        if self.random.random() < 0.4:
            body["allowDuplicate"] = True
            for message in messages:
                message.is_tracked = False

        def answered(response: Json) -> None:
            for message, one in zip(messages, response.get("messages", [response]), strict=True):
                assert one["partition"] == message.partition, (one, message)
                self.messages.published(message, one["offset"], is_new=one["isNew"])

        return TopicRequest(
            "messages", body, answered, lambda: self.messages.maybe_published(messages)
        )

    def meant(self) -> tuple[Meant, Json]:
        """Return messages and how they are named: by an id, with a key perhaps, or by position."""
        chance = self.random
        placed = [m for m in self.messages.all if m.offset is not None]
        if placed and chance.random() < 0.25:
            message = chance.choice(placed)
            named: Json = {"partition": message.partition, "offset": message.offset}
            return Meant([message]), named
        pending = [m for m in placed if m.may_be_pending]
        if pending and chance.random() < 0.6:
            message = chance.choice(pending)
            message_id, key = message.message_id, message.key
        else:
            message_id, key = chance.choice([*IDS, "six"]), chance.choice(KEYS)
        if key is None or chance.random() < 0.7:
            return self.messages.named(message_id), {"messageId": message_id}
        named = {"messageId": message_id, "key": key}
        return self.messages.named(message_id, key), named

    def all_meant(self) -> tuple[list[Meant], list[Json]]:
        """Return some groups of messages and their names, none of them meant twice."""
        found = [self.meant()]
        if self.random.random() < 0.2:
            other = self.meant()
            if not {m.number for m in other[0]} & {m.number for m in found[0][0]}:
                found.append(other)
        return [meant for meant, _ in found], [named for _, named in found]

    def cancelling(self) -> TopicRequest:
        """Return a request to cancel messages."""
        all_meant, named = self.all_meant()

        def answered(response: Json) -> None:
            for meant, change in zip(all_meant, changes_of(response), strict=True):
                self.messages.cancelled(meant, *change)

        def unanswered() -> None:
            for meant in all_meant:
                self.messages.maybe_cancelled(meant)

        return TopicRequest("cancel", {"messages": named}, answered, unanswered)

    def cancelling_by_key(self) -> TopicRequest:
        """Return a request to cancel all messages of a key."""
        key = self.random.choice(KEYS[1:])
        meant = [m for m in self.messages.all if m.key == key]

        def answered(response: Json) -> None:
            self.messages.cancelled_where(meant, response["matched"], response["cancelled"])

        body = {"filter": {"key": key}}
        return TopicRequest(
            "cancel-where", body, answered, lambda: self.messages.maybe_cancelled(meant)
        )

    def rescheduling(self) -> TopicRequest:
        """Return a request to move messages to another time."""
        all_meant, named = self.all_meant()
        delay_ms = self.random.choice([-5_000, 0, *DELAYS_MS])
        asked_ms = self.clock.now_ms() + delay_ms
        due_ms = max(asked_ms, self.clock.now_ms())  # a time that has passed means now

        def answered(response: Json) -> None:
            now_ms = self.clock.now_ms()
            for meant, change in zip(all_meant, changes_of(response), strict=True):
                self.messages.moved(meant, *change, due_ms=due_ms, now_ms=now_ms)

        def unanswered() -> None:
            for meant in all_meant:
                self.messages.maybe_moved(meant, due_ms, self.clock.now_ms())

        body: Json = {"messages": named, "dueMs": asked_ms}
        if delay_ms > 0 and self.random.random() < 0.5:
            body = {"messages": named, "delay": f"{delay_ms}ms"}
        return TopicRequest("reschedule", body, answered, unanswered)
