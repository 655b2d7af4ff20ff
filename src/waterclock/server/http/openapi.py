"""The OpenAPI 3.1 description of the table of operations: made from it, so it cannot differ.

Types are described by msgspec, which also checks them when a request comes: what the description
forbids is refused, and what it allows is taken.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from types import UnionType
from typing import Any, get_args

import msgspec

from waterclock.server.http.messages import PROBLEM
from waterclock.server.http.operations import Operation, Told
from waterclock.server.http.routes import PREFIX

REF = "#/components/schemas/{name}"
ALWAYS = (400, 429, 500, 503)
"""Problems that any operation may answer with."""
WITH_BODY = (413,)

Json = dict[str, Any]


class Problem(msgspec.Struct, omit_defaults=True):
    """What went wrong (RFC 9457)."""

    title: str
    status: int
    detail: str
    error: str = ""
    """The error's name, the same over gRPC."""
    field: str = ""
    """What of the request is wrong."""
    limit: int = 0
    """What the field may be at most."""
    got: int | None = None


def describe(operations: Sequence[Operation], *, title: str, version: str) -> Json:
    """Return the description."""
    shapes = [Problem, *_shapes(operations)]
    schemas, components = msgspec.json.schema_components(shapes, ref_template=REF)
    schema_of = dict(zip(map(id, shapes), schemas, strict=True))

    def schema(shape: object) -> Json:
        parts = _parts(shape)
        if len(parts) > 1:
            return {"anyOf": [schema(one) for one in parts]}
        return dict(schema_of[id(shape)])

    parameter_names = {one.parameters.__name__ for one in operations if one.parameters is not None}
    paths: Json = {}
    for operation in operations:
        described = _operation(operation, schema, components)
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "servers": [{"url": "/"}, {"url": PREFIX.decode()}],
        "paths": paths,
        "components": {
            "schemas": {n: s for n, s in components.items() if n not in parameter_names}
        },
    }


def _shapes(operations: Iterable[Operation]) -> list[Any]:
    found: list[Any] = []
    for operation in operations:
        told = [one.shape for one in operation.answers.values()]
        for shapes in (operation.parameters, operation.body, *told):
            for shape in _parts(shapes):
                if shape is not None and not any(shape is one for one in found):
                    found.append(shape)
    return found


def _parts(shape: object) -> tuple[Any, ...]:
    """Return the types of which a body is one: msgspec knows no union of structs."""
    if isinstance(shape, tuple):
        return shape
    return get_args(shape) if isinstance(shape, UnionType) else (shape,)


def _operation(operation: Operation, schema: Any, components: Json) -> Json:  # noqa: ANN401
    described: Json = {
        "operationId": operation.name,
        "tags": [operation.tag],
        "summary": operation.summary,
    }
    if operation.description:
        described["description"] = operation.description
    if operation.parameters is not None:
        struct = components[operation.parameters.__name__]
        described["parameters"] = list(_parameters(operation.path, struct))
    if operation.body is not None:
        content: Json = {"schema": schema(operation.body)}
        if operation.body_example is not None:
            content["example"] = operation.body_example
        described["requestBody"] = {"required": True, "content": {"application/json": content}}
    answers = {status: _answer(told, schema) for status, told in operation.answers.items()}
    with_body = WITH_BODY if operation.body is not None else ()
    for status in (*ALWAYS, *with_body, *operation.problems):
        answers.setdefault(status, _problem(status))
    described["responses"] = {str(status): answers[status] for status in sorted(answers)}
    return described


def _parameters(path: str, struct: Json) -> Iterable[Json]:
    in_path = re.findall(r"{(\w+)}", path)
    required = struct.get("required", ())
    for name, property_ in struct["properties"].items():
        schema = dict(property_)
        made: Json = {"name": name, "in": "path" if name in in_path else "query"}
        if "description" in schema:
            made["description"] = schema.pop("description")
        if name in required:
            made["required"] = True
        yield {**made, "schema": schema}
    missing = set(in_path) - set(struct["properties"])
    assert not missing, f"{path}: no parameter {missing}"


def _answer(told: Told, schema: Any) -> Json:  # noqa: ANN401
    answer: Json = {"description": told.description}
    content_type = told.content_type.decode().partition(";")[0]
    if told.shape is not None:
        answer["content"] = {content_type: {"schema": schema(told.shape)}}
    elif content_type != "application/json":
        answer["content"] = {content_type: {}}
    return answer


def _problem(status: int) -> Json:
    content: Mapping[str, Json] = {
        PROBLEM.decode(): {"schema": {"$ref": REF.format(name="Problem")}}
    }
    return {"description": HTTPStatus(status).phrase, "content": content}
