"""Snapshot files: written whole, checked whole, sent and received in pieces.

A snapshot file is a run of records, all integers big-endian:

    offset  size  meaning
    0       4     payload_bytes
    4       4     CRC-32C over the kind, the payload and the CRC of the record before (0 for the first)
    8       1     kind: b"H" head, b"C" chunk of the state, b"E" end
    9       ..    payload

The head's payload is msgpack ``[version, [command, index, term], [command, index, term]]``: the last entry that
the state contains, and the entry before it. The payload of the end is msgpack ``[number of chunks]``. Each CRC covers
the CRC before it, so the reader detects every cut, splice, swap and flipped bit. The state of a file is used only
after the file was read up to its end record.

A file is written under another name and synced. A rename then makes it the current snapshot. The names:

    snapshot             the current snapshot
    snapshot.local       the snapshot that this node is writing
    snapshot.incoming    the snapshot that this node is receiving from the leader

A transfer has an id, and each piece has its offset in the file. So pieces of two transfers are never joined. If a piece
is lost, the transfer ends.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import crc32c
import msgspec

from milena.disk.files import File, Files
from milena.model.errors import CorruptLogError, DiskFullError
from raft_meta.consensus.messages import Chunk, Entry

FORMAT_VERSION: Final = 1

PIECE_BYTES: Final = 256 << 10
"""Bytes of the file in one message."""

_PAYLOAD_BYTES_MAX: Final = 256 << 20
_RECORD: Final = struct.Struct(">IIc")
_HEAD, _CHUNK, _END = b"H", b"C", b"E"

TransferId = tuple[int, int]
"""(incarnation of the sender, serial number of the transfer)."""


@dataclass(frozen=True, slots=True)
class SnapshotMeta:
    """The position of a snapshot: the last entry that it contains, and the entry before."""

    last: Entry
    previous: Entry

    @property
    def index(self) -> int:
        """Index of the last entry that the snapshot contains."""
        return self.last[1]


class _SnapshotWriter:
    def __init__(self, file: File) -> None:
        self._file = file
        self._position = 0
        self._crc = 0

    def write(self, kind: bytes, payload: bytes) -> None:
        self._crc = _chained(kind, payload, self._crc)
        self._position += self._file.pwritev(
            [_RECORD.pack(len(payload), self._crc, kind), payload], self._position
        )


def _chained(kind: bytes, payload: bytes, previous: int) -> int:
    crc: int = crc32c.crc32c(payload, crc32c.crc32c(kind, previous))
    return crc


def write_snapshot(files: Files, path: str, meta: SnapshotMeta, chunks: Iterable[bytes]) -> None:
    """Write a snapshot file and sync it. May run on any thread.

    Raises:
        DiskFullError: nothing is left at ``path``.
        DiskFailedError: the process must stop.
    """
    files.remove(path)
    file = files.open(path, create=True)
    try:
        writer = _SnapshotWriter(file)
        writer.write(_HEAD, msgspec.msgpack.encode((FORMAT_VERSION, meta.last, meta.previous)))
        count = 0
        for chunk in chunks:
            writer.write(_CHUNK, chunk)
            count += 1
        writer.write(_END, msgspec.msgpack.encode([count]))
        file.sync()
    except DiskFullError:
        files.remove(path)
        raise
    finally:
        file.close()


class SnapshotReader:
    """Reads and checks one snapshot file.

    Every method that reads records raises ``CorruptLogError`` if a record is cut off or damaged.
    """

    def __init__(self, files: Files, path: str) -> None:
        self._path = path
        self._file = files.open(path)
        self._size = self._file.size()

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return self._size

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read_meta(self) -> SnapshotMeta:
        """Read the head record only."""
        kind, payload, _, _ = self._record(0, 0)
        if kind != _HEAD:
            raise self._corrupt("it has no head")
        try:
            version, last, previous = msgspec.msgpack.decode(payload, type=tuple[int, Entry, Entry])
        except ValueError as error:
            raise self._corrupt("its head is malformed") from error
        if version != FORMAT_VERSION:
            raise self._corrupt(f"its format version is {version}")
        meta = SnapshotMeta(last, previous)
        if meta.previous[1] + 1 != meta.last[1]:
            raise self._corrupt("its head contradicts itself")
        return meta

    def verify(self) -> SnapshotMeta:
        """Read and check the whole file; return the position in its head."""
        for _ in self.chunks():
            pass
        return self.read_meta()

    def chunks(self) -> Iterator[bytes]:
        """Yield the chunks of the state, in order."""
        kind, _, position, crc = self._record(0, 0)
        count = 0
        while True:
            kind, payload, position, crc = self._record(position, crc)
            if kind != _CHUNK:
                break
            count += 1
            yield payload
        if kind != _END or payload != msgspec.msgpack.encode([count]) or position != self._size:
            raise self._corrupt("its end is wrong")

    def _record(self, position: int, previous: int) -> tuple[bytes, bytes, int, int]:
        head = self._file.pread(_RECORD.size, position)
        if len(head) < _RECORD.size:
            raise self._corrupt(f"it ends at byte {position}")
        payload_bytes, crc, kind = _RECORD.unpack(head)
        start = position + _RECORD.size
        if payload_bytes > min(_PAYLOAD_BYTES_MAX, self._size - start):
            raise self._corrupt(f"the record at byte {position} is cut off")
        payload = self._file.pread(payload_bytes, start)
        if len(payload) != payload_bytes or _chained(kind, payload, previous) != crc:
            raise self._corrupt(f"the record at byte {position} fails its checksum")
        return kind, payload, start + payload_bytes, crc

    def _corrupt(self, reason: str) -> CorruptLogError:
        return CorruptLogError(f"snapshot {self._path} is not usable: {reason}")


class OutgoingTransfer:
    """A snapshot that is being sent to one node. Its file stays open, even if a newer snapshot replaces the file."""

    def __init__(self, file: File, transfer_id: TransferId, *, piece_bytes: int) -> None:
        self._file = file
        self._id = transfer_id
        self._size = file.size()
        self._piece_bytes = piece_bytes
        self._offset = 0

    def next_piece(self) -> Chunk:
        """Read the next piece of the file; the last piece is marked as last."""
        start = self._offset
        data = self._file.pread(self._piece_bytes, start)
        self._offset += len(data)
        return data, start == 0, self._offset >= self._size, self._id, start

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class IncomingTransfer:
    """A snapshot that is being received from one node."""

    def __init__(self, files: Files, path: str, node_id: int, transfer_id: TransferId) -> None:
        files.remove(path)
        self._file = files.open(path, create=True)
        self.node_id = node_id
        self.transfer_id = transfer_id
        self.received_bytes = 0

    def write(self, data: bytes) -> None:
        """Add a piece at the end of the file.

        Raises:
            DiskFullError: the transfer must be abandoned.
        """
        self.received_bytes += self._file.pwritev([data], self.received_bytes)

    def sync(self) -> None:
        """Make the received bytes durable."""
        self._file.sync()

    def close(self) -> None:
        """Close the file without removing it."""
        self._file.close()


class SnapshotStore:
    """The snapshot files of one directory. Owned by one thread; ``write_snapshot`` may run on another."""

    def __init__(self, files: Files, directory: str, *, piece_bytes: int = PIECE_BYTES) -> None:
        self.files = files
        self.path = f"{directory}/snapshot"
        self.local_path = f"{directory}/snapshot.local"
        self.incoming_path = f"{directory}/snapshot.incoming"
        self._piece_bytes = piece_bytes
        files.remove(self.local_path)
        files.remove(self.incoming_path)
        # A process that was killed may have renamed a file without syncing the directory. This process reads the file
        # under its new name, so a later power cut must not undo the rename.
        files.sync_directory(directory)
        self.meta: SnapshotMeta | None = None
        self.size_bytes = 0
        if files.exists(self.path):
            self._look()

    def read(self) -> tuple[SnapshotMeta, list[bytes]]:
        """Read the current snapshot and check it as a whole.

        Raises:
            CorruptLogError: the file is damaged. The process must stop, so that it does not run with no state.
        """
        reader = SnapshotReader(self.files, self.path)
        try:
            return reader.read_meta(), list(reader.chunks())
        finally:
            reader.close()

    def adopt(self, path: str) -> None:
        """Make the synced file at ``path`` the current snapshot."""
        self.files.rename_durably(path, self.path)
        self._look()

    def open_outgoing(self, transfer_id: TransferId) -> OutgoingTransfer | None:
        """Start a transfer of the current snapshot; None if there is no snapshot."""
        if self.meta is None:
            return None
        file = self.files.open(self.path)
        return OutgoingTransfer(file, transfer_id, piece_bytes=self._piece_bytes)

    def open_incoming(self, node_id: int, transfer_id: TransferId) -> IncomingTransfer:
        """Start a new file for a transfer; the bytes of an earlier one are removed."""
        return IncomingTransfer(self.files, self.incoming_path, node_id, transfer_id)

    def verify_incoming(self) -> SnapshotMeta:
        """Check the received file as a whole.

        Raises:
            CorruptLogError: it is not a whole snapshot.
        """
        reader = SnapshotReader(self.files, self.incoming_path)
        try:
            return reader.verify()
        finally:
            reader.close()

    def _look(self) -> None:
        reader = SnapshotReader(self.files, self.path)
        try:
            self.meta = reader.read_meta()
            self.size_bytes = reader.size_bytes
        finally:
            reader.close()
