"""A read that takes what the page cache has, and gives up where it would have to wait for the disk.

The system knows such reads (``RWF_NOWAIT``), and Python has them as ``os.preadv``, which wants a buffer to fill: making
one costs as much as the read, since it is zeroed first. Here the kernel writes into a new bytes object, as C code does
(``PyBytes_FromStringAndSize`` without content), and nobody else has seen that before it is full.
"""

import ctypes
import os

PIECE_BYTES = 1 << 20
"""One call asks for no more. What is not there begins to be read, and the syncs of all logs wait behind that."""


class _Buffer(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (("address", ctypes.c_void_p), ("length", ctypes.c_size_t))


# The interpreter and the C library, by calls that keep the interpreter's lock: none of them waits.
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
    """Let the kernel write up to ``length`` bytes of a file to ``address``; how many it had.

    Fewer: the file ends there, or the next page is not cached. 0: nothing but the end. -1: the first page is not
    cached, or the file system cannot tell, or anything else that a read that waits finds again.
    """
    count: int = _preadv2(descriptor, _Buffer(address, length), 1, position, os.RWF_NOWAIT)
    return count


def read_cached(descriptor: int, length: int, position: int) -> bytes | None:
    """Up to ``length`` bytes, shorter only at the end of the file; None where that takes the disk."""
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
