"""What requests say, read into types: parameters of path and query, and the body as JSON.

A type is a msgspec struct; its bounds are checked here and stand in the OpenAPI description, so
that the two cannot differ. What a text must be is checked by whoever reads it later
(`http_checks.py`). What does not fit is a `BadField` that names the field.
"""

import re
from functools import cache
from typing import Any, TypeVar, cast
from urllib.parse import unquote_to_bytes

import msgspec

from waterclock.server.http.checks import check_texts
from waterclock.server.http.messages import Request
from waterclock.server.http.problems import BadField

Model = TypeVar("Model")

END = r"$(?!\n)"
"""How a pattern ends: to Python, `$` alone is also before a newline at the end of a text."""

_WHERE = re.compile(r"(.*) - at `(?:key in )?\$\.?(.*)`", re.DOTALL)
_FLOAT_FOR_INT = re.compile(r"Expected `int\b.*`, got `float`")
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


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
    """Return the parameters of path and query as a struct."""
    given = query_of(request)
    for name in request.params:
        if name in given:
            raise BadField(name, "stands in the path")
    try:
        asked = msgspec.convert({**given, **request.params}, model, strict=False)
    except msgspec.ValidationError as error:
        raise bad_field(error, "query") from None
    check_texts(asked)
    return asked


def body_of(request: Request, model: type[Model]) -> Model:
    """Return the body, which must be JSON whatever its type is called, as a struct."""
    given = _body_of(request, model)
    check_texts(given)
    return cast(Model, given)


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
