"""What a JSON value must look like, and why one does not: rules made into Spark expressions.

A schema is written in one of three ways: as Spark's DDL (`id bigint not null, paid boolean`), as
Spark's JSON (`{"type": "struct", "fields": [...]}`), or as the part of JSON Schema that can be said
of one field at a time. Every rule gives one reason, and a row has the first that applies. All is
evaluated inside the JVM: no row becomes a Python object.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from waterclock.model.errors import BadInput

FIELDS_MAX = 1_000
_NAME = re.compile(r"[^'\"\\\[\]]+")

_WHOLE = ("BIGINT",)
_NUMBER = ("BIGINT", "DECIMAL", "DOUBLE", "FLOAT")
_SEEN_AS: list[tuple[type[T.DataType], str, tuple[str, ...]]] = [
    (T.BooleanType, "true or false", ("BOOLEAN",)),
    (T.IntegralType, "a whole number", _WHOLE),
    (T.NumericType, "a number", _NUMBER),
    (T.TimestampType, "a time", ("STRING",)),
    (T.TimestampNTZType, "a time", ("STRING",)),
    (T.DateType, "a date", ("STRING",)),
    (T.StringType, "text", ("STRING",)),
    (T.ArrayType, "an array as described", ("ARRAY",)),
    (T.StructType, "an object as described", ("OBJECT",)),
    (T.MapType, "an object as described", ("OBJECT",)),
]
_TYPES: dict[str, T.DataType] = {
    "string": T.StringType(),
    "integer": T.LongType(),
    "number": T.DoubleType(),
    "boolean": T.BooleanType(),
}
_KEYWORDS = {
    "type", "properties", "items", "minimum", "maximum", "enum", "pattern", "minLength",
    "maxLength", "format", "required", "additionalProperties",
}  # fmt: skip
_REMARKS = {"$schema", "$id", "title", "description", "examples", "default", "$comment"}


@dataclass(frozen=True, slots=True)
class FieldRule:
    """What one field must be."""

    name: str
    type: T.DataType
    is_required: bool = False
    limits: Mapping[str, Any] = field(default_factory=dict)
    """Keywords of JSON Schema beyond the type: minimum, maximum, enum, pattern, ..."""


@dataclass(frozen=True, slots=True)
class JsonRules:
    """What a whole value must be."""

    fields: tuple[FieldRule, ...]
    is_closed: bool = False
    """Fields that are not named are refused."""

    @property
    def struct(self) -> T.StructType:
        """The columns a value becomes."""
        return T.StructType([T.StructField(each.name, each.type) for each in self.fields])

    def reason(self, value: Column) -> Column:
        """Return why a value (binary) is refused; null if it is as it should be."""
        text = value.cast("string")
        parsed = F.try_parse_json(text)
        checks: list[tuple[str, Column]] = [
            ("there is no value", value.isNull()),
            ("not UTF-8", ~F.is_valid_utf8(text)),
            ("not JSON", parsed.isNull()),
            ("not a JSON object", ~F.schema_of_variant(parsed).startswith("OBJECT")),
        ]
        for each in self.fields:
            checks += _field_checks(each, parsed)
        if self.is_closed:
            known = F.array(*[F.lit(each.name) for each in self.fields]).cast("array<string>")
            others = F.array_except(F.json_object_keys(text), known)
            checks.append(("fields that are not described", F.size(others) > 0))
        # One chain, so that a later check never sees what an earlier one refused.
        first = F.when(checks[0][1], F.lit(checks[0][0]))
        return reduce(lambda chain, check: chain.when(check[1], F.lit(check[0])), checks[1:], first)


def load_rules(path: str) -> JsonRules:
    """Return the rules of a schema file; raise BadInput that says what is wrong with it."""
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"schema {path}: {error}") from error
    try:
        return parse_rules(text)
    except BadInput as error:
        raise BadInput(f"schema {path}: {error}") from error


def parse_rules(text: str) -> JsonRules:
    """Return the rules written in any of the three ways."""
    if not text.lstrip().startswith("{"):
        return _of_struct(_ddl(text))
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"not JSON: {error}") from error
    if "fields" in document:
        try:
            return _of_struct(T.StructType.fromJson(document))
        except Exception as error:  # whatever pyspark stumbles over first
            raise BadInput(f"not a schema of Spark: {error!r}") from error
    if "properties" in document:
        return _of_json_schema(document)
    raise BadInput("JSON with neither `fields` (Spark's) nor `properties` (JSON Schema)")


def _ddl(text: str) -> T.StructType:
    from pyspark.errors import PySparkException

    lines = [line.partition("--")[0] for line in text.splitlines()]
    try:
        found = T.StructType.fromDDL(" ".join(lines).strip().rstrip(","))
    except PySparkException as error:
        raise BadInput(f"not a schema in DDL: {str(error).strip().splitlines()[0]}") from error
    if not isinstance(found, T.StructType):
        raise BadInput("not a schema in DDL: write `name type, name type`")
    return found


def _of_struct(struct: T.StructType) -> JsonRules:
    return _rules(
        (FieldRule(each.name, each.dataType, not each.nullable) for each in struct.fields),
        is_closed=False,
    )


def _of_json_schema(document: Mapping[str, Any]) -> JsonRules:
    _check_keywords("", document)
    properties = document["properties"]
    if not isinstance(properties, dict):
        raise BadInput("properties must be an object of fields")
    required = set(document.get("required", ()))
    if unknown := required - set(properties):
        raise BadInput(f"required names {min(unknown)!r}, which properties does not have")
    return _rules(
        (
            FieldRule(name, _type_of(name, rule), name in required, _limits(rule))
            for name, rule in properties.items()
        ),
        is_closed=document.get("additionalProperties") is False,
    )


def _rules(fields: Iterator[FieldRule], *, is_closed: bool) -> JsonRules:
    rules = JsonRules(tuple(fields), is_closed)
    if not 0 < len(rules.fields) <= FIELDS_MAX:
        raise BadInput(f"a schema has 1 to {FIELDS_MAX} fields, not {len(rules.fields)}")
    for each in rules.fields:
        if not _NAME.fullmatch(each.name):
            raise BadInput(f"field {each.name!r}: quotes and brackets are not allowed in a name")
    return rules


def _type_of(name: str, rule: Any) -> T.DataType:  # noqa: ANN401 - JSON as a person wrote it
    if not isinstance(rule, dict):
        raise BadInput(f"field {name}: must be an object with a type")
    _check_keywords(name, rule)
    match rule.get("type"):
        case "string" if rule.get("format") == "date-time":
            return T.TimestampType()
        case "string" if rule.get("format") == "date":
            return T.DateType()
        case "object" if rule.get("properties"):
            inner = rule["properties"].items()
            return T.StructType(
                [T.StructField(each, _type_of(f"{name}.{each}", part)) for each, part in inner]
            )
        case "object":
            return T.MapType(T.StringType(), T.VariantType())
        case "array":
            items = rule.get("items")
            return T.ArrayType(_type_of(f"{name}[]", items) if items else T.VariantType())
        case str(known) if known in _TYPES:
            return _TYPES[known]
        case other:
            raise BadInput(
                f"field {name}: type is {other!r}; it may be {', '.join(_TYPES)}, object or array"
            )


def _check_keywords(name: str, rule: Mapping[str, Any]) -> None:
    """Refuse what we would not check: a rule that is silently ignored is none."""
    for keyword in rule:
        if keyword not in _KEYWORDS | _REMARKS:
            where = f"field {name}: " if name else ""
            raise BadInput(f"{where}{keyword!r} is not supported; there are {sorted(_KEYWORDS)}")


def _limits(rule: Mapping[str, Any]) -> dict[str, Any]:
    names = ("minimum", "maximum", "enum", "pattern", "minLength", "maxLength")
    return {name: rule[name] for name in names if name in rule}


def _field_checks(rule: FieldRule, parsed: Column) -> Iterator[tuple[str, Column]]:
    path = f"$['{rule.name}']"
    raw = F.variant_get(parsed, path, "variant")
    kind = F.schema_of_variant(raw)
    is_absent = raw.isNull() | (kind == "VOID")
    if rule.is_required:
        yield f"field {rule.name}: is missing", is_absent
    noun, kinds = _seen_as(rule.type)
    if kinds:
        found = F.try_variant_get(parsed, path, rule.type.simpleString())
        fits = reduce(lambda one, other: one | other, [kind.startswith(each) for each in kinds])
        yield f"field {rule.name}: is not {noun}", ~is_absent & (~fits | found.isNull())
    yield from _limit_checks(rule, parsed, path)


def _limit_checks(rule: FieldRule, parsed: Column, path: str) -> Iterator[tuple[str, Column]]:
    number = F.try_variant_get(parsed, path, "double")
    text = F.try_variant_get(parsed, path, "string")
    for name, limit in rule.limits.items():
        match name:
            case "minimum":
                yield f"field {rule.name}: is below {limit}", number < F.lit(float(limit))
            case "maximum":
                yield f"field {rule.name}: is above {limit}", number > F.lit(float(limit))
            case "minLength":
                yield f"field {rule.name}: is too short", F.length(text) < int(limit)
            case "maxLength":
                yield f"field {rule.name}: is too long", F.length(text) > int(limit)
            case "pattern":
                yield f"field {rule.name}: is not of its pattern", ~text.rlike(str(limit))
            case "enum":
                allowed = [each if isinstance(each, str) else json.dumps(each) for each in limit]
                yield f"field {rule.name}: is none of its values", ~text.isin(allowed)


def _seen_as(wanted: T.DataType) -> tuple[str, tuple[str, ...]]:
    """Return what a type is called, and how Spark calls the JSON that may become it."""
    for kind, noun, seen in _SEEN_AS:
        if isinstance(wanted, kind):
            return noun, seen
    return "", ()  # variant: anything
