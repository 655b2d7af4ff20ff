"""Failures of a user's function, reported by kind: the first of each at once, then how many more.

A handler with a typo fails for every message. Whoever wrote it must see the traceback of the first
failure at once, and must not see a million of them. Two failures are of one kind if they have the
same type and came from the same line. How often the others happened is told after ten seconds, then
after twenty, and so on up to ten minutes. This decides what to say; the caller logs it.
"""

from dataclasses import dataclass

AGAIN_S = 10.0
AGAIN_S_MAX = 600.0
KINDS_MAX = 100
"""Kinds that are told apart; a function that makes up more has what is beyond told as one."""


@dataclass(frozen=True, slots=True)
class FailureReport:
    """What is to be said now."""

    text: str
    is_first: bool
    """Tell its traceback too."""


@dataclass(slots=True)
class _Kind:
    unreported: int
    reported_at_s: float
    wait_s: float = AGAIN_S


class FailureKinds:
    """The failures of one function."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], _Kind] = {}
        self.count = 0
        """Failures in all."""
        self.in_a_row = 0
        """Failures since something last went well."""
        self.last_error = ""
        """The last of them, and where it came from; empty if there was none."""

    def succeeded(self) -> None:
        """Note that something went well."""
        self.in_a_row = 0

    def failed(self, error: BaseException, now_s: float) -> FailureReport | None:
        """Note a failure, at a time of a monotonic clock; return what is to be said of it."""
        place = place_of(error)
        text = error_text(error)
        self.count += 1
        self.in_a_row += 1
        self.last_error = f"{text}, {place}" if place else text
        key = (type(error).__name__, place)
        if key not in self._kinds and len(self._kinds) >= KINDS_MAX:
            key = ("others", "")
        kind = self._kinds.get(key)
        if kind is None:
            self._kinds[key] = _Kind(0, now_s)
            return FailureReport(self.last_error, is_first=True)
        kind.unreported += 1
        if now_s - kind.reported_at_s < kind.wait_s:
            return None
        since_s = now_s - kind.reported_at_s
        report = FailureReport(
            f"{self.last_error}; {kind.unreported} more of this kind in {since_s:.0f} s",
            is_first=False,
        )
        kind.unreported, kind.reported_at_s = 0, now_s
        kind.wait_s = min(2 * kind.wait_s, AGAIN_S_MAX)
        return report


def error_text(error: BaseException) -> str:
    """Return an error in one line, also one that cannot say what it is."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = ""
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def place_of(error: BaseException) -> str:
    """Return the line an error came from, as "module.py:12 in function"; empty if nobody raised it.

    The innermost line is taken that is not of Python's own or an installed library: that is where
    one's own code is wrong, or called what failed.
    """
    found = ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        *folders, name = code.co_filename.replace("\\", "/").split("/")
        is_library = any(each == "site-packages" or each[:7] == "python3" for each in folders)
        if not found or not is_library:
            found = f"{name}:{trace.tb_lineno} in {code.co_name}"
        trace = trace.tb_next
    return found
