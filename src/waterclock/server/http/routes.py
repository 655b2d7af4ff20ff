"""Which path and method is answered by what; 404 and 405 for the rest, and OPTIONS for all.

A path is looked up whole. One with `{name}` in it is found by its segments, in a tree: one step
for each segment, however many routes there are, and a segment by its name before `{name}`; so a
stream that is named as a path of ours, such as `send`, is found as `%73end`.
Everything stands below `/api/v1` too, unless something else does.
"""

import re
from collections.abc import Mapping
from urllib.parse import unquote_to_bytes

from waterclock.runtime.structured_log import begin_request, begin_unnamed_request
from waterclock.server.http.cross_origin import preflight_lines
from waterclock.server.http.messages import Answered, Handler, Later, Request, Response, problem

Routes = Mapping[bytes, Mapping[bytes, Handler | None]]
"""By path, then by method. HEAD is answered as GET, without the body; if it is None, not at all."""

PREFIX = b"/api/v1"
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_EVERYTHING = b"*"
"""What OPTIONS asks about the server as a whole (RFC 9110, 9.3.7)."""


class _BadPath(Exception):
    """A path that is no text."""


class _Escaped(bytes):
    """A segment with something escaped: rather a name than a fixed segment, where both may be."""

    __slots__ = ()


class _Route:
    """What a path can do."""

    __slots__ = ("allow", "methods", "names")

    def __init__(self, path: bytes, methods: Mapping[bytes, Handler | None]) -> None:
        table = {b"HEAD": methods.get(b"GET"), **methods, b"OPTIONS": self._options}
        self.methods = {method: answer for method, answer in table.items() if answer is not None}
        self.allow = b", ".join(sorted(self.methods))
        self.names = [part[1:-1].decode() for part in path.split(b"/") if part[:1] == b"{"]

    def _options(self, request: Request) -> Response:
        headers = b"Allow: " + self.allow + b"\r\n" + preflight_lines(request, self.allow)
        return Response(204, headers=headers)


class _Segment:
    """A node in the tree of paths."""

    __slots__ = ("any", "named", "route")

    def __init__(self) -> None:
        self.named: dict[bytes, _Segment] = {}
        self.any: _Segment | None = None
        self.route: _Route | None = None

    def below(self, name: bytes) -> "_Segment":
        """Return the node of a segment below this one, made if need be."""
        if name[:1] != b"{":
            return self.named.setdefault(name, _Segment())
        if self.any is None:
            self.any = _Segment()
        return self.any

    def find(self, segments: list[bytes]) -> tuple[_Route | None, list[bytes]]:
        """Return the route of the segments after the first, and what stands for its names."""
        at = self
        values: list[bytes] = []
        for segment in segments[1:]:
            found = at.named.get(segment)
            if found is None:
                if at.any is None or not segment:
                    break
                found = at.any
                values.append(segment)
            elif at.any is not None:
                # Both may lead on: rare enough to look at all ways.
                values.clear()
                return self._find_by_all_ways(segments, 1, values), values
            at = found
        else:
            return at.route, values if at.route is not None else []
        return None, []

    def _find_by_all_ways(
        self, segments: list[bytes], at: int, values: list[bytes]
    ) -> _Route | None:
        if at == len(segments):
            return self.route
        segment = segments[at]
        ways = [self.named.get(segment), self.any if segment else None]
        for way in reversed(ways) if isinstance(segment, _Escaped) else ways:
            if way is None:
                continue
            count = len(values)
            if way is self.any:
                values.append(segment)
            found = way._find_by_all_ways(segments, at + 1, values)
            if found is not None:
                return found
            del values[count:]
        return None


class _Tree:
    def __init__(self, routes: Routes) -> None:
        self.whole: dict[bytes, _Route] = {}
        self._root = _Segment()
        methods = b", ".join(sorted({m for table in routes.values() for m in table}))
        self.whole[_EVERYTHING] = _Route(b"", {})
        self.whole[_EVERYTHING].allow = methods + b", OPTIONS"
        for path, table in routes.items():
            route = _Route(path, table)
            self._add(path, route)
            if not path.startswith(PREFIX) and PREFIX + path not in routes:
                self._add(PREFIX + path, route)

    def _add(self, path: bytes, route: _Route) -> None:
        if not route.names:
            self.whole[path] = route
        at = self._root
        for name in path.split(b"/")[1:]:
            at = at.below(name)
        assert at.route is None, f"two routes at {path!r}"
        at.route = route

    def find(self, request: Request) -> _Route | None:
        """Return the route of a path that is not found whole; the request gets its names."""
        path = request.path
        segments = path.split(b"/")
        if b"%" in path:
            if _BAD_ESCAPE.search(path):
                raise _BadPath("a % is not followed by two hexadecimal digits")
            segments = [_unescaped(segment) for segment in segments]
        route, values = self._root.find(segments)
        if values:
            try:
                texts = [value.decode() for value in values]
            except UnicodeDecodeError:
                raise _BadPath("this is not UTF-8") from None
            assert route is not None
            request.params = dict(zip(route.names, texts, strict=True))
        return route


def _unescaped(segment: bytes) -> bytes:
    return _Escaped(unquote_to_bytes(segment)) if b"%" in segment else segment


def answer_from(routes: Routes) -> Handler:
    """Return what answers every request from the table."""
    tree = _Tree(routes)
    whole = tree.whole

    def answer(request: Request) -> Answered | Later:
        given = request.header(b"x-request-id") if request.headers else None
        if given is None:
            begin_unnamed_request()
        else:
            begin_request(given.decode("latin-1"))
        route = whole.get(request.path)
        if route is None:
            try:
                route = tree.find(request)
            except _BadPath as error:
                return problem(400, f"path: {error}", error="BadInput", field="path")
            if route is None:
                return problem(404, f"there is nothing at {request.path.decode('latin-1')}")
        handler = route.methods.get(request.method)
        if handler is None:
            detail = f"{request.method.decode()} is not allowed here: {route.allow.decode()}"
            return problem(405, detail, b"Allow: " + route.allow + b"\r\n")
        return handler(request)

    return answer
