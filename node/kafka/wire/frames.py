"""Frames: a stream of bytes as requests, and the headers of requests and responses.

    offset  size  meaning
    0       4     size of the rest, int32, big endian
    4       2     API key
    6       2     version of the API
    8       4     correlation id, which the response repeats
    12      2+n   client id, a nullable string in the old encoding
    …             tagged fields, if the version of the API is flexible

Source: Kafka's protocol guide; KIP-482.
"""

from struct import Struct

from milena.disk.files import Buffer
from node.kafka.wire.primitives import MalformedFrameError, WireReader

FRAME_BYTES_MIN = 8
"""Key, version and correlation id: the least that a request has."""
SIZE_BYTES = 4

_SIZE = Struct(">i")
_SIZE_AND_ID = Struct(">ii")
_HEAD = Struct(">hhi")


class RequestHead:
    """The fixed part of a request's header."""

    def __init__(self, key: int, version: int, correlation_id: int) -> None:
        self.key = key
        self.version = version
        self.correlation_id = correlation_id


def head_of(frame: bytes) -> RequestHead:
    """Return the fixed part of a frame's header; the splitter has made sure that it is there."""
    key, version, correlation_id = _HEAD.unpack_from(frame)
    return RequestHead(key, version, correlation_id)


def body_of(frame: bytes, *, is_flexible: bool) -> tuple[str, WireReader]:
    """Return the client id of a request (empty for null), and a reader at its body.

    Raises:
        MalformedFrameError: the header does not end within the frame.
    """
    reader = WireReader(frame, _HEAD.size, is_flexible=is_flexible)
    client_id = reader.header_string()
    reader.skip_tags()
    return client_id or "", reader


def framed(correlation_id: int, body: list[Buffer], *, is_flexible: bool) -> list[Buffer]:
    """Return a response as pieces that follow each other. ``is_flexible``: whether its header has tagged fields."""
    size = SIZE_BYTES + is_flexible + sum(map(len, body))
    head = _SIZE_AND_ID.pack(size, correlation_id)
    return [head + b"\0" if is_flexible else head, *body]


class FrameSplitter:
    """Splits a stream into frames. It holds what has arrived of an unfinished frame, and never more."""

    def __init__(self, bytes_max: int, frames_max: int | None = None) -> None:
        """Start without bytes.

        ``bytes_max``: the largest frame that is accepted. ``frames_max``: the most frames that may arrive at once;
        None: any number. Both may change between two frames.
        """
        self.bytes_max = bytes_max
        self.frames_max = frames_max
        self.bytes_min = FRAME_BYTES_MIN
        """The smallest frame that is accepted. A frame that is no request, but a bare SASL message, may be empty."""
        self._pieces: list[bytes] = []
        self.held_bytes = 0
        """Bytes of the unfinished frame."""
        self._missing = 0
        """Bytes that the unfinished frame still lacks; 0: its size is not known yet."""

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes that arrived; return the frames that they complete, without their sizes.

        Raises:
            MalformedFrameError: a size that no request has, or too many frames. Nothing more can be read from the
                stream.
        """
        frames: list[bytes] = []
        at, end = 0, len(data)
        while at < end:
            if self._pieces:
                if not self._missing and not self._learn_size(data, at):
                    self._hold(data[at:])
                    return frames
                taken = min(self._missing, end - at)
                self._hold(data[at : at + taken])
                self._missing -= taken
                at += taken
                if not self._missing:
                    frames.append(b"".join(self._pieces)[SIZE_BYTES:])
                    self._pieces, self.held_bytes = [], 0
                continue
            if end - at < SIZE_BYTES:
                self._hold(data[at:])
                return frames
            size = self._checked(_SIZE.unpack_from(data, at)[0])
            if end - at < SIZE_BYTES + size:
                self._missing = SIZE_BYTES + size - (end - at)
                self._hold(data[at:])
                return frames
            frames.append(data[at + SIZE_BYTES : at + SIZE_BYTES + size])
            at += SIZE_BYTES + size
            if self.frames_max is not None and len(frames) > self.frames_max:
                raise MalformedFrameError(
                    f"more than {self.frames_max} requests at once, of a client that has not authenticated"
                )
        return frames

    def _hold(self, data: bytes) -> None:
        self._pieces.append(data)
        self.held_bytes += len(data)

    def _learn_size(self, data: bytes, at: int) -> bool:
        """Find out how much the unfinished frame lacks; return False if its size has not arrived yet."""
        start = b"".join(self._pieces) + data[at : at + SIZE_BYTES]
        if len(start) < SIZE_BYTES:
            return False
        size = self._checked(_SIZE.unpack_from(start)[0])
        self._missing = SIZE_BYTES + size - self.held_bytes
        return True

    def _checked(self, size: int) -> int:
        if not self.bytes_min <= size <= self.bytes_max:
            raise MalformedFrameError(
                f"a frame of {size} bytes; requests have {self.bytes_min} to {self.bytes_max}"
            )
        return size
