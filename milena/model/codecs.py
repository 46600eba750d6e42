"""Compression of a batch's payload with none, gzip, lz4 or zstd; decompression is limited in size.

Decompression gets the exact size to expect and allocates no more, even if the compressed bytes claim more. A frame that
declares another size is refused before memory is allocated, and one that declares none is cut off. The payload must be
exactly one frame: bytes behind it, or a second frame, count as damage.
"""

import threading
import zlib
from collections.abc import Callable

import lz4.frame
import zstandard

from milena.model.errors import CorruptBatchError
from milena.model.types import Codec

Payload = bytes | memoryview

# Level 1 of zstd fits a log: it compresses 411 MB/s on the test machine and gives most of the ratio. gzip is for
# clients that have no other codec.
ZSTD_LEVEL = 1
GZIP_LEVEL = 6

# zlib's value for "with a gzip header and trailer".
_GZIP_WINDOW_BITS = 31

# A frame without a declared size is decompressed through a window of the size that it asks for. 8 MiB is the largest
# window of levels up to 19, and every decoder must support it.
_ZSTD_WINDOW_BYTES_MAX = 8 << 20

_ZSTD_CONTENT_SIZE_UNKNOWN = -1
_ZSTD_CONTENT_SIZE_UNKNOWN_UNSIGNED = (1 << 64) - 1


class _ZstdContexts(threading.local):
    """One pair of contexts per thread: they are costly to create and must not be shared between threads."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)


_zstd = _ZstdContexts()


def compress(codec: Codec, payload: bytes) -> bytes:
    """Compress the payload; equal input gives equal bytes."""
    match codec:
        case Codec.NONE:
            return payload
        case Codec.ZSTD:
            return _zstd.compressor.compress(payload)
        case Codec.LZ4:
            framed: bytes = lz4.frame.compress(payload)
            return framed
        case Codec.GZIP:
            # compressobj writes no time into the header, so retries have the same bytes.
            stream = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW_BITS)
            return stream.compress(payload) + stream.flush()


def decompress(codec: Codec, payload: Payload, uncompressed_bytes: int) -> Payload:
    """Decompress a payload of ``compress``; allocate at most ``uncompressed_bytes`` for it.

    The caller must first check that it accepts a payload of ``uncompressed_bytes``.

    Raises:
        CorruptBatchError: the payload is not one whole frame of this codec, or has another size.
    """
    plain = payload if codec is Codec.NONE else _DECODERS[codec](payload, uncompressed_bytes)
    if len(plain) != uncompressed_bytes:
        raise CorruptBatchError(
            f"the payload holds {len(plain)} bytes or more once decompressed ({codec.name.lower()}); "
            f"the header says uncompressed_bytes={uncompressed_bytes}"
        )
    return plain


def _decompress_gzip(payload: Payload, uncompressed_bytes: int) -> bytes:
    stream = zlib.decompressobj(_GZIP_WINDOW_BITS)
    try:
        # With a limit of one byte more than expected, a longer payload shows.
        plain = stream.decompress(payload, uncompressed_bytes + 1)
    except zlib.error as error:
        raise CorruptBatchError(f"the payload is not gzip: {error}") from error
    if len(plain) <= uncompressed_bytes and not (stream.eof and not stream.unused_data):
        raise CorruptBatchError("the payload is not exactly one gzip member")
    return plain


def _decompress_lz4(payload: Payload, uncompressed_bytes: int) -> bytes:
    stream = lz4.frame.LZ4FrameDecompressor()
    try:
        plain: bytes = stream.decompress(payload, max_length=uncompressed_bytes + 1)
    except (RuntimeError, ValueError, EOFError) as error:
        raise CorruptBatchError(f"the payload is not an lz4 frame: {error}") from error
    if len(plain) <= uncompressed_bytes and not (stream.eof and not stream.unused_data):
        raise CorruptBatchError("the payload is not exactly one lz4 frame")
    return plain


def _decompress_zstd(payload: Payload, uncompressed_bytes: int) -> bytes:
    try:
        frame = zstandard.get_frame_parameters(payload)
        # The library allocates the size that the frame declares, not the allowed maximum.
        declared = frame.content_size
        if declared not in (
            uncompressed_bytes,
            _ZSTD_CONTENT_SIZE_UNKNOWN,
            _ZSTD_CONTENT_SIZE_UNKNOWN_UNSIGNED,
        ):
            raise CorruptBatchError(
                f"the zstd frame declares {declared} bytes; "
                f"the header says uncompressed_bytes={uncompressed_bytes}"
            )
        return _zstd.decompressor.decompress(
            payload, max_output_size=uncompressed_bytes, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise CorruptBatchError(f"the payload is not exactly one zstd frame: {error}") from error


_DECODERS: dict[Codec, Callable[[Payload, int], bytes]] = {
    Codec.GZIP: _decompress_gzip,
    Codec.LZ4: _decompress_lz4,
    Codec.ZSTD: _decompress_zstd,
}
