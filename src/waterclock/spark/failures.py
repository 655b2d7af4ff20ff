"""What went wrong in a job, in one line.

An error of a task comes to the driver inside Java's stack traces inside Python's. What a person can
act on is the line in which one of our own errors speaks; without one, what Spark says first.
"""

import re

LINE_CHARS_MAX = 500

_OURS = re.compile(r"^\s*waterclock\.[\w.]*?(\w+): (.+)$", re.MULTILINE)
_PYTHONS = re.compile(r"^\s*(\w+(?:Error|Exception|Exit)): (.+)$", re.MULTILINE)


def failure_line(error: BaseException) -> str:
    """Return what a person should read of an error that came out of Spark."""
    text, line = str(error), ""
    if ours := _OURS.findall(text):
        line = ours[-1][1]
    elif pythons := _PYTHONS.findall(text):
        line = ": ".join(pythons[-1])
    else:
        line = text.strip().partition("\n")[0] or type(error).__name__
    return line.strip()[:LINE_CHARS_MAX]
