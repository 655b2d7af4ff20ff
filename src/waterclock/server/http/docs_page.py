"""The page at /docs: every operation with its parameters and a line for curl. No scripts."""

import base64
import hashlib
import shlex
from collections.abc import Iterable
from html import escape
from typing import Any
from urllib.parse import urlencode

import msgspec

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: #fff }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #ccc }
code, pre { font-family: ui-monospace, monospace; font-size: 14px }
pre { background: #f4f4f4; padding: .6rem .8rem; overflow-x: auto }
summary { cursor: pointer; padding: .2rem 0 }
.method { display: inline-block; min-width: 4.5rem; font-weight: bold }
dt { font-family: ui-monospace, monospace } dd { margin: 0 0 .3rem 1.5rem; color: #555 }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #1b1b1b }
  pre { background: #2a2a2a } dd { color: #aaa } }
"""

PAGE_HEADERS = (
    b"Content-Security-Policy: default-src 'none'; style-src 'sha256-%b'; base-uri 'none'; "
    b"form-action 'none'; frame-ancestors 'none'\r\nReferrer-Policy: same-origin\r\n"
) % base64.b64encode(hashlib.sha256(_STYLE.encode()).digest())
"""The browser shows the page with this style, and runs and loads nothing, whatever is in it."""

Json = dict[str, Any]


def page_of(description: Json) -> bytes:
    """Return the page of an OpenAPI description."""
    info = description["info"]
    by_tag: dict[str, list[str]] = {}
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault(operation["tags"][0], []).append(
                _section(method.upper(), path, operation)
            )
    parts = [f"<h2>{escape(tag)}</h2>{''.join(rows)}" for tag, rows in by_tag.items()]
    title = escape(f"{info['title']} {info['version']}")
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>"
        f"<meta name=viewport content='width=device-width'><style>{_STYLE}</style>"
        f"<h1>{title}</h1><p>The same as <a href=openapi.json>OpenAPI</a>. "
        f"All but what has a path of its own there also stands below <code>/api/v1</code>.</p>"
        f"{''.join(parts)}"
    ).encode()


def _section(method: str, path: str, operation: Json) -> str:
    head = (
        f"<summary><span class=method>{method}</span><code>{escape(path)}</code> "
        f"{escape(operation['summary'])}</summary>"
    )
    text = operation.get("description", "")
    described = f"<p>{escape(text)}</p>" if text else ""
    rows = "".join(_rows(operation.get("parameters", ())))
    answers = ", ".join(
        f"{status} {escape(answer['description'])}"
        for status, answer in operation["responses"].items()
        if status < "300"
    )
    return (
        f"<details>{head}{described}<dl>{rows}</dl>"
        f"<pre>{escape(curl_line(method, path, operation))}</pre><p>{answers}</p></details>"
    )


def _rows(parameters: Iterable[Json]) -> Iterable[str]:
    for one in parameters:
        schema = one["schema"]
        facts = [one["in"], "required" if one.get("required") else ""]
        facts += [f"default {schema['default']}" if schema.get("default") not in (None, "") else ""]
        kind = ", ".join(filter(None, facts))
        said = escape(one.get("description", ""))
        yield f"<dt>{escape(one['name'])}</dt><dd>{escape(kind)}. {said}</dd>"


def curl_line(method: str, path: str, operation: Json) -> str:
    """Return a line for a shell that calls an operation with the examples of its parameters."""
    query = {}
    for one in operation.get("parameters", ()):
        example = one["schema"].get("examples", ["x"])[0]
        if one["in"] == "path":
            path = path.replace("{" + one["name"] + "}", str(example))
        elif one.get("required") or "examples" in one["schema"]:
            query[one["name"]] = example
    address = f"localhost:8080{path}" + (f"?{urlencode(query)}" if query else "")
    command = ["curl", *(["-X", method] if method not in ("GET", "POST") else []), address]
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]["application/json"]
        command += ["-d", msgspec.json.encode(content.get("example", {})).decode()]
    elif method == "POST":
        command += ["-X", "POST"]
    return shlex.join(command)
