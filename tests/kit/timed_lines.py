"""Lines of messages as commands print them for people: place, when it was stored, value."""

import re

_LINE = re.compile(r"(\S+)  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d(  .*\n)")


def untimed(printed: str) -> str:
    """Return the lines without their times; fails if one has none."""
    lines = printed.splitlines(keepends=True)
    found = [_LINE.fullmatch(line) for line in lines]
    assert all(found), printed
    return "".join(match[1] + match[2] for match in found if match)
