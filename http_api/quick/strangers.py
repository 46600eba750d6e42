"""Strangers who try passwords, turned away before anything is made of their requests.

Whoever guesses may not cost those who work much. From an address that was wrong too often, or while too many passwords
wait, a password that nobody knows to be good is not looked at; the usual way would find the same and say the same, and
cost more. Only a request that came whole, and whose end is beyond doubt, is answered here; of all others,
and of those who bring anything but a password, the usual way decides.
"""

import logging
import re
from http import HTTPStatus

import orjson

from http_api.answers import SERVER, error_envelope
from http_api.dispatch import Dispatcher
from http_api.endpoint import Route
from http_api.errors import error_headers, row_of
from http_api.media import JSON_TYPE
from http_api.quick.lane import HEAD_END, Resting, remote_of
from http_api.quick.plain_answer import encode_answer
from milena.model.errors import MilenaError, TooManyRequestsError

_log = logging.getLogger("http_api.access")

TOLD_EVERY_S = 60.0
ADDRESSES_MAX = 10_000
_HEAD = re.compile(
    rb"(DELETE|GET|PATCH|POST|PUT) (/[A-Za-z0-9/._~%?&=,+:@-]*) HTTP/1\.1\r\n"
    rb"(?:[A-Za-z0-9_-]+:[\t -~\x80-\xff]*\r\n)+"
)
"""Of a request as programs make them: what else may be said in HTTP is for a parser to find out."""
_LENGTH = re.compile(rb"\r\ncontent-length: ?(\d{1,9})(?=\r\n)")
_PASSWORD = re.compile(rb"\r\nauthorization: ?(basic [!-~]+)(?=\r\n)", re.IGNORECASE)
_TELLING = re.compile(rb"\r\n(?:connection|expect|origin|transfer-encoding|upgrade|x-request-id):")
"""What makes another answer of it, or leaves its end in doubt; in small letters."""


class Strangers:
    """Of one server. Belongs to its event loop."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._callers = dispatcher.shared.ports.callers
        self._told_s: dict[str, float] = {}
        """Address → when the log was last told of it."""

    def answer(self, connection: Resting, data: bytes, now_s: float) -> bytes:
        """What is said to a request that came whole on a connection that rests; empty: it goes the usual way."""
        host = remote_of(connection.peername) or ""
        refusal = self._callers.turned_away(host)
        if refusal is None:
            return b""
        found = asked(data)
        if found is None:
            return b""
        method, target, authorization = found
        try:
            route = self._dispatcher.find(method, target.partition("?")[0]).route
            if route.access.is_public or self._callers.known(authorization, host) is not None:
                return b""
        except MilenaError:
            return b""
        self._tell(host, refusal, now_s)
        return self._refusal(refusal, route)

    def _refusal(self, refusal: TooManyRequestsError, route: Route) -> bytes:
        status = row_of(refusal).status
        envelope = error_envelope(refusal, topic_missing_code=route.topic_missing_code)
        headers = {
            **dict(error_headers(refusal, status)),
            "X-Request-Id": self._dispatcher.next_request_id(),
            "Server": SERVER,
        }
        self._dispatcher.observe(route, status, 0.0)
        phrase = HTTPStatus(status).phrase
        return encode_answer(status, phrase, orjson.dumps(envelope), JSON_TYPE, headers)

    def _tell(self, host: str, refusal: TooManyRequestsError, now_s: float) -> None:
        """A line of the log for each address and minute: one for each request would cost more than the request."""
        told_s = self._told_s.get(host)
        if told_s is not None and now_s < told_s + TOLD_EVERY_S:
            return
        self._told_s.pop(host, None)
        if len(self._told_s) >= ADDRESSES_MAX:
            del self._told_s[next(iter(self._told_s))]
        self._told_s[host] = now_s
        _log.info(
            "turned away, and whoever else comes so: remote=%s reason=%s", host, refusal.message
        )


def asked(data: bytes) -> tuple[str, str, str] | None:
    """Method, target and the password that a request brings; None: it is not clear, or it brings none."""
    end = data.find(HEAD_END)
    head = data[: end + 2]
    line = _HEAD.fullmatch(head)
    if end < 0 or line is None:
        return None
    small = head.lower()
    passwords, lengths = _PASSWORD.findall(head), _LENGTH.findall(small)
    if len(passwords) != 1 or small.count(b"authorization") != 1 or _TELLING.search(small):
        return None
    if len(lengths) != small.count(b"content-length") or len(lengths) > 1:
        return None
    if small.count(b"\r\nhost:") != 1:
        return None
    body_bytes = int(lengths[0]) if lengths else 0
    if len(data) != end + len(HEAD_END) + body_bytes:
        return None
    return line[1].decode(), line[2].decode(), passwords[0].decode()
