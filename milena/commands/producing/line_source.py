"""The input of ``milena produce``: standard input or a file, compressed or not (blocking).

Files are read without Python's buffers. A buffered file holds a lock while a read waits. A pipe may stay silent
forever, and closing the file, or ending the process, would then wait for it.
"""

import io
import os
import stat
import sys
import zlib
from typing import Protocol, Self

READ_BYTES = 1 << 20
"""Some thousand lines: the work per piece is then small per line."""
STANDARD_INPUT = "-"

_GZIP_WINDOW_BITS = 31
"""The value by which zlib expects a gzip header and trailer."""


class BadSourceError(Exception):
    """The input cannot be read, or not further; the message says why."""


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes | None:
        """Return available bytes, up to ``size``; wait for at least one; no bytes at the end."""


class _Unpacker:
    """The plain bytes of gzip members, one after the other. Zeros may pad the end."""

    def __init__(self, packed: io.FileIO) -> None:
        self._packed = packed
        self._held = b""
        self._is_at_end = False
        self._members = 0
        self._decoder: zlib._Decompress | None = None

    def read(self, size: int, /) -> bytes:
        """Return some plain bytes; no bytes at the end.

        Raises:
            EOFError: the compressed bytes end in the middle of a member.
            zlib.error: the bytes are no gzip.
        """
        while True:
            if not self._held and not self._is_at_end:
                self._held = self._packed.read(READ_BYTES) or b""
                self._is_at_end = not self._held
            if self._decoder is None and not self._begin_member():
                if self._is_at_end:
                    return b""
                continue
            piece = self._step(size)
            if piece:
                return piece

    def _begin_member(self) -> bool:
        if self._members:
            self._held = self._held.lstrip(b"\0")
        if not self._held:
            return False
        self._decoder = zlib.decompressobj(_GZIP_WINDOW_BITS)
        return True

    def _step(self, size: int) -> bytes:
        decoder = self._decoder
        assert decoder is not None, "a member has started"
        piece = decoder.decompress(self._held, size)
        if decoder.eof:
            self._held, self._decoder = decoder.unused_data, None
            self._members += 1
        else:
            self._held = decoder.unconsumed_tail
            if self._is_at_end and not piece:
                raise EOFError("it ends in the middle of what was packed")
        return piece


class LineSource:
    """The bytes of a file or of standard input (``-``).

    A context manager, for one thread; raises ``BadSourceError``.
    """

    def __init__(self, path: str, *, is_packed: bool) -> None:
        self.name = "standard input" if path == STANDARD_INPUT else path
        is_standard = path == STANDARD_INPUT
        if is_standard and sys.__stdin__ is None:
            raise BadSourceError("cannot read standard input: it is closed")
        try:
            # Standard input belongs to the process: do not close it.
            self._file = io.FileIO(
                sys.stdin.fileno() if is_standard else path, closefd=not is_standard
            )
        except OSError as error:
            raise self._bad(error) from error
        self._is_packed = is_packed
        self._start = None if self.size_bytes is None else self._file.tell()
        self._stream = self._begin()

    def _begin(self) -> _Stream:
        return _Unpacker(self._file) if self._is_packed else self._file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def size_bytes(self) -> int | None:
        """The size of a file; None for a pipe or a terminal."""
        found = os.fstat(self._file.fileno())
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    @property
    def can_rewind(self) -> bool:
        """True for a file: it can be read twice."""
        return self._start is not None

    def rewind(self) -> None:
        """Read again from where this source began; only if ``can_rewind``."""
        assert self._start is not None, self.name
        self._file.seek(self._start)
        self._stream = self._begin()

    def read(self) -> tuple[bytes, int]:
        """Wait for bytes; return them and how far into the file they end. At the end there are none."""
        try:
            piece = self._stream.read(READ_BYTES) or b""
            return piece, self._file.tell() if self._file.seekable() else 0
        except zlib.error as error:
            raise BadSourceError(
                f"cannot read {self.name}: it is not, or no longer, gzip ({error})"
            ) from error
        except (OSError, EOFError) as error:
            raise self._bad(error) from error

    def _bad(self, error: Exception) -> BadSourceError:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return BadSourceError(f"cannot read {self.name}: {why}")
