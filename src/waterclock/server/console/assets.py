"""The files of the console as they are sent: read and compressed once, when the first is asked for.

A browser keeps each with its tag and asks whether it still holds: 304 says that it does. Nothing in
them is made by a build, nothing comes from elsewhere, and the policy that goes with them lets the
browser run and load nothing but these files, whatever stands in the names and messages they show.
"""

import gzip
import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from waterclock.server.http.messages import HTML, TEXT, Request, Response, problem

FOLDER = Path(__file__).parent / "static"
INDEX = "index.html"
TYPES = {
    ".html": HTML,
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".txt": TEXT,
}

POLICY = (
    b"Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; "
    b"img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    b"frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'\r\n"
    # Where there is no Sec-Fetch-Site, the node knows its own page by its Referer.
    b"Referrer-Policy: same-origin\r\n"
)


class Asset(NamedTuple):
    """A file, and how it is sent."""

    content_type: bytes
    plain: bytes
    zipped: bytes
    tag: bytes

    def answer(self, request: Request, more: bytes = b"") -> Response:
        """Return the file, or that the browser has it; `more` are header lines."""
        headers = b"ETag: %b\r\nCache-Control: no-cache\r\n%b" % (self.tag, more)
        if self.tag in (request.header(b"if-none-match") or b""):
            return Response(304, headers=headers)
        if b"gzip" not in (request.header(b"accept-encoding") or b""):
            return Response(200, self.plain, self.content_type, headers)
        headers += b"Content-Encoding: gzip\r\n"
        return Response(200, self.zipped, self.content_type, headers)


@cache
def assets() -> dict[str, Asset]:
    """Return all files of the console by name."""
    return {file.name: _asset(file) for file in sorted(FOLDER.iterdir()) if file.is_file()}


def _asset(file: Path) -> Asset:
    data = file.read_bytes()
    tag = b'"%b"' % hashlib.sha256(data).hexdigest()[:20].encode()
    return Asset(TYPES[file.suffix], data, gzip.compress(data, 9, mtime=0), tag)


def file_answer(name: str, request: Request) -> Response:
    """Return a file by its name; the page itself stands at `/` alone."""
    asset = assets().get(name)
    if asset is None or name == INDEX:
        return problem(404, f"the console has no file {name!r}", error="NotFound")
    return asset.answer(request, b"Vary: Accept-Encoding\r\n")


def page_answer(request: Request) -> Response:
    """Return the page that loads all else."""
    return assets()[INDEX].answer(request, b"Vary: Accept, Accept-Encoding\r\n" + POLICY)


def is_person(request: Request) -> bool:
    """Tell whether a browser asks for something to show; programs take anything, or JSON."""
    return b"text/html" in (request.header(b"accept") or b"")
