"""What a node remembers of a recurrence: what recurs, by which rule, and what was scheduled."""

from typing import NamedTuple

import msgspec

from waterclock.log.expiry import HEADER as EXPIRES_HEADER
from waterclock.log.id_index.fingerprint import fingerprint
from waterclock.model.errors import BadInput
from waterclock.model.ids import Millis
from waterclock.model.message import Message
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

_JITTER_SEED = 0x6A697474


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """When it happens: `cron` or `every_ms`, one of both."""

    cron: str | None = None
    """Five fields, or six with seconds first, read in `zone`."""
    every_ms: int | None = None
    zone: str = "UTC"
    jitter_ms: int = 0
    """Each occurrence comes up to so much later, always the same for the same occurrence."""
    start_ms: int | None = None
    end_ms: int | None = None
    """Within [start_ms, end_ms)."""


class Recurring(msgspec.Struct, frozen=True, kw_only=True):
    """What recurs: a message, without id and due time, to a topic, by a rule."""

    name: str
    topic: str
    rule: Rule
    key: bytes | None = None
    value: bytes | None = None
    headers: dict[str, bytes] | None = None
    expires_after_ms: int | None = None
    """Each occurrence expires so long after its time."""

    def message(self, message_id: bytes, due_ms: int) -> Message:
        headers = dict(self.headers or ())
        if self.expires_after_ms is not None:
            headers[EXPIRES_HEADER] = b"%d" % (due_ms + self.expires_after_ms)
        return Message(
            self.value,
            key=self.key,
            message_id=message_id,
            headers=headers or None,
            due_ms=Millis(due_ms),
        )


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

    recurring: Recurring
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
    """What was scheduled before and may yet come: it was the last one, or the clock was ahead."""
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
        return f"{self.recurring.name}/{self.token}{turn}@{due_ms}"

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

    def without_topic(self, now_ms: int) -> "RecurrenceRecord | None":
        """Return what is left of it when its topic goes: what it once scheduled for others."""
        ended = self.deleted(now_ms)
        others = [one for one in ended.unwanted if one.topic != self.recurring.topic]
        return msgspec.structs.replace(ended, unwanted=others) if others else None

    def next_open(self, rule: RecurrenceRule, now_ms: int) -> Millis | None:
        """Return the next occurrence that was not scheduled yet."""
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
        self, rule: RecurrenceRule, occurrence: Occurrence, now_ms: int
    ) -> "RecurrenceRecord":
        """Return it with one occurrence more, and without those whose time has passed.

        The last one is kept besides: it has come only if the clock stays where it is.
        """
        ahead = [one for one in self.upcoming if one.due_ms > now_ms or one is self.last_scheduled]
        ahead.sort(key=_due)
        return msgspec.structs.replace(
            self,
            last_scheduled=occurrence,
            is_over=False,
            ahead=ahead[:AHEAD_MAX],
            unwanted=self.unwanted + ahead[AHEAD_MAX:],
            spans=with_occurrence(rule, self._spans, occurrence.due_ms),
        )

    def with_cancelled(
        self, rule: RecurrenceRule, cancelled: list[Occurrence]
    ) -> "RecurrenceRecord":
        """Return it with nothing left to cancel; what of its own was cancelled can come again.

        What has fired before it could be cancelled has come.
        """
        mine = f"{self.recurring.name}/{self.token}"
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


class Recurs(NamedTuple):
    """A recurrence as it stands."""

    recurring: Recurring
    next_ms: int
    """When it happens next; 0 if it does not any more."""
    made_partitions: int = 0
    """Of its topic, if putting it has made that."""


def rule_of(record: RecurrenceRecord) -> RecurrenceRule:
    """Return when it recurs; raises BadInput if that makes no sense."""
    rule = record.recurring.rule
    if (rule.cron is None) == (rule.every_ms is None):
        raise BadInput("rule: give cron or every_ms, and not both")
    found: CronRule | IntervalRule
    if rule.cron is not None:
        found = CronRule(Cron(rule.cron), zone_of(rule.zone or "UTC"))
    else:
        assert rule.every_ms is not None
        if not INTERVAL_MS_MIN <= rule.every_ms <= INTERVAL_MS_MAX:
            raise BadInput(f"every_ms must be within {INTERVAL_MS_MIN} and {INTERVAL_MS_MAX}")
        anchor_ms = record.anchor_ms if rule.start_ms is None else rule.start_ms
        found = IntervalRule(rule.every_ms, anchor_ms)
    return RecurrenceRule(
        rule=found,
        start_ms=rule.start_ms or 0,
        end_ms=rule.end_ms,
        jitter_ms=rule.jitter_ms,
        jitter_seed=fingerprint(record.recurring.name.encode(), _JITTER_SEED),
    )


def _due(occurrence: Occurrence) -> int:
    return occurrence.due_ms
