"""Which path and method is answered by what; 404 and 405 for the rest."""

from collections.abc import Mapping

from waterclock.server.http_messages import Answer, Later, Request, Response, problem

Routes = Mapping[bytes, Mapping[bytes, Answer]]
"""By path, then by method. HEAD is answered as GET, without the body."""


def answer_from(routes: Routes) -> Answer:
    """Return what answers every request from the table."""
    table = {path: _with_head(methods) for path, methods in routes.items()}
    allowed = {path: b", ".join(sorted(methods)) for path, methods in table.items()}

    def answer(request: Request) -> Response | Later:
        methods = table.get(request.path)
        if methods is None:
            return problem(404, f"there is nothing at {request.path.decode('latin-1')}")
        handler = methods.get(request.method)
        if handler is None:
            allow = allowed[request.path]
            detail = f"{request.method.decode()} is not allowed here: {allow.decode()}"
            return problem(405, detail, b"Allow: " + allow + b"\r\n")
        return handler(request)

    return answer


def _with_head(methods: Mapping[bytes, Answer]) -> dict[bytes, Answer]:
    return {b"HEAD": methods[b"GET"], **methods} if b"GET" in methods else dict(methods)
