"""The files of the console, and their headers for browsers.

They are not endpoints, so they are not in the table of routes or the OpenAPI document. The dispatcher looks here only
if no endpoint matches the path. All files are read at the start, into a dictionary by name. So no path can reach a file
outside of the folder, and no request waits for the disk.
"""

import gzip
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath

from aiohttp import web

from http_api.protocol.answers import Pairs, bytes_answer, empty_answer
from http_api.protocol.headers import joined

ROOT = "/console"
"""The path of the console. Its page refers to its files by relative paths, so it also works behind a path prefix."""

_INDEX = "index.html"
_MISSING = "missing.html"
_TO_ROOT = b"{to_root}"
"""A placeholder in the 404 page. It is replaced with the relative path from the requested path to the console."""

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Scripts, styles and responses come from this node alone, and text never becomes markup."""

SAFETY: Pairs = (
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
"""Sent with every response. Strict-Transport-Security is not among them, because browsers would apply it to all ports
of the host; a proxy that terminates TLS may add it."""

_ALLOWED = ("Allow", "GET, HEAD, OPTIONS")


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    packed: bytes
    """The body as gzip."""
    content_type: str
    tag: str


class ConsoleFiles:
    """All files of the console by name; immutable."""

    def __init__(self, bodies: Mapping[str, bytes]) -> None:
        self._files = {name: _file(name, body) for name, body in bodies.items()}

    def answer(self, request: web.BaseRequest) -> web.Response | None:
        """Return the response to a request for the console; None if the path does not belong to the console."""
        path = request.rel_url.raw_path
        if path != ROOT and not path.startswith(f"{ROOT}/"):
            return None
        if request.method not in ("GET", "HEAD"):
            status = 204 if request.method == "OPTIONS" else 405
            return empty_answer(status, [_ALLOWED, *SAFETY])
        if path == ROOT:
            # The location is relative: behind a proxy with a path prefix, only the browser knows the full path.
            return empty_answer(302, [("Location", f"{ROOT[1:]}/"), *SAFETY])
        return self._read(path.removeprefix(f"{ROOT}/") or _INDEX, request)

    def _read(self, name: str, request: web.BaseRequest) -> web.Response:
        found = None if name == _MISSING else self._files.get(name)
        if found is None:
            return self._missing(name)
        headers = [
            # The plain and the gzip body share one weak tag. Files are never requested in parts, so that is enough.
            ("ETag", f"W/{found.tag}"),
            ("Cache-Control", "no-cache"),
            ("Vary", "Accept-Encoding"),
            *SAFETY,
        ]
        if found.tag in joined(request.headers, "If-None-Match"):
            return empty_answer(304, headers)
        if _takes_gzip(joined(request.headers, "Accept-Encoding")):
            headers.append(("Content-Encoding", "gzip"))
            return bytes_answer(found.packed, found.content_type, headers=headers)
        return bytes_answer(found.body, found.content_type, headers=headers)

    def _missing(self, name: str) -> web.Response:
        page = self._files[_MISSING]
        to_root = b"../" * name.count("/") or b"./"
        return bytes_answer(
            page.body.replace(_TO_ROOT, to_root),
            page.content_type,
            status=404,
            headers=[("Cache-Control", "no-store"), *SAFETY],
        )


def _file(name: str, body: bytes) -> _File:
    tag = f'"{sha256(body).hexdigest()[:32]}"'
    return _File(body, gzip.compress(body, mtime=0), _TYPES[PurePosixPath(name).suffix], tag)


def _takes_gzip(accepted: str) -> bool:
    """Return whether a client accepts gzip without conditions, as browsers do."""
    return "gzip" in {word.strip() for word in accepted.split(",")}


@cache
def console_files() -> ConsoleFiles:
    """Return the files of this package."""
    return ConsoleFiles(dict(_read(files("http_api.console") / "static", "")))


def _read(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _read(entry, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, entry.read_bytes()
