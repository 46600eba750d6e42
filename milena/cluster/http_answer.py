"""Parse one HTTP/1.1 response from the bytes of a connection (pure), with h11 and with limits of size."""

from collections.abc import Iterable, Iterator, Mapping

import h11

HEAD_BYTES_MAX = 64 << 10
"""Limit in bytes for the status line and all headers together, for the size line of a chunk, and for the trailers."""

_ASKED = h11.Request(method="GET", target="/", headers=[("Host", "-")])
"""A request for h11, which needs the method to find the end of a response. Callers never send HEAD or CONNECT."""


_START = b"HTTP/"


class BrokenAnswerError(Exception):
    """The bytes are no HTTP/1.1 response; the message says why."""


class AnswerTooLargeError(Exception):
    """The body is larger than the limit of the call."""


class AnswerHeaders(Mapping[str, str]):
    """Headers by name, upper or lower case. For a repeated header, the value is that of the first one."""

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self._values: dict[str, str] = {}
        for name, value in pairs:
            self._values.setdefault(name.decode("latin-1"), value.decode("latin-1"))

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class AnswerReader:
    """Turn bytes into one response. ``feed`` until it returns True; call ``end`` when no more bytes will come."""

    def __init__(self, *, body_bytes_max: int) -> None:
        self.status = 0
        self.headers = AnswerHeaders()
        self.has_begun = False
        """True once any byte has arrived."""
        self.is_whole = False
        """True once the response is complete."""
        self._body_bytes_max = body_bytes_max
        self._body: list[bytes | bytearray] = []
        self._body_bytes = 0
        self._protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._protocol.send(_ASKED)
        self._protocol.send(h11.EndOfMessage())

    @property
    def body(self) -> bytes:
        """The body received so far."""
        return b"".join(self._body)

    @property
    def is_reusable(self) -> bool:
        """True if the connection may take another request: the response is complete, and no bytes follow it."""
        protocol = self._protocol
        return protocol.their_state is h11.DONE and protocol.trailing_data == (b"", False)

    def feed(self, data: bytes) -> bool:
        """Take more bytes; return whether the response is complete.

        Raises:
            BrokenAnswerError: the bytes are no HTTP/1.1 response.
            AnswerTooLargeError: the body is larger than the limit.
        """
        if data:
            if not self.has_begun and data[:5] != _START and not _START.startswith(data):
                # A server of another protocol may never send the end of a head, and h11 would wait for it.
                raise BrokenAnswerError(f"it is not HTTP/1.1: it begins with {data[:20]!r}")
            self.has_begun = True
            try:
                self._protocol.receive_data(data)
                self._take()
            except h11.RemoteProtocolError as error:
                raise BrokenAnswerError(f"it is not HTTP/1.1: {error}") from error
        return self.is_whole

    def end(self) -> bool:
        """Note the end of the connection; return whether the response is complete."""
        try:
            self._protocol.receive_data(b"")
            self._take()
        except h11.RemoteProtocolError:
            pass
        return self.is_whole

    def _take(self) -> None:
        while not self.is_whole:
            event = self._protocol.next_event()
            match event:
                case h11.Response():
                    self.status, self.headers = event.status_code, AnswerHeaders(event.headers)
                    # Refuse a body that is too large before any of it is kept. h11 has checked the number's form.
                    self._check_size(int(self.headers.get("content-length", 0)))
                case h11.Data():
                    self._check_size(len(event.data))
                    self._body.append(event.data)
                    self._body_bytes += len(event.data)
                case h11.EndOfMessage():
                    self.is_whole = True
                case h11.InformationalResponse(status_code=101):
                    raise BrokenAnswerError("it changes to another protocol")
                case h11.InformationalResponse():
                    pass
                case _:
                    # h11 needs more bytes, or the connection has ended.
                    return

    def _check_size(self, more: int) -> None:
        if self._body_bytes + more > self._body_bytes_max:
            raise AnswerTooLargeError
