"""The OpenAPI 3.1 description of the table of operations: made from it, so it cannot differ.

GET /openapi.json    the description, for programs
GET /docs            the same for people

Types are described by msgspec, which also checks them when a request comes: what the description
forbids is refused, and what it allows is taken.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from http import HTTPStatus
from types import UnionType
from typing import Any, get_args

import msgspec

import waterclock
from waterclock.model.limits import Limits
from waterclock.security.rights import OPEN
from waterclock.server.http.docs_page import PAGE_HEADERS, page_of
from waterclock.server.http.input import LIMIT
from waterclock.server.http.messages import HTML, JSON, PROBLEM, Request, Response
from waterclock.server.http.operations import Operation, ResponseSpec
from waterclock.server.http.routes import PREFIX

REF = "#/components/schemas/{name}"
ALWAYS = (400, 429, 500, 503)
"""Problems that any operation may response with."""
WITHOUT_RIGHT = (401, 403)
"""On a secure node."""
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


def with_description(
    table: Sequence[Operation], limits: Limits, now_ms: int, *, ring_messages_max: int
) -> list[Operation]:
    """Return the table with what describes it, itself included, and the limits of the node."""
    made: dict[str, Response] = {}

    def openapi(_: Request) -> Response:
        return made["openapi"]

    def docs(_: Request) -> Response:
        return made["docs"]

    whole = [
        *table,
        Operation(
            "GET",
            "/openapi.json",
            openapi,
            name="openapi",
            summary="This description.",
            responses={200: ResponseSpec("OpenAPI 3.1.", dict[str, Any])},
            is_linkable=True,
            needs=OPEN,
        ),
        Operation(
            "GET",
            "/docs",
            docs,
            name="docs",
            summary="The same as a page.",
            responses={200: ResponseSpec("A page.", content_type=HTML)},
            is_linkable=True,
            needs=OPEN,
        ),
    ]
    numbers = {
        **asdict(limits),
        "due_ms_max": now_ms + limits.due_horizon_ms_max,
        "ring_messages_max": ring_messages_max,
    }
    description = _with_limits(
        describe(whole, title="Waterclock", version=waterclock.__version__), numbers
    )
    made["openapi"] = Response(200, msgspec.json.encode(description), JSON)
    made["docs"] = Response(200, page_of(description), HTML, PAGE_HEADERS)
    return whole


def describe(operations: Sequence[Operation], *, title: str, version: str) -> Json:
    models = [Problem, *_models(operations)]
    schemas, components = msgspec.json.schema_components(models, ref_template=REF)
    schema_of = dict(zip(map(id, models), schemas, strict=True))

    def schema(model: object) -> Json:
        parts = _parts(model)
        if len(parts) > 1:
            return {"anyOf": [schema(one) for one in parts]}
        return dict(schema_of[id(model)])

    parameter_names = {one.parameters.__name__ for one in operations if one.parameters is not None}
    paths: Json = {}
    prefix = PREFIX.decode()
    own = {one.path.removeprefix(prefix) for one in operations if one.path.startswith(prefix)}
    for operation in operations:
        described = _operation(operation, schema, components)
        if operation.path.removeprefix(prefix) in own:  # one thing here, another below the prefix
            described["servers"] = [{"url": "/"}]
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


def _with_limits(schema: Any, limits: dict[str, int]) -> Any:  # noqa: ANN401 - any JSON
    """Return a description with the node's own limits in place of their names."""
    match schema:
        case dict():
            return {name: _with_limits(value, limits) for name, value in schema.items()}
        case list() | tuple():
            return [_with_limits(value, limits) for value in schema]
        case str() if schema.startswith(LIMIT) and schema[len(LIMIT) :] in limits:
            return limits[schema[len(LIMIT) :]]
        case _:
            return schema


def _models(operations: Iterable[Operation]) -> list[Any]:
    found: list[Any] = []
    for operation in operations:
        bodies = [one.model for one in operation.responses.values()]
        for models in (operation.parameters, operation.body, *bodies):
            for model in _parts(models):
                if model is not None and not any(model is one for one in found):
                    found.append(model)
    return found


def _parts(model: object) -> tuple[Any, ...]:
    """Return the types of which a body is one: msgspec knows no union of structs."""
    if isinstance(model, tuple):
        return model
    return get_args(model) if isinstance(model, UnionType) else (model,)


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
    responses = {status: _response(spec, schema) for status, spec in operation.responses.items()}
    with_body = WITH_BODY if operation.body is not None else ()
    refused = () if operation.needs.is_open else WITHOUT_RIGHT
    for status in (*ALWAYS, *refused, *with_body, *operation.problems):
        responses.setdefault(status, _problem(status))
    described["responses"] = {str(status): responses[status] for status in sorted(responses)}
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


def _response(spec: ResponseSpec, schema: Any) -> Json:  # noqa: ANN401
    response: Json = {"description": spec.description}
    content_type = spec.content_type.decode().partition(";")[0]
    if spec.model is not None:
        response["content"] = {content_type: {"schema": schema(spec.model)}}
    elif content_type != "application/json":
        response["content"] = {content_type: {}}
    return response


def _problem(status: int) -> Json:
    content: Mapping[str, Json] = {
        PROBLEM.decode(): {"schema": {"$ref": REF.format(name="Problem")}}
    }
    return {"description": HTTPStatus(status).phrase, "content": content}
