"""Names people give to topics, groups, members, replays and recurrences: one alphabet for all.

A name becomes part of a folder's name, of a metric's label and of a URL, so it has none of the
characters that mean something there. Names that begin with two underscores are the node's own.
"""

import re

from waterclock.model.errors import BadInput

NAME_CHARS_MAX = 200
DEAD_LETTERS = ".dlq"
INTERNAL = "__"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*", re.ASCII)


def is_own(topic: str) -> bool:
    """Say if a topic is the node's own: people read it, and only the node writes it."""
    return topic.startswith(INTERNAL)


def check_topic_name(name: str) -> None:
    """Raise BadInput unless this can be the name of a topic that people write.

    That of its dead letters may be longer, by their suffix: every topic can have some.
    """
    check_any_topic_name(name)
    check_not_own(name)


def check_not_own(topic: str) -> None:
    """Raise BadInput if a topic is the node's own."""
    if topic.startswith(INTERNAL):
        raise _own("topic", topic)


def check_any_topic_name(name: str) -> None:
    """Raise BadInput unless this can be the name of a topic, which may be the node's own."""
    is_dead = name.endswith(DEAD_LETTERS)
    _check_text("topic", name, NAME_CHARS_MAX + (len(DEAD_LETTERS) if is_dead else 0))


def check_name(what: str, name: str, *, chars_max: int = NAME_CHARS_MAX) -> None:
    """Raise BadInput unless this can be the name of a `what`; see `check_topic_name`."""
    _check_text(what, name, chars_max)
    if name.startswith(INTERNAL):
        raise _own(what, name)


def _check_text(what: str, name: str, chars_max: int) -> None:
    if not name:
        raise BadInput(f"{what} has no name")
    if len(name) > chars_max:
        raise BadInput(f"{what} name has {len(name)} characters; at most {chars_max}")
    if not _NAME.fullmatch(name):
        shown = ascii(name[:50])
        raise BadInput(
            f"{what} name {shown}: only letters, digits, _ . - and the last two not first, "
            "such as orders-eu.v2"
        )


def _own(what: str, name: str) -> BadInput:
    return BadInput(f"{what} name {name!r}: two underscores at the start are the node's own")
