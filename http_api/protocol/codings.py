"""Unpack compressed bodies (``Content-Encoding``) in steps, up to the limit of a body.

aiohttp's parser could unpack them too, but it would do so as bytes arrive, without a limit. A few kilobytes that expand
to hundreds of megabytes would then delay all requests.
"""

import zlib
from collections.abc import Callable

from milena.model.errors import MalformedRequestError, UnsupportedMediaTypeError
from milena.model.turns import Steps

STEP_BYTES = 1 << 20
"""The most bytes that one step unpacks, in about two milliseconds."""
PART_BYTES = 256 << 10
"""The most compressed bytes that one step takes. zlib copies those that come behind the end of a member."""
MEMBERS_MAX = 1_000
"""The most members of a gzip body. Members without content cost the sender 20 bytes each, and the node a step each."""

_GZIP, _ZLIB, _RAW = 31, 15, -15
_WINDOWS = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": _ZLIB}


def window_of(coding: str) -> int | None:
    """Return zlib's window setting for a content coding; None if the body is not compressed.

    Raises:
        UnsupportedMediaTypeError: the coding is not supported, or there are several.
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
    """Unpack a body in steps.

    Args:
        body: the compressed bytes.
        window: the result of ``window_of``.
        account: called with the number of unpacked bytes so far. It may raise an error to end the work.

    A gzip body may have several members, one after the other (RFC 1952).

    Raises:
        MalformedRequestError: the body is not exactly one complete stream of this coding.
    """
    if window == _ZLIB and body[:1] and body[0] & 0x0F != zlib.DEFLATED:
        # The body has no zlib header. The standard requires one, but many clients send raw deflate data.
        window = _RAW
    stream, member_count = zlib.decompressobj(window), 1
    packed, at = memoryview(body), 0
    plain = bytearray()
    while True:
        part = packed[at : at + PART_BYTES]
        try:
            piece = stream.decompress(part, STEP_BYTES)
        except zlib.error as error:
            raise MalformedRequestError(f"the body cannot be read: {error}") from None
        # At the end of a member, zlib keeps the tail of an earlier step, too.
        at += len(part) - len(stream.unused_data if stream.eof else stream.unconsumed_tail)
        plain += piece
        account(len(plain))
        if stream.eof:
            if at == len(packed):
                return bytes(plain)
            if window != _GZIP:
                break
            member_count += 1
            if member_count > MEMBERS_MAX:
                raise MalformedRequestError(f"the gzip body has more than {MEMBERS_MAX} members")
            stream = zlib.decompressobj(window)
        elif not piece and at == len(packed):
            break
        yield
    raise MalformedRequestError("the body is not exactly one whole compressed stream")
