"""Recurrences: when does it come next? Cron in a time zone, or a fixed interval.

The rule for clocks that are put forward or back is the one of Vixie's cron (decision 10):

- An expression with `*` in its minute or hour (`*/30 * * * *`) is an interval: it goes by the clock
  on the wall as it is, and keeps its beat through the skipped hour and through both repeated ones.
- Any other names times of day (`30 2 * * *`): one that is skipped happens at once when the clocks
  have been put forward, and one that is repeated happens once, the first time.

Jitter spreads what would come at once. It is derived from a seed (say, a hash of the message id)
and the occurrence, so every node computes the same, and it never reaches into the next occurrence,
so occurrences keep their order and none is lost or doubled.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from waterclock.model.errors import BadInput, LimitExceeded
from waterclock.model.ids import Millis
from waterclock.model.units import DAY_MS, SECOND_MS
from waterclock.schedule.cron import Cron

INTERVAL_MS_MIN = SECOND_MS
INTERVAL_MS_MAX = 36_525 * DAY_MS
JITTER_MS_MAX = DAY_MS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_SECOND = timedelta(seconds=1)
_LAST_MS = (datetime(9998, 12, 31, tzinfo=UTC) - _EPOCH) // _MS
"""Python's calendar ends soon after; local times must fit too."""
_ZONE = re.compile(r"[A-Za-z0-9_+-]{1,40}(/[A-Za-z0-9_+-]{1,40}){0,3}", re.ASCII)
_MASK = (1 << 64) - 1


def zone_of(name: str) -> ZoneInfo:
    """Return the time zone of an IANA name."""
    if _ZONE.fullmatch(name) is None:
        raise BadInput(f"zone: {name[:80]!r} is not an IANA time zone")
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadInput(f"zone: {name!r} is not a known IANA time zone") from error


def instant_of(local: datetime, zone: ZoneInfo) -> Millis | None:
    """Return when a local time first happens, or None if clocks skip it."""
    aware = local.replace(tzinfo=zone, fold=0)
    instant = aware.astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) != local:
        return None
    return Millis((instant - _EPOCH) // _MS)


def local_of(time_ms: int, zone: ZoneInfo) -> datetime:
    """Return the local time at an instant, without its zone."""
    return (_EPOCH + time_ms * _MS).astimezone(zone).replace(tzinfo=None, fold=0)


def repeat_of(time_ms: int, zone: ZoneInfo) -> Millis | None:
    """Return the other instant at which clocks show the same, None unless they repeat it."""
    aware = (_EPOCH + time_ms * _MS).astimezone(zone)
    other = aware.replace(fold=1 - aware.fold)
    if other.utcoffset() == aware.utcoffset():
        return None
    return Millis((other.astimezone(UTC) - _EPOCH) // _MS)


@dataclass(frozen=True, slots=True)
class _Change:
    """Clocks are put forward or back: local times in [earlier, later) are skipped or repeated."""

    at: datetime
    """The instant, in UTC, without its zone."""
    before: timedelta
    after: timedelta
    """What local times are ahead of UTC before and after it."""

    @property
    def is_gap(self) -> bool:
        return self.after > self.before

    @property
    def earlier(self) -> datetime:
        return self.at + min(self.before, self.after)

    @property
    def later(self) -> datetime:
        return self.at + max(self.before, self.after)


def _change_at(local: datetime, zone: ZoneInfo) -> _Change | None:
    """Return the change of clocks that skips or repeats a local time, if one does."""
    before, after = (local.replace(tzinfo=zone, fold=fold).utcoffset() for fold in (0, 1))
    assert before is not None
    assert after is not None
    if before == after:
        return None
    low, high = local - max(before, after), local - min(before, after)
    while (seconds := (high - low) // _SECOND) > 1:
        middle = low + seconds // 2 * _SECOND
        if middle.replace(tzinfo=UTC).astimezone(zone).utcoffset() == before:
            low = middle
        else:
            high = middle
    return _Change(high, before, after)


@dataclass(frozen=True, slots=True)
class CronRule:
    """Local times that match an expression."""

    cron: Cron
    zone: ZoneInfo

    def next_from(self, time_ms: int) -> Millis | None:
        """Return the first occurrence at or after a time."""
        if time_ms > _LAST_MS:
            return None
        second_ms = -(-time_ms // SECOND_MS) * SECOND_MS
        found = self._beat(second_ms) if self.cron.is_interval else self._time_of_day(second_ms)
        return None if found is None else Millis((found.replace(tzinfo=UTC) - _EPOCH) // _MS)

    def _time_of_day(self, time_ms: int) -> datetime | None:
        """Return the first occurrence in UTC: what is skipped comes right after, others once."""
        # What clocks skip right before this time comes at this time.
        local = local_of(time_ms - SECOND_MS, self.zone) + _SECOND
        while (found := self.cron.next_from(local)) is not None and found.year < 9999:
            change = _change_at(found, self.zone)
            if change is None:
                return _in_utc(found, self.zone)
            instant = change.at if change.is_gap else found - change.before
            if (instant.replace(tzinfo=UTC) - _EPOCH) // _MS >= time_ms:
                return instant
            local = change.later  # it happened the first time round
        return None

    def _beat(self, time_ms: int) -> datetime | None:
        """Return the first occurrence in UTC by the clock on the wall, whatever is done to it."""
        aware = (_EPOCH + time_ms * _MS).astimezone(self.zone)
        local = aware.replace(tzinfo=None, fold=0)
        change = _change_at(local, self.zone)
        if change is not None:
            if aware.fold == 0:
                found = self.cron.next_from(local)
                if found is not None and found < change.later:
                    return found - change.before
                local = change.earlier
            found = self.cron.next_from(local)
            if found is not None and found < change.later:
                return found - change.after
            local = change.later
        while (found := self.cron.next_from(local)) is not None and found.year < 9999:
            change = _change_at(found, self.zone)
            if change is None or not change.is_gap:
                return _in_utc(found, self.zone)
            local = change.later
        return None


def _in_utc(local: datetime, zone: ZoneInfo) -> datetime:
    """Return when a local time happens, for the first time, in UTC without its zone."""
    return local.replace(tzinfo=zone, fold=0).astimezone(UTC).replace(tzinfo=None)


@dataclass(frozen=True, slots=True)
class IntervalRule:
    """Every so often, counted from an anchor; the anchor itself is not an occurrence."""

    interval_ms: int
    anchor_ms: int

    def next_from(self, time_ms: int) -> Millis | None:
        """Return the first occurrence at or after a time."""
        turns = max(1, -(-(time_ms - self.anchor_ms) // self.interval_ms))
        return Millis(self.anchor_ms + turns * self.interval_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrenceRule:
    """What happens again and again, in [start_ms, end_ms), each up to `jitter_ms` later."""

    rule: CronRule | IntervalRule
    start_ms: int = 0
    end_ms: int | None = None
    jitter_ms: int = 0
    jitter_seed: int = 0

    def __post_init__(self) -> None:
        if self.jitter_ms < 0:
            raise BadInput(f"jitter_ms must not be negative (got {self.jitter_ms})")
        if self.jitter_ms > JITTER_MS_MAX:
            raise LimitExceeded("jitter_ms", JITTER_MS_MAX, got=self.jitter_ms)
        if self.end_ms is not None and self.end_ms <= self.start_ms:
            raise BadInput(f"end_ms must be after start_ms (got {self.end_ms})")

    def next_after(self, now_ms: int) -> Millis | None:
        """Return the first time after `now_ms`, or None if there is none any more."""
        occurrence = self._last_by(now_ms)
        if occurrence is None:
            occurrence = self._occurrence_from(now_ms + 1)
        while occurrence is not None:
            following = self._occurrence_from(occurrence + 1)
            time_ms = occurrence + self._jitter(occurrence, following)
            if time_ms > now_ms:
                return Millis(time_ms)
            occurrence = following
        return None

    def _occurrence_from(self, time_ms: int) -> Millis | None:
        found = self.rule.next_from(max(time_ms, self.start_ms))
        if found is None or (self.end_ms is not None and found >= self.end_ms):
            return None
        return found

    def _last_by(self, now_ms: int) -> Millis | None:
        """Return an occurrence shortly before now, whose jitter may reach past now."""
        if not self.jitter_ms:
            return None
        # Look back in growing steps, so that few occurrences lie between the one found and now.
        back_ms = SECOND_MS
        while True:
            back_ms = min(back_ms, self.jitter_ms)
            found = self._occurrence_from(now_ms - back_ms)
            if (found is not None and found <= now_ms) or back_ms == self.jitter_ms:
                return found
            back_ms *= 2

    def _jitter(self, occurrence: int, following: int | None) -> int:
        room = self.jitter_ms + 1
        for bound in (following, self.end_ms):
            if bound is not None:
                room = min(room, bound - occurrence)
        return mixed(self.jitter_seed, occurrence) % room


def mixed(seed: int, value: int) -> int:
    """Return 64 bits that look random and depend on both (the finalizer of SplitMix64)."""
    bits = (seed * 0x9E3779B97F4A7C15 + value) & _MASK
    bits = ((bits ^ bits >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ bits >> 27) * 0x94D049BB133111EB) & _MASK
    return bits ^ bits >> 31
