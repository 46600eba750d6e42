"""The durable Raft log: entries, hard state (term and vote) and truncations, in one checksummed file.

The log is written in *groups*. A group holds all records since the last ``sync``. One call writes and syncs a group,
and the next group is written only after that sync returned. Recovery relies on this order:

- If no valid group follows a bad group, a crash interrupted the write of the bad group. No message that depends on its
  records was sent, so the group is cut off.
- If a valid group follows a bad group, the bad group was synced before: votes or acknowledgements depend on it. So it
  was damaged later, and the node refuses to start (``CorruptLogError``).

Group, all integers big-endian; zeros behind the last group are preallocated space:

    offset  size  meaning
    0       4     b"MWAL"
    4       4     payload_bytes
    8       8     sequence: 1 for the first group of a file, then one more for each group
    16      4     CRC-32C over payload_bytes, sequence and payload
    20      ..    payload: msgpack arrays back to back

    record                        meaning
    [0, version]                  the first record of a file
    [1, command, index, term]     an entry; indexes are consecutive
    [2, index]                    the entry with this index and all later entries are removed
    [3, term, vote|nil]           hard state

Compaction (``drop_before``) writes a new file beside the old one and renames the new file over the old one. The entries
that it keeps may be acknowledged, so a crash must not find the only copy half written. Space is preallocated in steps,
and proposals may not use the reserve (``has_room``). So on a full disk, proposals are refused while votes and changes
of term and leader continue.

A failed sync (``DiskFailedError``) leaves the log unusable: the process must stop.
"""

import struct
from collections.abc import Iterable
from typing import Final

import crc32c
import msgpack  # type: ignore[import-untyped]  # ships no type hints

from milena.disk.files import File, Files
from milena.model.errors import CorruptLogError, DiskFailedError, DiskFullError
from raft_meta.consensus.messages import Entry

FORMAT_VERSION: Final = 1

ROOM_STEP_BYTES: Final = 4 << 20
"""How far the file grows at a time: four times the largest command."""

RESERVE_BYTES: Final = 1 << 20
"""Space that proposals may not use: enough for some 30,000 changes of term while the disk is full."""

_MAGIC: Final = b"MWAL"
_GROUP: Final = struct.Struct(">4sIQI")
_CHECKED: Final = struct.Struct(">IQ")
_RECORD_OVERHEAD: Final = 32
"""An upper bound of the msgpack framing of one entry: array, kind, bytes header, two integers of up to 9 bytes."""

_VERSION, _ENTRY, _TRUNCATE, _HARD_STATE = range(4)
_FIRST_INDEX: Final = 1


class Wal:
    """The log, in memory and on disk.

    Invariants: ``entries`` are consecutive in index. A crash may lose records that are not on disk yet (``is_dirty``).
    It then loses all of them, or the last ones. Owned by one thread.
    """

    def __init__(
        self,
        files: Files,
        path: str,
        *,
        room_step_bytes: int = ROOM_STEP_BYTES,
        reserve_bytes: int = RESERVE_BYTES,
    ) -> None:
        self._files = files
        self._path = path
        self._room_step = room_step_bytes
        self._reserve = reserve_bytes
        self.entries: list[Entry] = []
        self.term = 0
        self.voted_for: int | None = None
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._sequence = 0
        self._end = 0
        self._failed = False
        files.remove(path + ".new")
        self._file = files.open(path, create=True)
        try:
            self._end = self._load()
        except BaseException:
            self._file.close()
            raise
        self._allocated = self._file.size()
        self._cut_bytes = self._cut_tail()
        self.has_room(0)
        # A killed process may have written bytes that it did not sync, and ``_load`` may have read them. This node acts
        # on them now, so a later power cut must not remove them.
        self._file.sync()
        files.sync_directory(path.rpartition("/")[0] or ".")
        self._is_new = self._end == 0
        if self._is_new:
            self._record(_VERSION, FORMAT_VERSION)

    # -- what is in it

    @property
    def is_new(self) -> bool:
        """Whether the file was missing or empty when it was opened."""
        return self._is_new

    @property
    def cut_bytes(self) -> int:
        """Number of bytes of an interrupted write that were cut off when the log was opened."""
        return self._cut_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes of the file in use, plus the records that are not written yet. Compaction depends on this size."""
        return self._end + self._pending_bytes

    @property
    def is_dirty(self) -> bool:
        """Whether any record is not on disk yet."""
        return bool(self._pending)

    def position_of(self, entry: Entry) -> int | None:
        """Return the position in ``entries`` of the entry with this index and term; None if there is none."""
        position = entry[1] - self.entries[0][1] if self.entries else -1
        if 0 <= position < len(self.entries) and self.entries[position][1:] == entry[1:]:
            return position
        return None

    def has_room(self, command_bytes: int, *, count: int = 1, is_urgent: bool = False) -> bool:
        """Return whether ``count`` commands of ``command_bytes`` together may be added; grow the file if needed.

        ``is_urgent``: for the entries that a new leader and a learner need. These may use half of the reserve.
        """
        reserve = self._reserve // 2 if is_urgent else self._reserve
        added = _GROUP.size + command_bytes + _RECORD_OVERHEAD * count
        needed = self.size_bytes + added + reserve
        if needed <= self._allocated:
            return True
        try:
            self._grow(needed)
        except DiskFullError:
            return False
        return True

    # -- changes; on disk only after ``sync``

    def append(self, entry: Entry) -> None:
        """Add the next entry."""
        assert not self.entries or entry[1] == self.entries[-1][1] + 1, (
            f"entry {entry[1]} does not follow {self.entries[-1][1]}"
        )
        self.entries.append(entry)
        self._record(_ENTRY, *entry)

    def truncate_from(self, index: int) -> None:
        """Remove the entry with this index and all later entries."""
        if not self.entries or index > self.entries[-1][1]:
            return
        # Record the index of the call, even if it is below ``entries``: after a compaction failed on a full disk, the
        # file still has earlier entries.
        self._record(_TRUNCATE, index)
        del self.entries[max(0, index - self.entries[0][1]) :]

    def set_hard_state(self, term: int, voted_for: int | None) -> None:
        """Record term and vote. They must be synced before a message that depends on them is sent."""
        if (term, voted_for) != (self.term, self.voted_for):
            self.term, self.voted_for = term, voted_for
            self._record(_HARD_STATE, term, voted_for)

    def sync(self) -> None:
        """Write and sync all new records as one group.

        Raises:
            DiskFailedError: a write or sync failed; stop the process.
            DiskFullError: not even the reserve was left; stop the process.
        """
        if self._failed:
            raise DiskFailedError(f"{self._path}: a sync failed before")
        if not self._pending:
            return
        self._failed = True
        chunks = _group(self._sequence + 1, self._pending)
        needed = self._end + sum(map(len, chunks))
        if needed > self._allocated:
            self._grow(needed)
        self._file.pwritev(chunks, self._end)
        self._file.sync()
        self._failed = False
        self._sequence += 1
        self._end = needed
        self._pending = []
        self._pending_bytes = 0

    def drop_before(self, index: int) -> None:
        """Remove the entries below ``index``, durably and at once. This also syncs all new records.

        If the disk is full, only ``entries`` changes. The file keeps the older entries until the next rewrite, and
        opening it loads them. This does no harm, because the snapshot contains them.
        """
        if self.entries:
            del self.entries[: max(0, index - self.entries[0][1])]
        self._rewrite()

    def restart_with(self, entries: Iterable[Entry]) -> None:
        """Replace all entries, durably and at once. If the disk is full, record the change for the next ``sync``."""
        kept = list(entries)
        # Truncate from index 1: the file may still have entries that ``drop_before`` removed from memory. They must not
        # stay before a gap.
        self._record(_TRUNCATE, _FIRST_INDEX)
        self.entries = []
        for entry in kept:
            self.append(entry)
        self._rewrite()

    def close(self) -> None:
        """Sync and close the file."""
        if not self._failed:
            self.sync()
        self._file.close()

    def abandon(self) -> None:
        """Close the file without syncing it: the process is stopping because of this log."""
        self._file.close()

    # -- the file

    def _record(self, *record: object) -> None:
        data: bytes = msgpack.packb(record)
        self._pending.append(data)
        self._pending_bytes += len(data)

    def _grow(self, needed: int) -> None:
        size = self._rounded(needed)
        self._file.allocate(size)
        self._allocated = size

    def _rounded(self, needed: int) -> int:
        return -(-(needed + self._reserve) // self._room_step) * self._room_step

    def _rewrite(self) -> None:
        if self._failed:
            raise DiskFailedError(f"{self._path}: a sync failed before")
        records: list[bytes] = [msgpack.packb((_VERSION, FORMAT_VERSION))]
        records.append(msgpack.packb((_HARD_STATE, self.term, self.voted_for)))
        records.extend(msgpack.packb((_ENTRY, *entry)) for entry in self.entries)
        chunks = _group(1, records)
        end = sum(map(len, chunks))
        temporary = self._path + ".new"
        self._files.remove(temporary)
        file = self._files.open(temporary, create=True)
        try:
            allocated = self._rounded(end)
            file.allocate(allocated)
            file.pwritev(chunks, 0)
            file.sync()
        except DiskFullError:
            file.close()
            self._files.remove(temporary)
            return
        except BaseException:
            self._failed = True
            file.close()
            raise
        self._swap(file, temporary, end, allocated)

    def _swap(self, file: File, temporary: str, end: int, allocated: int) -> None:
        self._failed = True
        self._files.rename_durably(temporary, self._path)
        self._failed = False
        self._file.close()
        self._file = file
        self._sequence = 1
        self._end, self._allocated = end, allocated
        self._pending = []
        self._pending_bytes = 0

    # -- recovery

    def _load(self) -> int:
        """Replay the file; return the position at which its last good group ends."""
        content = self._file.pread(self._file.size(), 0)
        position = 0
        while (end := self._load_group(content, position)) is not None:
            position = end
        self._refuse_damage(content, position)
        return position

    def _load_group(self, content: bytes, position: int) -> int | None:
        found = _read_group(content, position)
        if found is None or found[0] != self._sequence + 1:
            return None
        self._sequence, payload = found
        unpacker = msgpack.Unpacker(max_buffer_size=0, use_list=False)
        unpacker.feed(payload)
        try:
            for record in unpacker:
                self._replay(record)
            if unpacker.tell() != len(payload):
                raise ValueError("the last record is cut off")
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise CorruptLogError(f"{self._path}: a group holds no records: {error}") from error
        return position + _GROUP.size + len(payload)

    def _replay(self, record: object) -> None:
        match record:
            case (0, version):
                if version != FORMAT_VERSION:
                    raise CorruptLogError(
                        f"{self._path}: format version {version}, this program reads {FORMAT_VERSION}"
                    )
            case (1, bytes(command), int(index), int(term)):
                if self.entries and index != self.entries[-1][1] + 1:
                    raise CorruptLogError(
                        f"{self._path}: entry {index} follows entry {self.entries[-1][1]}"
                    )
                self.entries.append((command, index, term))
            case (2, int(index)):
                while self.entries and self.entries[-1][1] >= index:
                    self.entries.pop()
            case (3, int(term), int(vote)):
                self.term, self.voted_for = term, vote
            case (3, int(term), None):
                self.term, self.voted_for = term, None
            case _:
                raise CorruptLogError(f"{self._path}: unknown record {_kind(record)!r}")

    def _refuse_damage(self, content: bytes, position: int) -> None:
        candidate = content.find(_MAGIC, position)
        while candidate >= 0:
            found = _read_group(content, candidate)
            if found is not None and found[0] > self._sequence:
                raise CorruptLogError(
                    f"{self._path}: damaged at byte {position}, but a synced group follows at "
                    f"byte {candidate}"
                )
            candidate = content.find(_MAGIC, candidate + 1)

    def _cut_tail(self) -> int:
        """Overwrite an incomplete group with zeros; return how many bytes it had.

        Truncating the file instead would free blocks. On a full disk, the log might not get them back.
        """
        tail = self._file.pread(self._allocated - self._end, self._end)
        torn = len(tail.rstrip(b"\0"))
        if torn:
            self._file.pwritev([bytes(torn)], self._end)
        return torn


def _kind(record: object) -> object:
    return record[:1] if isinstance(record, tuple) else type(record).__name__


def _group(sequence: int, records: list[bytes]) -> list[bytes]:
    payload = b"".join(records)
    checked = _CHECKED.pack(len(payload), sequence)
    crc = crc32c.crc32c(payload, crc32c.crc32c(checked))
    return [_GROUP.pack(_MAGIC, len(payload), sequence, crc), payload]


def _read_group(content: bytes, position: int) -> tuple[int, memoryview] | None:
    """Return (sequence, payload) of the group at ``position``; None if there is no whole, undamaged group."""
    start = position + _GROUP.size
    if start > len(content):
        return None
    magic, payload_bytes, sequence, crc = _GROUP.unpack_from(content, position)
    if magic != _MAGIC or start + payload_bytes > len(content):
        return None
    payload = memoryview(content)[start : start + payload_bytes]
    checked = _CHECKED.pack(payload_bytes, sequence)
    if crc32c.crc32c(payload, crc32c.crc32c(checked)) != crc:
        return None
    return sequence, payload
