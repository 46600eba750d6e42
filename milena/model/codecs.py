"""Compression of a batch's payload with none, gzip, snappy, lz4 or zstd; decompression is limited in size.

``decompress`` gets the exact size to expect and allocates no more, even if the compressed bytes claim more. A frame
that declares another size is refused before memory is allocated, and one that declares none is cut off. The payload
must be exactly one frame: bytes behind it, or a second frame, count as damage.

Kafka's batches do not say how large their records are. ``decompress_within`` takes a limit instead.

Only Kafka's clients use snappy. Its bytes are one raw block, or the frames of Java's library (xerial): 8 bytes of
magic, two versions of 4 bytes, then for each block its length (4 bytes) and the raw block. Every block declares its
size. The library is installed with a node. A client without it cannot read these batches.
"""

import threading
import zlib
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType

import lz4.frame
import zstandard

from milena.model.errors import CorruptBatchError, RequestTooLargeError
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


_ZSTD_BLOCK_BYTES_MAX = 128 << 10
_ZSTD_BLOCKS_MAX = 1 << 14
"""Far more than encoders write: a hostile frame could have a third of its bytes."""

_LZ4_STEP_BYTES = 64 << 10

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEAD_BYTES = 16


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
        case Codec.SNAPPY:
            return bytes(_cramjam().snappy.compress_raw(payload))


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


def _decompress_snappy(payload: Payload, uncompressed_bytes: int) -> bytes:
    try:
        return _unpack_snappy(payload, uncompressed_bytes)
    except RequestTooLargeError as error:
        raise CorruptBatchError(error.message) from error


_DECODERS: dict[Codec, Callable[[Payload, int], bytes]] = {
    Codec.GZIP: _decompress_gzip,
    Codec.SNAPPY: _decompress_snappy,
    Codec.LZ4: _decompress_lz4,
    Codec.ZSTD: _decompress_zstd,
}


def decompress_within(codec: Codec, payload: Payload, bytes_max: int) -> Payload:
    """Decompress a payload of unknown size; allocate about as much as it has, and at most ``bytes_max``.

    Raises:
        CorruptBatchError: the payload is not exactly one frame of this codec.
        RequestTooLargeError: the payload is larger than ``bytes_max`` once decompressed.
    """
    plain: Payload
    match codec:
        case Codec.NONE:
            plain = payload
        case Codec.GZIP:
            # zlib grows its buffer with the output.
            plain = _decompress_gzip(payload, bytes_max)
        case Codec.SNAPPY:
            plain = _unpack_snappy(payload, bytes_max)
        case Codec.LZ4:
            plain = _unpack_lz4(payload, bytes_max)
        case Codec.ZSTD:
            plain = _unpack_zstd(payload, bytes_max)
    if len(plain) > bytes_max:
        raise _too_large(len(plain), bytes_max)
    return plain


def _too_large(size: int, bytes_max: int) -> RequestTooLargeError:
    return RequestTooLargeError(
        f"the records of the batch have {size} bytes or more once decompressed, above the limit of {bytes_max}; "
        "send fewer records at a time"
    )


def _unpack_lz4(payload: Payload, bytes_max: int) -> bytes:
    stream = lz4.frame.LZ4FrameDecompressor()
    pieces: list[bytes] = []
    left = bytes_max + 1
    # The library allocates the whole limit of a call, so the limit grows with what came out.
    step = min(left, max(4 * len(payload), _LZ4_STEP_BYTES))
    try:
        data: Payload = payload
        while not stream.eof and left and (data or not stream.needs_input):
            piece: bytes = stream.decompress(data, max_length=step)
            data = b""
            pieces.append(piece)
            left -= len(piece)
            step = min(left, 2 * step)
    except (RuntimeError, ValueError, EOFError) as error:
        raise CorruptBatchError(f"the payload is not an lz4 frame: {error}") from error
    if left and not (stream.eof and not stream.unused_data):
        raise CorruptBatchError("the payload is not exactly one lz4 frame")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _unpack_zstd(payload: Payload, bytes_max: int) -> bytes:
    bound = 0
    try:
        frame = zstandard.get_frame_parameters(payload)
        bound = frame.content_size
        if bound in (_ZSTD_CONTENT_SIZE_UNKNOWN, _ZSTD_CONTENT_SIZE_UNKNOWN_UNSIGNED):
            # The library allocates the limit of the call. So the limit comes from the blocks. It also ignores bytes
            # behind such a frame.
            bound, end = _zstd_blocks(payload, zstandard.frame_header_size(payload))
            if end + 4 * frame.has_checksum != len(payload):
                raise CorruptBatchError("the payload is not exactly one zstd frame")
            bound = min(bound, bytes_max + 1)
        elif bound > bytes_max:
            raise _too_large(bound, bytes_max)
        return _zstd.decompressor.decompress(payload, max_output_size=bound, allow_extra_data=False)
    except zstandard.ZstdError as error:
        if bound > bytes_max:
            raise _too_large(bound, bytes_max) from error
        raise CorruptBatchError(f"the payload is not exactly one zstd frame: {error}") from error


def _zstd_blocks(payload: Payload, at: int) -> tuple[int, int]:
    """Return the most bytes that the blocks from ``at`` on can hold, and where the last one ends.

    A block header has 3 bytes, little-endian: bit 0 is set in the last block, bits 1 and 2 are the type (0 raw, 1 one
    byte repeated, 2 compressed), and the others the size. A block holds at most 128 KiB. Source: RFC 8878, 3.1.1.2.

    Raises:
        CorruptBatchError: the blocks do not end, or there are more than encoders write.
    """
    bound = 0
    for _ in range(_ZSTD_BLOCKS_MAX):
        if at + 3 > len(payload):
            break
        head = payload[at] | payload[at + 1] << 8 | payload[at + 2] << 16
        kind, size = head >> 1 & 3, head >> 3
        bound += size if kind < 2 else _ZSTD_BLOCK_BYTES_MAX
        at += 3 + (1 if kind == 1 else size)
        if head & 1:
            return bound, at
    raise CorruptBatchError("the blocks of the zstd frame have no end")


def _unpack_snappy(payload: Payload, bytes_max: int) -> bytes:
    cramjam = _cramjam()
    blocks = _snappy_blocks(payload)
    try:
        # The library allocates the size that a block declares.
        declared = sum(cramjam.snappy.decompress_raw_len(block) for block in blocks)
        if declared > bytes_max:
            raise _too_large(declared, bytes_max)
        return b"".join([bytes(cramjam.snappy.decompress_raw(block)) for block in blocks])
    except cramjam.DecompressionError as error:
        raise CorruptBatchError(f"the payload is not snappy: {error}") from error


def _snappy_blocks(payload: Payload) -> Sequence[Payload]:
    if payload[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return (payload,)
    blocks: list[Payload] = []
    at = _XERIAL_HEAD_BYTES
    while at < len(payload):
        size = int.from_bytes(payload[at : at + 4], "big")
        at += 4
        if not size or at + size > len(payload):
            raise CorruptBatchError(f"a block of snappy claims {size} bytes")
        blocks.append(payload[at : at + size])
        at += size
    return blocks


def _cramjam() -> ModuleType:
    """Return the library. Only a node needs it, so it is imported at the first use.

    Raises:
        CorruptBatchError: the library is not installed.
    """
    try:
        return import_module("cramjam")
    except ImportError as error:
        raise CorruptBatchError(
            "the payload is snappy, which needs the package cramjam: install milena[node]"
        ) from error
