"""What a text of a request must be beyond its type, said with the type and checked when it comes.

    Duration = Annotated[str, text(parse_duration, "A length of time.", "90s", "1h30m")]

The check is the same function that reads the text afterwards, and that gRPC, the client and the
command line use: there is no second opinion. What it refuses is a `BadField` that names the field
and shows what would be accepted; descriptions of the API get `schema`, for machines.

What depends on the time of day is only `described`, and read once, by `read_text`: "18:00 today" is
a time or has passed, and who checks it has to know the time.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Meta
from msgspec import inspect as types

from waterclock.model.errors import BadInput
from waterclock.server.http.problems import BadField

T = TypeVar("T")
Check = Callable[[str], object]
"""Raises BadInput."""
Walk = Callable[[Any, str], None]
"""Checks a value at a path of a request."""

LIMIT = "limits."
"""Begins a number of a schema that is a limit of the configuration; see `with_limits`."""
_OF_WHAT = re.compile(r"(?:(?:time|duration|when|cron): )+|(?:duration|when) (?=exceeds )")


def text(check: Check, description: str, *examples: str, **schema: object) -> Meta:
    """Describe a text that a function accepts or refuses."""
    return Meta(
        description=description,
        examples=list(examples) or None,
        extra={"check": check, "examples": examples},
        extra_json_schema=schema,
    )


def described(description: str, *examples: str, **schema: object) -> Meta:
    """Describe a text that is not checked before it is read; see `read_text`."""
    return Meta(description=description, examples=list(examples) or None, extra_json_schema=schema)


def read_text(read: Callable[[], T], field: str, *examples: str) -> T:
    """Read a text; what is refused is a BadField of the field, and shows what is accepted."""
    try:
        return read()
    except BadInput as error:
        raise _refused(field, error, examples) from error


def matching(pattern: str, description: str, *examples: str) -> Meta:
    """Describe a text of a form that only a pattern tells; nobody is shown the pattern."""
    form = re.compile(pattern)

    def check(given: str) -> None:
        if form.search(given) is None:
            raise BadInput("is not of the form it has in an answer")

    return text(check, description, *examples, pattern=pattern)


def check_texts(value: object) -> None:
    """Raise BadField for the first text, in a struct that was just decoded, that is refused."""
    _inner(type(value), value, "")


@cache
def _walk_of(model: Any) -> Walk | None:  # noqa: ANN401 - mypy takes no class for hashable
    """Return what checks a struct, None if there is nothing to check in it."""
    if not issubclass(model, msgspec.Struct):
        return None
    found = types.type_info(model)
    assert isinstance(found, types.StructType)
    parts: list[tuple[str, str, Walk]] = []
    for field in found.fields:
        walk = _walk(field.type)
        if walk is not None:
            parts.append((field.name, field.encode_name, walk))
    if not parts:
        return None

    def walk_all(value: Any, path: str) -> None:  # noqa: ANN401 - any struct
        for name, encoded_name, walk in parts:
            given = getattr(value, name)
            if given is not UNSET and given is not None:
                walk(given, f"{path}.{encoded_name}" if path else encoded_name)

    return walk_all


def _walk(kind: types.Type) -> Walk | None:
    match kind:
        case types.Metadata(type=inner, extra=extra):
            if extra and "check" in extra:
                return _checked(extra["check"], extra["examples"])
            return _walk(inner)
        case types.UnionType(types=parts):
            found = [walk for walk in map(_walk, parts) if walk is not None]
            assert len(found) <= 1, "a union in which two are checked"
            return found[0] if found else None
        case types.ListType(item_type=inner) | types.VarTupleType(item_type=inner):
            return _each(_walk(inner))
        case types.StructType(cls=model):
            # Asked when it is needed: a struct may hold others of its own kind.
            return lambda value, path: _inner(model, value, path)
        case _:
            return None


def _inner(model: type, value: object, path: str) -> None:
    walk = _walk_of(model)
    if walk is not None:
        walk(value, path)


def _each(walk: Walk | None) -> Walk | None:
    if walk is None:
        return None

    def walk_each(values: Sequence[Any], path: str) -> None:
        for index, value in enumerate(values):
            walk(value, f"{path}[{index}]")

    return walk_each


def _checked(check: Check, examples: Sequence[str]) -> Walk:
    def walk(value: str, path: str) -> None:
        try:
            check(value)
        except BadInput as error:
            raise _refused(path, error, examples) from error

    return walk


def _refused(field: str, error: BadInput, examples: Sequence[str]) -> BadField:
    said = str(error)
    if (prefix := _OF_WHAT.match(said)) is not None:
        said = said[prefix.end() :]
    # Most say themselves what would be accepted.
    if examples and not any(example in said for example in examples):
        said += f"; accepted is, for example, {' or '.join(examples)}"
    return BadField(field, said)


def with_limits(schema: Any, limits: dict[str, int]) -> Any:  # noqa: ANN401 - any JSON
    """Return a description with the node's own limits in place of their names."""
    match schema:
        case dict():
            return {name: with_limits(value, limits) for name, value in schema.items()}
        case list() | tuple():
            return [with_limits(value, limits) for value in schema]
        case str() if schema.startswith(LIMIT) and schema[len(LIMIT) :] in limits:
            return limits[schema[len(LIMIT) :]]
        case _:
            return schema
