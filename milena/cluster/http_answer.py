"""One answer of HTTP/1.1 out of the bytes of a connection (pure): h11's rules, and bounds on what is held."""

from collections.abc import Iterable, Iterator, Mapping

import h11

HEAD_BYTES_MAX = 64 << 10
"""Of the status line and all headers together; also of a chunk's size and of the trailers."""

_ASKED = h11.Request(method="GET", target="/", headers=[("Host", "-")])
"""What an answer's framing depends on: nobody asks by HEAD or CONNECT."""


class BrokenAnswerError(Exception):
    """What came is no answer of HTTP/1.1; the message says why."""


class AnswerTooLargeError(Exception):
    """The body has more bytes than it may."""


class AnswerHeaders(Mapping[str, str]):
    """Headers by name in any case; of a name that comes twice the first counts."""

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
    """Bytes in, one answer out. ``feed`` until it says that the answer is whole, ``end`` when no more will come."""

    def __init__(self, *, body_bytes_max: int) -> None:
        self.status = 0
        self.headers = AnswerHeaders()
        self.has_begun = False
        """Any byte came."""
        self.is_whole = False
        """The answer is complete."""
        self._body_bytes_max = body_bytes_max
        self._body: list[bytes | bytearray] = []
        self._body_bytes = 0
        self._protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._protocol.send(_ASKED)
        self._protocol.send(h11.EndOfMessage())

    @property
    def body(self) -> bytes:
        """What came of it so far."""
        return b"".join(self._body)

    @property
    def is_reusable(self) -> bool:
        """The answer is whole and nothing behind it: the connection may be asked again."""
        protocol = self._protocol
        return protocol.their_state is h11.DONE and protocol.trailing_data == (b"", False)

    def feed(self, data: bytes) -> bool:
        """Take more bytes; whether the answer is whole.

        Raises:
            BrokenAnswerError, AnswerTooLargeError: it cannot go on.
        """
        if data:
            self.has_begun = True
            try:
                self._protocol.receive_data(data)
                self._take()
            except h11.RemoteProtocolError as error:
                raise BrokenAnswerError(f"it is not HTTP/1.1: {error}") from error
        return self.is_whole

    def end(self) -> bool:
        """The connection ended; whether the answer is whole."""
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
                    # Known before any of it is held; h11 has made sure that it is a number.
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
                    # No more for now, or for ever.
                    return

    def _check_size(self, more: int) -> None:
        if self._body_bytes + more > self._body_bytes_max:
            raise AnswerTooLargeError
