"""Requests read into types: parameters of path and query, and the body as JSON.

A type is a msgspec struct. Its bounds are checked here and stand in the OpenAPI description, so
that the two cannot differ. What a text must be beyond its type is said with the type:

    Duration = Annotated[str, text(parse_duration, "A length of time.", "90s", "1h30m")]

The check is the same function that reads the text afterwards, and that gRPC, the client and the
command line use: there is no second opinion. What depends on the time of day is only `described`,
and read once, by `read_text`: "18:00 today" is a time or has passed, and its check needs the clock.

What does not fit is a `BadField` that names the field and shows what would be accepted.
"""

import re
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar, cast
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import UNSET, Meta
from msgspec import inspect as types

from waterclock.model.errors import BadInput
from waterclock.server.http.messages import Request
from waterclock.server.http.problems import BadField

T = TypeVar("T")
Check = Callable[[str], object]
"""Raises BadInput."""
Walk = Callable[[Any, str], None]
"""Checks a value at a path of a request."""
Model = TypeVar("Model")

END = r"$(?!\n)"
"""How a pattern ends: to Python, `$` alone is also before a newline at the end of a text."""

_WHERE = re.compile(r"(.*) - at `(?:key in )?\$\.?(.*)`", re.DOTALL)
_FLOAT_FOR_INT = re.compile(r"Expected `int\b.*`, got `float`")
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
LIMIT = "limits."
"""Begins a number of a schema that is a limit of the configuration; see `openapi.py`."""
_OF_WHAT = re.compile(r"(?:(?:time|duration|when|cron|acks): )+|(?:duration|when) (?=exceeds )")


def query_of(request: Request) -> dict[str, str]:
    """Return the parameters of the query, decoded; raise BadField if one is given twice."""
    found: dict[str, str] = {}
    if not request.query:
        return found
    for pair in request.query.split(b"&"):
        name, _, value = pair.partition(b"=")
        key = _decoded("query", name)
        if key in found:
            raise BadField(key, "is given twice")
        if key or value:
            found[key] = _decoded(key, value)
    return found


def _decoded(field: str, raw: bytes) -> str:
    if b"+" in raw:
        raw = raw.replace(b"+", b" ")
    if b"%" in raw:
        if _BAD_ESCAPE.search(raw):
            raise BadField(field, "a % is not followed by two hexadecimal digits")
        raw = unquote_to_bytes(raw)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BadField(field, "is not UTF-8") from None


def parameters_of(request: Request, model: type[Model]) -> Model:
    """Return the parameters of path and query as a struct; they are read once."""
    if type(request.parameters) is model:
        return request.parameters
    given = query_of(request)
    for name in request.params:
        if name in given:
            raise BadField(name, "stands in the path")
    try:
        asked = msgspec.convert({**given, **request.params}, model, strict=False)
    except msgspec.ValidationError as error:
        raise bad_field(error, "query") from None
    check_texts(asked)
    request.parameters = asked
    return asked


def body_of(request: Request, model: type[Model]) -> Model:
    """Return the body, which must be JSON whatever its type is called, as a struct; it is read
    once."""
    if type(request.content) is model:
        return request.content
    decode, walk = _reading(cast(Hashable, model))
    try:
        given = decode(request.body)
    except (ValueError, RecursionError):
        given = _body_of(request, model)
    if walk is not None:
        walk(given, "")
    request.content = given
    return cast(Model, given)


@cache
def _reading(model: Any) -> tuple[Callable[[bytes], Any], Walk | None]:  # noqa: ANN401
    """Return what decodes a body, and what checks it afterwards."""
    return _decoder(model).decode, _walk_of(model)


def _body_of(request: Request, kind: Any) -> Any:  # noqa: ANN401 - of the kind
    if not request.body:
        raise BadField("body", "is empty; it must be JSON")
    try:
        try:
            return _decoder(kind).decode(request.body)
        except msgspec.ValidationError as error:
            if not _FLOAT_FOR_INT.match(str(error)):
                raise
            # JSON has one kind of number: 5.0 is 5. What is kept as it was written stays so.
            return _decoder(kind, is_strict=False).decode(request.body)
    except msgspec.ValidationError as error:
        raise bad_field(error, "body") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadField("body", f"is not JSON: {error}") from None
    except RecursionError:
        raise BadField("body", "is nested too deeply") from None


@cache
def _decoder(model: Any, *, is_strict: bool = True) -> "msgspec.json.Decoder[Any]":  # noqa: ANN401
    return msgspec.json.Decoder(model, strict=is_strict)


def bad_field(error: msgspec.ValidationError, whole: str) -> BadField:
    """Return the error with the field it speaks of; `whole` if it speaks of none."""
    text = str(error)
    found = _WHERE.fullmatch(text)
    said, field = (found[1], found[2]) if found is not None else (text, "")
    return BadField(field or _unknown(said) or whole, said[:1].lower() + said[1:])


def _unknown(said: str) -> str:
    """Return the field of which msgspec says that it is missing or unknown, if it does."""
    named: Any = re.search(r"field `(.*?)`", said)
    return named[1] if named is not None else ""


# What a text must be beyond its type


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
    walks = [(field, walk) for field in found.fields if (walk := _walk(field.type)) is not None]
    if not walks:
        return None
    # With two names or more it returns a tuple; the last one is not looked at.
    values_of = attrgetter(*(field.name for field, _ in walks), "__class__")
    parts = [(field.encode_name, walk) for field, walk in walks]

    def walk_all(value: Any, path: str) -> None:  # noqa: ANN401 - any struct
        for given, (name, walk) in zip(values_of(value), parts, strict=False):
            if given is not UNSET and given is not None:
                walk(given, f"{path}.{name}" if path else name)

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
