"""Find the route of a request, with a tree over the segments of paths.

Each segment is percent-decoded by itself, so a name may contain an encoded slash. A verb may follow a name
(``{name}:verb``). A slash at the end is ignored. Names with control characters are refused.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import unquote

from http_api.protocol.errors import MethodNotAllowedError
from http_api.serving.endpoint import Route
from milena.model.errors import MalformedRequestError, RouteNotFoundError

_FOUND_MAX = 4096
"""Number of results that are cached. A path has at most 8190 bytes, so they take 32 MB at most, and usually 1 MB."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_PLAIN = re.compile(r"[!-$&-~]+")
"""Visible ASCII without a percent sign needs no decoding."""

_ALIKE = 2
"""Number of last segments by which a path is compared to others for a hint, such as ``topics/{topic}``."""

_CONTROL_PICTURES = 0x2400


@dataclass(slots=True)
class _Node:
    literals: dict[str, "_Node"] = field(default_factory=dict)
    wildcard: "_Node | None" = None
    verbs: dict[str, "_Node"] = field(default_factory=dict)
    """The verbs after a name, with their colon."""
    routes: dict[str, Route] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Match:
    """A route and the values of its path's parameters, by name."""

    route: Route
    names: Mapping[str, str]


class Router:
    """Finds the route of a request. Immutable, except for a cache of results: clients repeat the same few paths."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        self._routes: list[Route] = []
        for route in routes:
            self._add(route)
        self.find = lru_cache(maxsize=_FOUND_MAX)(self._find)

    def _add(self, route: Route) -> None:
        node = self._root
        for part in _segments(route.path):
            if part.startswith("{") and not part.endswith("}"):
                node = node.verbs.setdefault(part.partition("}")[2], _Node())
            elif part.startswith("{"):
                if node.wildcard is None:
                    node.wildcard = _Node()
                node = node.wildcard
            else:
                node = node.literals.setdefault(part, _Node())
        assert route.method not in node.routes, (route.method, route.path)
        node.routes[route.method] = route
        self._routes.append(route)

    def _find(self, method: str, raw_path: str) -> Match:
        """Return the route of a request and the parameters in its path. ``find`` is this method with a cache.

        Raises:
            RouteNotFoundError: no endpoint has this path.
            MethodNotAllowedError: endpoints with this path have other methods.
            MalformedRequestError: a name has a control character, or is not UTF-8.
        """
        try:
            node, values = self._walk(raw_path)
        except RouteNotFoundError as error:
            raise RouteNotFoundError(f"{error}{self._elsewhere(method, raw_path)}") from None
        route = node.routes.get(method)
        if route is None and method == "HEAD":
            route = node.routes.get("GET")
        if route is None:
            allowed = allowed_methods(node.routes)
            raise MethodNotAllowedError(
                f"{method} is not allowed for {raw_path}; allowed: {allowed}"
                f"{self._elsewhere(method, raw_path)}",
                allowed=allowed,
            )
        return Match(route, dict(zip(route.path_names, values, strict=True)))

    def allowed(self, raw_path: str) -> str:
        """Return the methods of a path, in the form of an ``Allow`` header.

        Raises:
            RouteNotFoundError: no endpoint has this path.
        """
        return allowed_methods(self._walk(raw_path)[0].routes)

    def _elsewhere(self, method: str, raw_path: str) -> str:
        """Return the end of an error message: paths that end in the same way and have this method; empty without one.

        For ``DELETE /topics/x``, it names the path of v3.
        """
        tail = _segments(raw_path)[-_ALIKE:]
        found = [
            f"{method} {route.path}"
            for route in self._routes
            if route.method == method and _ends_like(route.path, tail)
        ]
        return f"; there is {' and '.join(found)}" if found else ""

    def _walk(self, raw_path: str) -> tuple[_Node, list[str]]:
        node = self._root
        values: list[str] = []
        for part in _segments(raw_path):
            found = node.literals.get(part)
            if found is None:
                name, found = _named(node, part)
                if found is None or not name:
                    raise RouteNotFoundError(f"no endpoint at {raw_path}; /openapi.json lists them")
                values.append(name if _PLAIN.fullmatch(name) else decode_segment(name))
            node = found
        if not node.routes:
            raise RouteNotFoundError(f"no endpoint at {raw_path}; /openapi.json lists them")
        return node, values


def _named(node: _Node, part: str) -> tuple[str, _Node | None]:
    """Return the name in a segment and the node that it leads to, or None."""
    if node.verbs:
        name, colon, verb = part.rpartition(":")
        found = node.verbs.get(colon + verb)
        if found is not None:
            return name, found
    return part, node.wildcard


def _ends_like(path: str, tail: list[str]) -> bool:
    """Return whether a route's path ends with these segments, at least one of which is a literal."""
    own = _segments(path)[-len(tail) :]
    if len(own) != len(tail):
        return False
    pairs = list(zip(own, tail, strict=True))
    return any(part == given for part, given in pairs) and all(
        part == given or part.startswith("{") for part, given in pairs
    )


def _segments(path: str) -> list[str]:
    parts = path.split("/")[1:]
    if parts and not parts[-1]:
        parts.pop()
    return parts


def decode_segment(part: str) -> str:
    """Return a percent-decoded name.

    Raises:
        MalformedRequestError: the name has a control character (the message shows a symbol for it), or is not UTF-8.
    """
    try:
        name = unquote(part, errors="strict")
        name.encode()
    except UnicodeError:
        raise MalformedRequestError(f"'{part}' in the path is not UTF-8") from None
    check_name(name)
    return name


def check_name(name: str) -> None:
    """Refuse a name with control characters, from any source.

    Raises:
        MalformedRequestError: the name has one; the message shows a symbol for it.
    """
    if _CONTROL.search(name):
        shown = _CONTROL.sub(_picture, name)
        raise MalformedRequestError(f"control characters are not allowed in names: '{shown}'")


def check_no_dots(what: str, name: str) -> None:
    """Refuse a new name ``.`` or ``..``, because clients remove such segments from paths before they send them.

    Raises:
        MalformedRequestError: the name is ``.`` or ``..``.
    """
    if name in {".", ".."}:
        raise MalformedRequestError(
            f"a {what} cannot be named '{name}': clients remove it from paths; use another name"
        )


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(_CONTROL_PICTURES + (0x21 if code == 0x7F else code))


def allowed_methods(methods: Iterable[str]) -> str:
    """Return the methods with ``OPTIONS``, and with ``HEAD`` if there is ``GET``, such as ``GET, HEAD, OPTIONS``."""
    names = {*methods, "OPTIONS"}
    if "GET" in names:
        names.add("HEAD")
    return ", ".join(sorted(names))
