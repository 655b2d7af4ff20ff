"""What a node remembers of a recurrence: the recurrence as it was put, and what was scheduled."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from waterclock.log.expiry import HEADER as EXPIRES_HEADER
from waterclock.log.id_index.fingerprint import fingerprint
from waterclock.model.errors import BadInput, LimitExceeded
from waterclock.model.ids import Millis
from waterclock.model.limits import END_MS
from waterclock.model.message import Message
from waterclock.model.views import Recurrence
from waterclock.schedule.calendar import (
    INTERVAL_MS_MAX,
    INTERVAL_MS_MIN,
    CronRule,
    IntervalRule,
    RecurrenceRule,
    zone_of,
)
from waterclock.schedule.cron import Cron
from waterclock.schedule.occurrences import Span, next_open, with_occurrence, without

AHEAD_MAX = 8
"""Occurrences scheduled by a clock that was ahead that are kept. The farthest are cancelled, and
scheduled again when their time comes."""

HELD_MAX = 8
"""Occurrences that are kept though their time seems to have come, as they have not fired. Of more
the earliest go their way, and fire even if the clock is set back and the recurrence deleted."""

TIMES_MAX = 100
TIMES_DEFAULT = 10
"""Times of a rule that are told at once."""

_JITTER_SEED = 0x6A697474


class Occurrence(msgspec.Struct, frozen=True, array_like=True):
    """A scheduled occurrence."""

    topic: str
    partition: int
    offset: int
    due_ms: int
    message_id: str = ""
    """Records of earlier versions have none: whatever is at the position is meant."""


class RecurrenceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A recurrence and what was scheduled of it."""

    recurrence: Recurrence
    """As it was put."""
    token: str
    anchor_ms: int
    """When an interval began to be counted, if the rule does not say."""
    last_scheduled: Occurrence | None = None
    """The occurrence that was scheduled last."""
    is_over: bool = False
    """There are no more occurrences."""
    unwanted: list[Occurrence] = []
    """Occurrences to be cancelled: of what this has replaced, or too far ahead."""
    is_deleted: bool = False
    ahead: list[Occurrence] = []
    """What was scheduled before and may yet come: it was the last one, has not fired, or the clock
    was ahead."""
    spans: list[Span] = []
    """All that was scheduled (see `schedule.occurrences`)."""
    turn: int = 0
    """Counts cancelled occurrences that may be made again: their ids are used up."""

    @property
    def upcoming(self) -> list[Occurrence]:
        """Return what was scheduled and may not have come yet."""
        return self.ahead if self.last_scheduled is None else [self.last_scheduled, *self.ahead]

    def message_id(self, due_ms: int) -> str:
        """Return the id of an occurrence."""
        turn = f".{self.turn}" if self.turn else ""
        return f"{self.recurrence.name}/{self.token}{turn}@{due_ms}"

    def message(self, due_ms: int) -> Message:
        """Return the message of an occurrence."""
        expires_after_ms = self.recurrence.expires_after_ms
        headers = dict(self.recurrence.message.headers or ())
        if expires_after_ms is not None:
            headers[EXPIRES_HEADER] = b"%d" % (due_ms + expires_after_ms)
        return replace(
            self.recurrence.message,
            message_id=self.message_id(due_ms).encode(),
            headers=headers or None,
            due_ms=Millis(due_ms),
        )

    def to_cancel(self, now_ms: int) -> list[Occurrence]:
        """Return what goes with it; what is due, but for the last one, is let go its way."""
        return self.unwanted + [
            one for one in self.upcoming if one is self.last_scheduled or one.due_ms > now_ms
        ]

    def deleted(self, now_ms: int) -> "RecurrenceRecord":
        """Return it ended, with what is left to be cancelled."""
        return msgspec.structs.replace(
            self, is_deleted=True, last_scheduled=None, ahead=[], unwanted=self.to_cancel(now_ms)
        )

    def paused(self, now_ms: int) -> "RecurrenceRecord":
        """Return it paused, with what is left to be cancelled."""
        return msgspec.structs.replace(
            self,
            recurrence=msgspec.structs.replace(self.recurrence, is_paused=True),
            last_scheduled=None,
            ahead=[],
            unwanted=self.to_cancel(now_ms),
            spans=self._spans,
        )

    def resumed(self) -> "RecurrenceRecord":
        """Return it resumed: it goes on with the next occurrence from now on."""
        recurrence = msgspec.structs.replace(self.recurrence, is_paused=False)
        return msgspec.structs.replace(self, recurrence=recurrence, is_over=False)

    def without_topic(self, now_ms: int) -> "RecurrenceRecord | None":
        """Return what is left of it when its topic goes: what it once scheduled for others."""
        ended = self.deleted(now_ms)
        others = [one for one in ended.unwanted if one.topic != self.recurrence.topic]
        return msgspec.structs.replace(ended, unwanted=others) if others else None

    def next_open(self, rule: RecurrenceRule, now_ms: int) -> Millis | None:
        """Return the next occurrence that was not scheduled yet; none of what is paused."""
        if self.recurrence.is_paused:
            return None
        return next_open(rule, self._spans, now_ms)

    def is_due(self, now_ms: int) -> bool:
        """Tell whether there is something to do, if the clock was not set back."""
        if self.unwanted or self.is_deleted:
            return True
        return (
            not self.is_over
            if self.last_scheduled is None
            else self.last_scheduled.due_ms <= now_ms
        )

    def is_overtaken(self, rule: RecurrenceRule, now_ms: int) -> bool:
        """Tell whether an occurrence comes before the one that was scheduled last."""
        due_ms = self.next_open(rule, now_ms)
        if due_ms is None:
            return False
        return self.last_scheduled is None or due_ms < self.last_scheduled.due_ms

    def with_occurrence(
        self,
        rule: RecurrenceRule,
        occurrence: Occurrence,
        now_ms: int,
        *,
        may_fire: Callable[[Occurrence], bool],
    ) -> "RecurrenceRecord":
        """Return it with one occurrence more, and without those that have come.

        One whose time has passed is kept if it may fire yet, and the last one besides: it is still
        to come if the clock is set back.
        """
        upcoming = sorted(self.upcoming, key=_due)
        ahead = [one for one in upcoming if one.due_ms > now_ms]
        held = [
            one
            for one in upcoming
            if one.due_ms <= now_ms and (one is self.last_scheduled or may_fire(one))
        ]
        return msgspec.structs.replace(
            self,
            last_scheduled=occurrence,
            is_over=False,
            ahead=held[-HELD_MAX:] + ahead[:AHEAD_MAX],
            unwanted=self.unwanted + ahead[AHEAD_MAX:],
            spans=with_occurrence(rule, self._spans, occurrence.due_ms),
        )

    def with_cancelled(
        self, rule: RecurrenceRule, cancelled: Sequence[Occurrence]
    ) -> "RecurrenceRecord":
        """Return it with nothing left to cancel; what of its own was cancelled can come again.

        What has fired before it could be cancelled has come.
        """
        mine = f"{self.recurrence.name}/{self.token}"
        spans, turn = self._spans, self.turn
        for occurrence in cancelled:
            if occurrence.message_id.startswith((f"{mine}@", f"{mine}.")):
                spans, turn = without(rule, spans, occurrence.due_ms), turn + 1
        return msgspec.structs.replace(self, unwanted=[], spans=spans, turn=turn)

    @property
    def _spans(self) -> list[Span]:
        # Records of earlier versions have no spans.
        if not self.spans and self.last_scheduled is not None:
            return [(self.last_scheduled.due_ms, self.last_scheduled.due_ms)]
        return self.spans


def rule_of(record: RecurrenceRecord) -> RecurrenceRule:
    """Return when it recurs; raises BadInput if that makes no sense."""
    given = record.recurrence
    if (given.cron is None) == (given.every_ms is None):
        raise BadInput("rule: give cron or every_ms, and not both")
    found: CronRule | IntervalRule
    if given.cron is not None:
        found = CronRule(Cron(given.cron), zone_of(given.zone))
    else:
        assert given.every_ms is not None
        if not INTERVAL_MS_MIN <= given.every_ms <= INTERVAL_MS_MAX:
            raise BadInput(f"every_ms must be within {INTERVAL_MS_MIN} and {INTERVAL_MS_MAX}")
        anchor_ms = record.anchor_ms if given.start_ms is None else given.start_ms
        found = IntervalRule(given.every_ms, anchor_ms)
    return RecurrenceRule(
        rule=found,
        start_ms=given.start_ms or 0,
        end_ms=given.end_ms,
        jitter_ms=given.jitter_ms,
        jitter_seed=fingerprint(given.name.encode(), _JITTER_SEED),
    )


def times_of(
    *, cron: str | None, every_ms: int | None, zone: str, start_ms: int, count: int
) -> list[int]:
    """Return when a rule lets messages come, from a time on: as many as asked for, unless it ends.

    Raises BadInput or LimitExceeded.
    """
    if count > TIMES_MAX:
        raise LimitExceeded("count", TIMES_MAX, got=count)
    if start_ms > END_MS:
        raise LimitExceeded("start_ms", END_MS, got=start_ms)
    given = Recurrence(
        name="", topic="", message=Message(None), cron=cron, every_ms=every_ms, zone=zone
    )
    rule = rule_of(RecurrenceRecord(recurrence=given, token="", anchor_ms=start_ms))
    found: list[int] = []
    next_ms = rule.next_after(start_ms - 1)
    while next_ms is not None and next_ms <= END_MS and len(found) < count:
        found.append(next_ms)
        next_ms = rule.next_after(next_ms)
    return found


def _due(occurrence: Occurrence) -> int:
    return occurrence.due_ms
