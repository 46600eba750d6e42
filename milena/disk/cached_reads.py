"""A read that takes bytes from the page cache, and gives up if it would have to wait for the disk.

The kernel supports these reads (``RWF_NOWAIT``), and Python offers them as ``os.preadv``. That call needs a buffer to
fill. Creating one costs as much as the read, because it is zeroed first. Here the kernel writes into a new bytes
object, as C code may do (``PyBytes_FromStringAndSize`` without content). No other code sees the object before it is
full.
"""

import ctypes
import os

PIECE_BYTES = 1 << 20
"""Limit of one call. A miss makes the kernel read that much, and the syncs of all logs wait behind it."""


class _Buffer(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (("address", ctypes.c_void_p), ("length", ctypes.c_size_t))


# Calls into the interpreter and the C library that keep the interpreter's lock, because none of them waits.
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

    Fewer than ``length``: the file ends there, or the next page is not cached. 0: the end of the file. -1: the first
    page is not cached, the file system cannot tell, or there is an error, which a waiting read will meet again.
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
