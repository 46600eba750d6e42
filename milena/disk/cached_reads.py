"""A read that takes bytes from the page cache, and gives up if it would have to wait for the disk.

The kernel supports these reads (``RWF_NOWAIT``), and Python offers them as ``os.preadv``. But ``os.preadv`` needs a
buffer, and creating one costs as much as the read, because Python zeroes it first. This module creates a bytes object
that is not zeroed (``PyBytes_FromStringAndSize`` without content) and lets the kernel write into it, as C code may do.
No other code sees the object before it is full.
"""

import ctypes
import os

PIECE_BYTES = 1 << 20
"""Limit of one call. If the pages are not cached, the kernel reads this much from the disk, and syncs wait for it."""


class _Buffer(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (("address", ctypes.c_void_p), ("length", ctypes.c_size_t))


# ``PyDLL`` keeps the interpreter lock during these calls, because none of them waits.
_library = ctypes.PyDLL(None)
_new_bytes = _library.PyBytes_FromStringAndSize
_new_bytes.restype = ctypes.py_object
_new_bytes.argtypes = (ctypes.c_char_p, ctypes.c_ssize_t)
_address_of = _library.PyBytes_AsString
_address_of.restype = ctypes.c_void_p
_address_of.argtypes = (ctypes.py_object,)
_preadv2 = _library.preadv2
_preadv2.restype = ctypes.c_ssize_t
_preadv2.argtypes = (
    ctypes.c_int,
    ctypes.POINTER(_Buffer),
    ctypes.c_int,
    ctypes.c_int64,
    ctypes.c_int,
)


def read_into(descriptor: int, address: int, length: int, position: int) -> int:
    """Let the kernel write up to ``length`` bytes of a file to ``address``; return their number.

    The number is below ``length`` if the file ends there, or if the next page is not cached. It is 0 at the end of the
    file. It is -1 if the first page is not cached, if the file system does not support such reads, and for every error:
    the caller then reads from the disk, and that read reports the error.
    """
    count: int = _preadv2(descriptor, _Buffer(address, length), 1, position, os.RWF_NOWAIT)
    return count


def read_cached(descriptor: int, length: int, position: int) -> bytes | None:
    """Return up to ``length`` bytes, fewer only at the end of the file; None if the disk would have to be read."""
    content: bytes = _new_bytes(None, length)
    address = _address_of(content)
    done = 0
    while done < length:
        wanted = min(length - done, PIECE_BYTES)
        count = read_into(descriptor, address + done, wanted, position + done)
        if count < 0:
            return None
        if count == 0:
            return content[:done]
        done += count
    return content
