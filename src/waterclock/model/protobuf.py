"""Views to protobuf and back, by the names of their fields.

A struct or dataclass and a protobuf message that mean the same have fields of the same names, so
one function each way does for all. What is None is absent. Structs nest as messages, tuples are
repeated; a `dict[int, int]` of offsets by partition is a repeated `Position`. How to convert is
worked out once for each type.
"""

import dataclasses
from collections.abc import Callable, Iterable
from enum import IntEnum
from functools import cache, partial
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from google.protobuf.message import Message

Proto = TypeVar("Proto", bound=Message)
Kind = TypeVar("Kind")
Convert = Callable[[Any], Any]
Type = Any
"""A type as an annotation has it, or a class of messages: typing has no word for these."""
Field = Any
"""A protobuf field's description; each implementation of protobuf has a class of its own."""


def to_proto(view: object, kind: type[Proto]) -> Proto:
    """Return a protobuf message whose fields are those of the view."""
    written: Type = kind  # mypy holds classes for unhashable, and caches want what is not
    fields = {}
    for name, convert in _writers(written):
        value = getattr(view, name)
        if value is not None:
            fields[name] = convert(value) if convert else value
    return kind(**fields)


def from_proto(message: Message, kind: type[Kind]) -> Kind:
    """Return a view whose fields are those of the protobuf message."""
    made: Type = kind
    given: Type = type(message)
    return kind(**{name: read(message) for name, read in _readers(made, given)})


@cache
def _writers(kind: Type) -> list[tuple[str, Convert | None]]:
    return [(field.name, _writer(field)) for field in kind.DESCRIPTOR.fields]


def _writer(field: Field) -> Convert | None:
    if field.message_type is None or _is_map(field):
        return None
    kind = field.message_type._concrete_class
    if not field.is_repeated:
        return partial(to_proto, kind=kind)

    def write(values: Iterable[object]) -> list[Message]:
        if isinstance(values, dict):
            return [kind(partition=number, offset=at) for number, at in values.items()]
        return [to_proto(value, kind) for value in values]

    return write


@cache
def _readers(kind: Type, message: Type) -> list[tuple[str, Convert]]:
    hints, fields = get_type_hints(kind), message.DESCRIPTOR.fields_by_name
    if issubclass(kind, msgspec.Struct):
        names = kind.__struct_fields__
    else:
        names = tuple(field.name for field in dataclasses.fields(kind))
    return [(name, _reader(fields[name], hints[name])) for name in names]


def _reader(field: Field, hint: Type) -> Convert:
    name = field.name
    is_optional = NoneType in get_args(hint)
    if is_optional:
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    convert = _converter(field, hint)
    if not is_optional:
        return lambda message: convert(getattr(message, name))
    if field.has_presence:
        return lambda message: convert(getattr(message, name)) if message.HasField(name) else None
    return lambda message: convert(getattr(message, name)) or None


def _converter(field: Field, hint: Type) -> Convert:
    origin: object = get_origin(hint)
    if _is_map(field):
        return dict
    if origin is dict:
        return lambda values: {value.partition: value.offset for value in values}
    if origin is tuple:
        item = get_args(hint)[0]
        if not _has_fields(item):
            return tuple
        return lambda values: tuple(from_proto(value, item) for value in values)
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return hint
    return partial(from_proto, kind=hint) if _has_fields(hint) else lambda value: value


def _has_fields(hint: Type) -> bool:
    return dataclasses.is_dataclass(hint) or (
        isinstance(hint, type) and issubclass(hint, msgspec.Struct)
    )


def _is_map(field: Field) -> bool:
    # Its options say so too, but to read them loads the description of descriptions.
    entry = field.message_type
    return (
        entry is not None
        and entry.has_options
        and entry.name.endswith("Entry")
        and [each.name for each in entry.fields] == ["key", "value"]
    )
