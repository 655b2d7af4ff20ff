"""The part of YAML a configuration needs: mappings, lists and text. The rest is refused.

- Scalars stay text, since only the setting knows what they mean. So a node named `no` is not
  False, a version `1.10` is not 1.1, and a file reads as the environment does, which has only
  text. An unquoted `null`, `~` or nothing at all is None.
- No aliases (a few lines of them can unfold to gigabytes), no tags, no key given twice, and one
  document.
- Length and depth are bounded before memory is spent on them.

It reads parser events, lazily, so a hostile file is refused where it turns hostile. Every refusal
is a BadConfig.
"""

from collections.abc import Iterator
from typing import Never, TypeAlias

import yaml
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    DocumentStartEvent,
    Event,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from waterclock.model.errors import BadConfig

Plain: TypeAlias = "str | list[Plain] | dict[str, Plain] | None"

TEXT_CHARS_MAX = 64 * 1024
"""Longest file. A complete one has 4 KiB; reading 64 KiB takes about 0.3 s."""

DEPTH_MAX = 8
"""Deepest nesting. Ours needs 3; the rest lets the error name the setting instead of the depth."""

KEY_CHARS_MAX = 100
"""Longest key. Keys are names, and appear in errors."""

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})


def read_yaml(text: str) -> Plain:
    """Return the one document of `text`, or None if there is none; raise BadConfig."""
    if len(text) > TEXT_CHARS_MAX:
        raise BadConfig("file", f"has {len(text)} characters, at most {TEXT_CHARS_MAX} are read")
    try:
        return _document(yaml.parse(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise BadConfig("file", f"{line}{error.problem}") from error
    # The others are PyYAML's own slips, such as chr() of an escape beyond Unicode.
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise BadConfig("file", f"is not YAML: {error}") from error


def _document(events: Iterator[Event]) -> Plain:
    root: Plain = None
    documents = 0
    for event in events:
        if isinstance(event, DocumentStartEvent):
            documents += 1
            if documents > 1:
                _refuse(event, (), "has a second document, only one is read")
        elif isinstance(event, NodeEvent):
            root = _node(event, events, ())
        elif isinstance(event, StreamEndEvent):
            break
    return root


def _node(event: Event, events: Iterator[Event], path: tuple[str, ...]) -> Plain:
    if isinstance(event, AliasEvent):
        _refuse(event, path, "is an alias, write the value out")
    if getattr(event, "tag", None) is not None:
        _refuse(event, path, "has a tag, remove it")
    if len(path) > DEPTH_MAX:
        _refuse(event, path, f"is nested deeper than {DEPTH_MAX} levels")
    match event:
        case ScalarEvent():
            is_plain = event.style is None
            return None if is_plain and event.value in _NULLS else str(event.value)
        case SequenceStartEvent():
            return [_node(item, events, (*path, "[]")) for item in _until_end(events)]
        case MappingStartEvent():
            return _mapping(events, path)
    raise AssertionError(f"unexpected {event}")


def _mapping(events: Iterator[Event], path: tuple[str, ...]) -> dict[str, Plain]:
    mapping: dict[str, Plain] = {}
    for key in _until_end(events):
        if not isinstance(key, ScalarEvent) or key.tag is not None:
            _refuse(key, path, "has a key that is not text")
        if len(key.value) > KEY_CHARS_MAX or not key.value.isprintable():
            _refuse(key, path, "has a key that is no name")
        inner = (*path, key.value)
        if key.value in mapping:
            _refuse(key, inner, "is given twice")
        mapping[key.value] = _node(next(events), events, inner)
    return mapping


def _until_end(events: Iterator[Event]) -> Iterator[Event]:
    """Yield the first event of each child; the caller takes the child's other events."""
    for event in events:
        if isinstance(event, CollectionEndEvent):
            return
        yield event


def _refuse(event: Event, path: tuple[str, ...], problem: str) -> Never:
    where = ".".join(path) or "file"
    line = event.start_mark.line + 1 if event.start_mark else "unknown"
    raise BadConfig(where, f"{problem} (line {line})")
