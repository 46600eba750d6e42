"""Parse one HTTP/1.1 response from the bytes of a connection (pure): h11's rules, and limits on what is held."""

from collections.abc import Iterable, Iterator, Mapping

import h11

HEAD_BYTES_MAX = 64 << 10
"""The most bytes of the status line and all headers together; also of a chunk's size, and of the trailers."""

_ASKED = h11.Request(method="GET", target="/", headers=[("Host", "-")])
"""The request on which a response's framing depends. No caller sends HEAD or CONNECT, so GET stands for all."""


_START = b"HTTP/"


class BrokenAnswerError(Exception):
    """The bytes are no HTTP/1.1 response; the message says why."""


class AnswerTooLargeError(Exception):
    """The body has more bytes than it may."""


class AnswerHeaders(Mapping[str, str]):
    """Headers by name in any case. Of repeated headers, the first counts."""

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
        """True if the response is complete and no bytes follow: the connection may take another request."""
        protocol = self._protocol
        return protocol.their_state is h11.DONE and protocol.trailing_data == (b"", False)

    def feed(self, data: bytes) -> bool:
        """Take more bytes; return whether the response is complete.

        Raises:
            BrokenAnswerError, AnswerTooLargeError: the response cannot continue.
        """
        if data:
            if not self.has_begun and data[:5] != _START and not _START.startswith(data):
                # h11 would wait for the end of a head. A server of another protocol may never send one.
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
                    # The size is checked before any of the body is held. h11 has checked that it is a number.
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
                    # There are no more bytes, for now or forever.
                    return

    def _check_size(self, more: int) -> None:
        if self._body_bytes + more > self._body_bytes_max:
            raise AnswerTooLargeError
