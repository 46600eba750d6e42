"""A small file that is replaced in place and is always readable: two slots, written in turn.

Replacing a file by a rename needs room for the new file and three syncs. A slot file needs one sync and no room, so it
can be written on a full disk. A write goes to the slot with the older content. A crash during the write can damage only
that slot, because each slot has a block of the disk to itself. The other slot keeps the newest durable content.

    offset  size  field of a slot (slots begin at 0 and 4096)
    0       4     magic, the kind of file
    4       4     CRC-32C over the rest, content included
    8       8     sequence: 1, 2, 3, ...; the greater of the two is the newest
    16      4     content_bytes
    20      ..    content; the rest of the 4096 bytes is ignored
"""

from dataclasses import dataclass
from struct import Struct

from crc32c import crc32c

from milena.disk.files import File, Files
from milena.model.errors import CorruptLogError

SLOT_BYTES = 4096

_HEADER = Struct(">4sIQI")
_SEALED = Struct(">QI")
_SEALED_POSITION = _HEADER.size - _SEALED.size

_NEVER_WRITTEN = bytes(SLOT_BYTES)

CONTENT_BYTES_MAX = SLOT_BYTES - _HEADER.size


@dataclass(frozen=True, slots=True)
class _Slot:
    sequence: int
    content: bytes


@dataclass(frozen=True, slots=True)
class SlotContent:
    """Content of a slot file.

    ``is_whole`` is False if one slot is damaged. The damaged slot may have been the newer one, and ``content`` may then
    be that of the write before.
    """

    content: bytes
    is_whole: bool


class SlotFile:
    """One slot file, owned by one thread.

    Invariants:
        - after a write, both slots are valid and their sequences differ by one, or only one slot was ever written;
        - content that ``load`` returned or ``store`` wrote is durable.
    """

    def __init__(self, files: Files, path: str, magic: bytes) -> None:
        """Name the file; nothing is opened. ``magic`` has 4 bytes and identifies the kind of file."""
        assert len(magic) == 4, magic
        self._files = files
        self._path = path
        self._magic = magic
        self._sequence = 0
        self._position = SLOT_BYTES

    def load(self) -> SlotContent | None:
        """Return the newest content; None if the file does not exist.

        Raises:
            CorruptLogError: neither slot is valid, or the file is of another kind.
        """
        try:
            file = self._files.open(self._path)
        except FileNotFoundError:
            return None
        try:
            # After a kill, the content that is read here may be only in the page cache. The sync makes it durable.
            file.sync()
            slots = [self._read_slot(file, position) for position in (0, SLOT_BYTES)]
        finally:
            file.close()
        valid = [(slot.sequence, at) for at, slot in enumerate(slots) if slot and slot.sequence]
        if not valid:
            raise CorruptLogError(
                f"{self._path} fails its checksum in both places, or is another kind of file"
            )
        self._sequence, newest = max(valid)
        self._position = newest * SLOT_BYTES
        slot, other = slots[newest], slots[1 - newest]
        assert slot is not None, self._path
        is_whole = other is not None and other.sequence == self._sequence - 1
        return SlotContent(slot.content, is_whole)

    def _read_slot(self, file: File, position: int) -> _Slot | None:
        """Return a slot, with sequence 0 if it was never written; None if it is damaged."""
        block = file.pread(SLOT_BYTES, position)
        if block == _NEVER_WRITTEN:
            return _Slot(0, b"")
        if len(block) < _HEADER.size:
            return None
        magic, crc, sequence, content_bytes = _HEADER.unpack_from(block)
        end = _HEADER.size + content_bytes
        if magic != self._magic or end > len(block):
            return None
        if crc32c(block[_SEALED_POSITION:end]) != crc:
            return None
        return _Slot(sequence, block[_HEADER.size : end])

    def store(self, content: bytes) -> None:
        """Replace the content durably. If the file exists, call ``load`` before the first ``store``.

        Raises:
            DiskFullError: only for a file that does not exist yet.
            DiskFailedError: stop the process.
        """
        assert len(content) <= CONTENT_BYTES_MAX, (self._path, len(content))
        if self._sequence == 0:
            first = self._encode_slot(1, content).ljust(2 * SLOT_BYTES, b"\0")
            self._files.write_atomically(self._path, first)
            self._sequence, self._position = 1, 0
            return
        sequence, position = self._sequence + 1, SLOT_BYTES - self._position
        file = self._files.open(self._path)
        try:
            file.pwritev([self._encode_slot(sequence, content)], position)
            file.sync()
        finally:
            file.close()
        self._sequence, self._position = sequence, position

    def _encode_slot(self, sequence: int, content: bytes) -> bytes:
        sealed = _SEALED.pack(sequence, len(content)) + content
        return self._magic + crc32c(sealed).to_bytes(4, "big") + sealed
