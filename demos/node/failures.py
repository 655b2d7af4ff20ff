"""Steps about failure: messages that fail once, or always, and their second chance."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import suppress

from demos.node.steps import DeadLetterRow, Redriven, Retried
from waterclock.cli.output.messages import value_text
from waterclock.cli.output.terminal import bytes_text
from waterclock.client.client import Client
from waterclock.client.consumer.delivery import ReceivedMessage
from waterclock.model.message import Message
from waterclock.model.views import DeadLetter

TOPIC = "payments"
GROUP = "billing"
PAYMENTS = 40
RETRY_DELAY_MS = 200
RETRIES = 2
SETTINGS = (f"delivery.retry_delay={RETRY_DELAY_MS}ms", f"delivery.max_retries={RETRIES}")
"""Of the node, so that nobody waits for long."""
PATIENCE_S = 15.0
POLL_S = 0.05
TEXT_CHARS = 40


def fails_once(number: int) -> bool:
    """Tell whether a payment fails at its first attempt."""
    return number % 10 == 3


def fails_always(number: int) -> bool:
    """Tell whether a payment fails until somebody mends the consumer."""
    return number % 10 == 7


def payment(number: int) -> Message:
    """Return a payment."""
    return Message(
        b"pay %d.%02d" % divmod(number * 1_337 % 10_000, 100),
        key=b"account-%d" % (number % 8),
        message_id=b"payment-%d" % number,
    )


_NUMBERS = {payment(number).message_id: number for number in range(PAYMENTS)}
FAILING = sum(fails_always(number) for number in range(PAYMENTS))


class _Worker:
    """A consumer that fails at the payments that are to fail, and notes when."""

    def __init__(self, messages: AsyncIterator[ReceivedMessage]) -> None:
        self._messages = messages
        self.attempts: dict[int, int] = {}
        """Of each payment that was done, the one that did it."""
        self.failures: dict[int, list[float]] = defaultdict(list)
        """Of each payment, when it failed."""
        self.wait_ms: dict[int, list[float]] = defaultdict(list)
        """By attempt, the times since the failure before."""

    async def run(self) -> None:
        """Work until all is done, or has failed as often as it is tried."""
        async for message in self._messages:
            self._take(message, _NUMBERS[message.id])
            given_up = sum(len(times) > RETRIES for times in self.failures.values())
            if len(self.attempts) + given_up == PAYMENTS:
                return

    def _take(self, message: ReceivedMessage, number: int) -> None:
        now = time.perf_counter()
        if self.failures[number]:
            self.wait_ms[message.attempt].append(1_000 * (now - self.failures[number][-1]))
        if fails_always(number) or (fails_once(number) and message.attempt == 1):
            self.failures[number].append(now)
            message.nack()
        else:
            self.attempts[number] = message.attempt
            message.ack()


async def retry(client: Client) -> Retried:
    """Publish payments, fail some, and see them come again until they are given up."""
    await client.publish_many(TOPIC, [payment(number) for number in range(PAYMENTS)])
    dead = 0
    async with client.subscribe(TOPIC, group=GROUP) as messages:
        worker = _Worker(messages)
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await worker.run()
                # They become dead letters soon after their last failure, and no event says so.
                while (dead := await client.dead_letters.count(TOPIC)) < FAILING:  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)
    at_once = sum(attempt == 1 for attempt in worker.attempts.values())
    failing = [times for number, times in worker.failures.items() if fails_always(number)]
    return Retried(
        messages=PAYMENTS,
        done_at_once=at_once,
        done_later=len(worker.attempts) - at_once,
        dead=dead,
        failing=FAILING,
        attempts=max(map(len, failing), default=0),
        wait_ms=[min(times) for _, times in sorted(worker.wait_ms.items())],
        delay_ms=RETRY_DELAY_MS,
    )


async def redrive(client: Client) -> Redriven:
    """List the dead letters, publish them again, and do them with a consumer that was mended."""
    dead_letters = [letter async for letter in client.dead_letters.list(TOPIC)]
    redriven = await client.dead_letters.redrive(TOPIC)
    wanted = {(letter.key, letter.value) for letter in dead_letters}
    done: set[tuple[bytes | None, bytes | None]] = set()
    async with client.subscribe(TOPIC, group=GROUP) as messages:
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while done < wanted:
                    message = await anext(messages)
                    done.add((message.key, message.value))
                    message.ack()
    return Redriven(
        dead_letters=[_row(letter) for letter in dead_letters],
        redriven=redriven,
        done=len(done & wanted),
        left=await client.dead_letters.count(TOPIC),
    )


def _row(found: DeadLetter) -> DeadLetterRow:
    return DeadLetterRow(
        position=f"{found.partition}/{found.offset}",
        key=bytes_text(found.key or b"", chars_max=TEXT_CHARS),
        value=value_text(found.value, TEXT_CHARS),
        reason=found.reason,
        attempts=found.attempts,
    )
