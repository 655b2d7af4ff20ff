"""The blocking twin of `schedule.py`: the same names, and calls that wait."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from waterclock.client._sync.admin import each
from waterclock.client.due import Cron, Every, When
from waterclock.client.loop_thread import LoopThread
from waterclock.client.results import (
    CancelCount,
    Horizon,
    Outcome,
    Recurrence,
    ScheduledMessage,
)
from waterclock.client.schedule import Pending, SchedulerCalls


class BlockingSchedulerCalls:
    """The part of the blocking client that looks after messages for later."""

    _background: LoopThread
    _client: SchedulerCalls

    def cancel(self, topic: str, message: Pending, *, key: bytes | None = None) -> Outcome:
        """Cancel a pending message, or all of an id. Those "cancelled" are never delivered."""
        return self._background.run(self._client.cancel(topic, message, key=key))

    def cancel_many(
        self, topic: str, messages: Sequence[Pending], *, keys: Sequence[bytes | None] | None = None
    ) -> list[Outcome]:
        """Cancel pending messages, each answered for itself."""
        return self._background.run(self._client.cancel_many(topic, messages, keys=keys))

    def reschedule(
        self, topic: str, message: Pending, at: When, *, key: bytes | None = None
    ) -> Outcome:
        """Give a pending message, or all of an id, another due time."""
        return self._background.run(self._client.reschedule(topic, message, at, key=key))

    def reschedule_many(
        self,
        topic: str,
        messages: Sequence[Pending],
        at: When,
        *,
        keys: Sequence[bytes | None] | None = None,
    ) -> list[Outcome]:
        """Give pending messages another due time, the same for all."""
        return self._background.run(self._client.reschedule_many(topic, messages, at, keys=keys))

    def cancel_where(
        self,
        topic: str,
        *,
        key: bytes | None = None,
        key_prefix: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        start: When | None = None,
        end: When | None = None,
        everything: bool = False,
        dry_run: bool = False,
    ) -> CancelCount:
        """Cancel the pending messages that match all that is given; `dry_run` only counts them."""
        return self._background.run(
            self._client.cancel_where(
                topic,
                key=key,
                key_prefix=key_prefix,
                headers=headers,
                start=start,
                end=end,
                everything=everything,
                dry_run=dry_run,
            )
        )

    def scheduled(
        self,
        topic: str,
        *,
        key: bytes | None = None,
        key_prefix: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        start: When | None = None,
        end: When | None = None,
        with_values: bool = False,
        page_size: int = 0,
    ) -> Iterator[ScheduledMessage]:
        """Yield the pending messages that match, the earliest due first."""
        found = self._client.scheduled(
            topic,
            key=key,
            key_prefix=key_prefix,
            headers=headers,
            start=start,
            end=end,
            with_values=with_values,
            page_size=page_size,
        )
        return each(self._background, found)

    def count_scheduled(self, topic: str | None = None) -> list[Horizon]:
        """Return how many messages wait for how long, of one topic or of all."""
        return self._background.run(self._client.count_scheduled(topic))

    def repeat(
        self,
        name: str,
        topic: str,
        value: bytes | None,
        *,
        at: str | Cron | Every | None = None,
        cron: str | Cron | None = None,
        every: timedelta | str | Every | None = None,
        zone: str | None = None,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        jitter: timedelta | str | None = None,
        start: When | None = None,
        end: When | None = None,
        expires_after: timedelta | str | None = None,
    ) -> Recurrence:
        """Publish a message again and again; a recurrence of that name is replaced."""
        return self._background.run(
            self._client.repeat(
                name,
                topic,
                value,
                at=at,
                cron=cron,
                every=every,
                zone=zone,
                key=key,
                headers=headers,
                jitter=jitter,
                start=start,
                end=end,
                expires_after=expires_after,
            )
        )

    def recurrences(self, topic: str | None = None) -> list[Recurrence]:
        """Return what repeats, on one topic or on all."""
        return self._background.run(self._client.recurrences(topic))

    def stop_repeating(self, recurrence: str | Recurrence) -> bool:
        """Delete a recurrence; tell whether there was one of that name."""
        return self._background.run(self._client.stop_repeating(recurrence))
