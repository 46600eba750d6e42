"""Compressed bodies (``Content-Encoding``): unpacked in steps, and never beyond what a body may be.

Unpacking is not left to the HTTP parser: it unpacks as bytes come, also those of a body that was refused already, and a
few kilobytes that stand for hundreds of megabytes would hold up everybody.
"""

import zlib
from collections.abc import Callable

from milena.model.errors import MalformedRequestError, UnsupportedMediaTypeError
from milena.model.turns import Steps

STEP_BYTES = 1 << 20
"""Unpacked in one step, some two milliseconds."""

_GZIP, _ZLIB, _RAW = 31, 15, -15
_WINDOWS = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": _ZLIB}


def window_of(coding: str) -> int | None:
    """How zlib is to be set up for a content coding; None when the body is as it is.

    Raises:
        UnsupportedMediaTypeError: a coding that is not taken, or several.
    """
    if not coding:
        return None
    names = [name.strip().lower() for name in coding.split(",")]
    names = [name for name in names if name not in ("", "identity")]
    if not names:
        return None
    if len(names) > 1 or names[0] not in _WINDOWS:
        raise UnsupportedMediaTypeError(
            f"Content-Encoding '{coding}' is not taken; send gzip, deflate or none"
        )
    return _WINDOWS[names[0]]


def unpack(body: bytes, window: int, account: Callable[[int], None]) -> Steps[bytes]:
    """The body as it was before it was compressed.

    Args:
        body: the compressed bytes.
        window: what ``window_of`` said.
        account: told how many bytes there are so far; what it raises ends the work.

    Raises:
        MalformedRequestError: it is not exactly one whole stream of this coding.
    """
    if window == _ZLIB and body[:1] and body[0] & 0x0F != zlib.DEFLATED:
        # Without the header that the standard demands: many clients send it so.
        window = _RAW
    stream = zlib.decompressobj(window)
    plain = bytearray()
    while not stream.eof:
        try:
            piece = stream.decompress(body, STEP_BYTES)
        except zlib.error as error:
            raise MalformedRequestError(f"the body cannot be read: {error}") from None
        body = stream.unconsumed_tail
        plain += piece
        account(len(plain))
        if not piece and not body:
            break
        yield
    if not stream.eof or stream.unused_data:
        raise MalformedRequestError("the body is not exactly one whole compressed stream")
    return bytes(plain)
