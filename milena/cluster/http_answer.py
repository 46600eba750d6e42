"""One answer of HTTP/1.1 out of the bytes of a connection (pure). Bytes may be hostile: everything is bounded.

Understood are the three framings of RFC 9112, section 6: a length, chunks, and the end of the connection. Informational
answers (1xx) are passed over, and trailers. Left out: upgrades, pipelining, compression, for which nobody asks.
"""

import re
from collections.abc import Iterator, Mapping
from enum import Enum, unique

HEAD_BYTES_MAX = 64 << 10
"""Of the status line and all headers together; also of the trailers."""

_SIZE_LINE_BYTES_MAX = 1 << 10
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\r\n]*)?")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*?)[ \t]*")
_LENGTH = re.compile(r"[0-9]{1,18}")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;.*)?", re.DOTALL)
_NO_BODY = frozenset({204, 304})


class BrokenAnswerError(Exception):
    """What came is no answer of HTTP/1.1; the message says why."""


class AnswerTooLargeError(Exception):
    """The body has more bytes than it may."""


class AnswerHeaders(Mapping[str, str]):
    """Headers by name in any case; of a name that comes twice the first counts."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._values: dict[str, str] = {}
        for name, value in pairs:
            self._values.setdefault(name.lower(), value)

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


@unique
class _Framing(Enum):
    HEAD = "the head is not there yet"
    LENGTH = "so many bytes"
    CHUNKS = "chunks"
    CLOSE = "until the connection ends"
    DONE = "nothing more"


class AnswerReader:
    """Bytes in, one answer out. ``feed`` until it says that the answer is whole, ``end`` when no more will come."""

    def __init__(self, *, body_bytes_max: int) -> None:
        self.status = 0
        self.headers = AnswerHeaders([])
        self.has_begun = False
        """Any byte came."""
        self.is_reusable = False
        """Of a whole answer: the connection may be asked again."""
        self._body_bytes_max = body_bytes_max
        self._framing = _Framing.HEAD
        self._held = bytearray()
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._left = 0

    @property
    def body(self) -> bytes:
        """What came of it so far."""
        return self._body[0] if len(self._body) == 1 else b"".join(self._body)

    @property
    def is_whole(self) -> bool:
        """The answer is complete."""
        return self._framing is _Framing.DONE

    def feed(self, data: bytes) -> bool:
        """Take more bytes; whether the answer is whole.

        Raises:
            BrokenAnswerError, AnswerTooLargeError: it cannot go on.
        """
        self.has_begun = True
        if self.is_whole:
            # Bytes that nobody asked for: whatever they are, they are no answer to the next request.
            self.is_reusable = False
            return True
        if self._framing is _Framing.HEAD:
            self._held += data
            data = self._take_heads()
        match self._framing:
            case _Framing.LENGTH:
                self._take_length(data)
            case _Framing.CHUNKS:
                self._held += data
                self._take_chunks()
            case _Framing.CLOSE:
                self._keep(data)
            case _Framing.DONE if data:
                self.is_reusable = False
            case _Framing.HEAD | _Framing.DONE:
                pass
        return self.is_whole

    def end(self) -> bool:
        """The connection ended; whether the answer is whole."""
        if self._framing is _Framing.CLOSE:
            self._framing = _Framing.DONE
        self.is_reusable = False
        return self.is_whole

    # -- the head ----------------------------------------------------------------------------------

    def _take_heads(self) -> bytes:
        """Read the head if it is there; what came behind it."""
        while self._framing is _Framing.HEAD:
            end = self._held.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX)
            if end < 0:
                if len(self._held) >= HEAD_BYTES_MAX:
                    raise BrokenAnswerError(f"its head has more than {HEAD_BYTES_MAX} bytes")
                return b""
            head = bytes(self._held[:end])
            del self._held[: end + 4]
            self._read_head(head)
        rest = bytes(self._held)
        self._held.clear()
        return rest

    def _read_head(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        found = _STATUS_LINE.fullmatch(first)
        if found is None:
            raise BrokenAnswerError(f"it does not begin as HTTP/1.1 does: {first[:60]!r}")
        status = int(found[2])
        if status < 200:
            if status == 101:
                raise BrokenAnswerError("it changes to another protocol")
            return
        pairs = [_header(line) for line in lines]
        self.status, self.headers = status, AnswerHeaders(pairs)
        options = {
            option.strip().lower()
            for name, value in pairs
            if name.lower() == "connection"
            for option in value.split(",")
        }
        self.is_reusable = "close" not in options and (found[1] == b"1" or "keep-alive" in options)
        self._frame(pairs)

    def _frame(self, pairs: list[tuple[str, str]]) -> None:
        codings = [value.lower() for name, value in pairs if name.lower() == "transfer-encoding"]
        lengths = {value for name, value in pairs if name.lower() == "content-length"}
        if self.status in _NO_BODY:
            self._framing = _Framing.DONE
        elif codings:
            # With a length besides, the two may disagree about where the next answer begins.
            if codings != ["chunked"] or lengths:
                raise BrokenAnswerError("its body is framed in a way that is not understood")
            self._framing = _Framing.CHUNKS
        elif lengths:
            (length,) = lengths if len(lengths) == 1 else ("",)
            if not _LENGTH.fullmatch(length):
                raise BrokenAnswerError("its length is no number")
            self._left = int(length)
            self._check_size(self._left)
            self._framing = _Framing.LENGTH
        else:
            self.is_reusable = False
            self._framing = _Framing.CLOSE

    # -- the body ----------------------------------------------------------------------------------

    def _check_size(self, more: int) -> None:
        if self._body_bytes + more > self._body_bytes_max:
            raise AnswerTooLargeError

    def _keep(self, data: bytes) -> None:
        self._check_size(len(data))
        if data:
            self._body.append(data)
            self._body_bytes += len(data)

    def _take_length(self, data: bytes) -> None:
        self._keep(data[: self._left])
        if len(data) > self._left:
            self.is_reusable = False
        self._left -= min(self._left, len(data))
        if not self._left:
            self._framing = _Framing.DONE

    def _take_chunks(self) -> None:
        held = self._held
        while self._framing is _Framing.CHUNKS:
            end = held.find(b"\r\n", 0, _SIZE_LINE_BYTES_MAX)
            if end < 0:
                if len(held) >= _SIZE_LINE_BYTES_MAX:
                    raise BrokenAnswerError("a chunk does not say its size")
                return
            found = _CHUNK_SIZE.fullmatch(held, 0, end)
            if found is None:
                raise BrokenAnswerError("a chunk does not say its size")
            size = int(found[1], 16)
            if size == 0:
                self._take_trailers(end)
                return
            self._check_size(size)
            stop = end + 2 + size
            if len(held) < stop + 2:
                return
            if held[stop : stop + 2] != b"\r\n":
                raise BrokenAnswerError("a chunk does not end where it should")
            self._keep(bytes(held[end + 2 : stop]))
            del held[: stop + 2]

    def _take_trailers(self, start: int) -> None:
        end = self._held.find(b"\r\n\r\n", start)
        if end >= 0:
            if len(self._held) > end + 4:
                self.is_reusable = False
            self._framing = _Framing.DONE
        elif len(self._held) - start > HEAD_BYTES_MAX:
            raise BrokenAnswerError(f"its trailers have more than {HEAD_BYTES_MAX} bytes")


def _header(line: bytes) -> tuple[str, str]:
    found = _HEADER.fullmatch(line)
    if found is None:
        raise BrokenAnswerError(f"a line of its head is no header: {line[:60]!r}")
    return found[1].decode("latin-1"), found[2].decode("latin-1")
