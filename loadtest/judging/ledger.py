"""The ledger of records written and read during a load, on disk: append-only files of checksummed frames.

A process has one file and appends each event with one ``write`` before it continues. So a killed process leaves
everything that it knew; only its last frame may be torn. A record is noted before it is sent: a record that is not
noted cannot be in the topic.

    offset  size  field
    0       4     length of the payload, big-endian
    4       4     CRC-32C of the payload
    8       ..    payload: msgpack array of the event's tag and fields, in the order of its class

A record costs about 15 bytes: a fingerprint of eight, and where it went.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from struct import Struct
from typing import Self

import msgspec
from crc32c import crc32c

from loadtest.records.receipts import Fate

SUFFIX = ".ledger"
CLOSED_SUFFIX = ".closed"
"""The name of an empty file beside a complete ledger."""
FRAME_BYTES_MAX = 1 << 28
"""The largest payload, in bytes; a larger length field means a damaged frame."""

_FRAME = Struct(">II")


class LedgerError(Exception):
    """A ledger is damaged before its end, or contradicts itself; the message says where."""


# The tag of an event is its number in the file, so it never changes.
class Opened(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=0):
    """The process started. ``starts`` has, by partition, the first offset that a record of this run may have."""

    at_s: float
    topic: str
    acks: str
    starts: Mapping[int, int]


class Sent(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=1):
    """Records that are about to be sent for the first time. A writer's sequences count from 0 without gaps."""

    at_s: float
    writer: int
    first: int
    endpoint: str
    fingerprints: bytes


class Settled(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=2):
    """The final knowledge about consecutive records of a request that have the same fate.

    ``partitions`` and ``offsets`` have an item for each record if the records were acknowledged, else they are empty.
    """

    at_s: float
    sent_s: float
    writer: int
    first: int
    count: int
    endpoint: str
    fate: Fate
    value_bytes: int
    partitions: tuple[int, ...]
    offsets: tuple[int, ...]


class Failed(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=3):
    """A failed attempt at a request; it may have been retried."""

    at_s: float
    endpoint: str
    node: str
    reason: str


class Polled(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=4):
    """One page that a reader got. If ``is_seek``, the reader chose a new offset for it."""

    at_s: float
    sent_s: float
    reader: int
    endpoint: str
    partition: int
    asked: int
    is_seek: bool
    value_bytes: int
    offsets: tuple[int, ...]
    fingerprints: bytes


class Incident(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=5):
    """A fault that the test injected into the cluster, such as a kill."""

    at_s: float
    text: str


class Stopping(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=6):
    """The users of the process were told to finish their requests and to send no more."""

    at_s: float


class Spent(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=7):
    """The CPU time of the process while its users had work to do; they share a thread and can use at most one core."""

    since_s: float
    at_s: float
    cpu_s: float


Event = Opened | Sent | Settled | Failed | Polled | Incident | Stopping | Spent
_decoder: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)


def encode_frame(event: Event) -> bytes:
    """Return an event as a frame."""
    payload = msgspec.msgpack.encode(event)
    return _FRAME.pack(len(payload), crc32c(payload)) + payload


def decode_payload(payload: bytes) -> Event:
    """Return the event of a frame's payload; the checksum has been verified.

    Raises:
        LedgerError: another version wrote the frame.
    """
    try:
        event: Event = _decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise LedgerError(f"a frame that this version cannot read: {error}") from error
    return event


class LedgerWriter:
    """Appends events to a new file. Each process has one."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        # Unbuffered: the kernel has each added event at once, so the event outlives this process.
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        self._is_open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, event: Event) -> None:
        """Append an event. After ``close`` nothing is appended, because requests that end then are too late to count.

        Raises:
            OSError: the disk is full or fails; the file then ends with a torn frame.
        """
        if not self._is_open:
            return
        frame = encode_frame(event)
        written = os.write(self._descriptor, frame)
        while written < len(frame):
            written += os.write(self._descriptor, frame[written:])

    def close(self) -> None:
        """Mark the ledger complete."""
        if self._is_open:
            self._is_open = False
            os.close(self._descriptor)
            self.path.with_suffix(CLOSED_SUFFIX).touch()


def read_ledger(path: Path) -> Iterator[Event]:
    """Yield the events of one file, in order. A torn last frame is skipped: the process did not act on its event.

    Raises:
        LedgerError: a frame before the last one is damaged.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        while frame := file.read(_FRAME.size):
            if len(frame) < _FRAME.size:
                return
            length, checksum = _FRAME.unpack(frame)
            at = file.tell()
            payload = file.read(length) if length <= FRAME_BYTES_MAX else b""
            if len(payload) == length and crc32c(payload) == checksum:
                yield decode_payload(payload)
            elif length <= FRAME_BYTES_MAX and at + length >= size:
                return
            else:
                raise LedgerError(f"{path}: the frame at byte {at - _FRAME.size} is damaged")


def ledger_files(directory: Path) -> list[Path]:
    """Return the ledger files of a run, one per process."""
    return sorted(directory.glob(f"*{SUFFIX}"))


def read_all(directory: Path) -> Iterator[Event]:
    """Yield the events of all ledgers of a run, file after file.

    Raises:
        LedgerError: a ledger is damaged, or there is none.
    """
    files = ledger_files(directory)
    if not files:
        raise LedgerError(f"{directory} holds no ledger")
    for path in files:
        yield from read_ledger(path)


def is_complete(directory: Path) -> bool:
    """Return whether every process of the run closed its ledger."""
    files = ledger_files(directory)
    return bool(files) and all(path.with_suffix(CLOSED_SUFFIX).exists() for path in files)
