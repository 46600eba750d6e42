"""Commands, responses and images as bytes: versioned msgpack, canonical (equal values give equal bytes).

Envelope: msgpack ``[version, proposer, incarnation, sequence, now_ms, tag, fields]``, and the principal if there is
one; tags below never change meaning.
Response: msgpack ``[version, value]``, or ``[version, code, message]`` for a refusal. In an image, the message is empty
from ``CODES_LEVEL`` on.

Image: ``MLNI`` and a version byte, then frames, all big-endian:

    offset  size  type   meaning
    0       4     u32    length of the body
    4       4     u32    CRC-32C of the body
    8       ..    bytes  msgpack [section, items]

Sections are in the order of their numbers, items in ascending order of keys. A section without items is left out, so
that an image of an older feature level has the same bytes as in an older release. The last frame is the digest of all
bytes before it, so that frames of two snapshots cannot be combined. Derived data is not stored (the maps from names to
ids). Chunks have about ``CHUNK_BYTES``, so that other threads can run between two chunks.

Every decoder accepts hostile bytes: it raises only CorruptLogError.
"""

import hashlib
import re
import struct
from collections.abc import Callable, Iterable, Iterator

import crc32c
import msgpack  # type: ignore[import-untyped]  # ships no type hints

from milena.model.errors import CorruptLogError, MalformedRequestError, MilenaError
from milena.model.types import WallMs
from raft_meta.machine import commands as c
from raft_meta.machine import invariants, shapes
from raft_meta.machine.image import Image
from raft_meta.machine.image_sections import END, ImageReader, sections_of
from raft_meta.machine.outcome import Response

FORMAT_VERSION = 1
FEATURE_LEVEL_MAX = 12
"""The highest feature level that this release knows."""
CODES_LEVEL = 12
"""The feature level from which on the image keeps the code of a refusal, and not its message. So nodes of two releases
that word a refusal differently have equal images."""

_COMMANDS: dict[int, tuple[type[c.Command], int]] = {
    1: (c.InitCluster, 1),
    2: (c.ClaimController, 1),
    3: (c.RegisterBroker, 1),
    4: (c.UnfenceBroker, 1),
    5: (c.FenceBroker, 1),
    6: (c.DrainBroker, 1),
    7: (c.UnregisterBroker, 1),
    8: (c.ElectLeaders, 1),
    9: (c.CreateTopic, 1),
    10: (c.DeleteTopic, 1),
    11: (c.AddPartitions, 1),
    12: (c.AlterConfigs, 1),
    13: (c.AlterIsr, 1),
    14: (c.AllocateProducer, 1),
    15: (c.CheckImage, 1),
    16: (c.SetFeatureLevel, 1),
    17: (c.ReassignPartitions, 2),
    18: (c.StepReassignments, 2),
    19: (c.AlterGroup, 3),
    20: (c.CommitOffsets, 3),
    21: (c.ExpireOffsets, 3),
    22: (c.DeleteGroup, 3),
    23: (c.PutConsumer, 3),
    24: (c.DeleteConsumers, 3),
    25: (c.GiveUpReplicas, 4),
    26: (c.EndTransactions, 6),
    27: (c.FinishMarkers, 6),
    28: (c.InitAccess, 7),
    29: (c.SetAccessMode, 7),
    30: (c.PutUser, 7),
    31: (c.DeleteUser, 7),
    32: (c.CreateToken, 7),
    33: (c.DeleteTokens, 7),
    34: (c.AlterAcls, 7),
    35: (c.AlterQuota, 8),
    36: (c.ForgetAudited, 8),
    37: (c.ForgetProducers, 8),
    38: (c.CorrectTime, 11),
    39: (c.NoteAction, 11),
    40: (c.PutClassicGroup, 12),
    41: (c.DeleteOffsets, 12),
    42: (c.SetKafkaAddresses, 12),
    43: (c.InitTransactionalId, 12),
    44: (c.EnlistInTransactions, 12),
}
"""Wire tag → command, and the feature level from which on it is allowed. No tag is ever used for another command."""
TAGS = {tag: kind for tag, (kind, _) in _COMMANDS.items()}
LEVELS = dict(_COMMANDS.values())
"""The feature level from which on each command is allowed."""

CHUNK_BYTES = 128 << 10
FRAME_BYTES_MAX = 16 << 20
"""Largest frame that a decoder accepts. Real frames are much smaller: an item is at most about one command (1 MiB), and
a frame holds at most one item above ``CHUNK_BYTES``."""
HASH_BYTES = 16

_MAGIC = b"MLNI" + bytes([FORMAT_VERSION])
_FRAME = struct.Struct(">II")
_TAG_OF = {kind: tag for tag, kind in TAGS.items()}
_SUSPECT = re.compile(rb"\xcf[\x80-\xff]")
"""Bytes that may be an integer above 63 bits; they may also be part of a text."""


def encode_envelope(envelope: c.Envelope) -> bytes:
    """Encode a command for the wire and the log.

    Raises:
        MalformedRequestError: no node could decode it. In the log, it would stop every node at each start.
    """
    command = envelope.command
    row = [
        FORMAT_VERSION,
        envelope.proposer,
        envelope.incarnation,
        envelope.sequence,
        envelope.now_ms,
        _TAG_OF[type(command)],
        shapes.pack(command),
    ]
    if envelope.principal:
        row.append(envelope.principal)
    try:
        packed = _packed(row)
        if _SUSPECT.search(packed) is not None:
            decode_envelope(packed)
    except (CorruptLogError, OverflowError, UnicodeEncodeError) as error:
        raise MalformedRequestError(f"This cannot be written down: {error}") from error
    return packed


def decode_envelope(data: bytes) -> c.Envelope:
    """Decode a command.

    Raises:
        CorruptLogError: not a command, or one of a newer release; the node must stop.
    """
    row = _unpacked(data)
    if not isinstance(row, list) or not row or row[0] != FORMAT_VERSION or len(row) not in {7, 8}:
        raise CorruptLogError("Not a metadata command of a format that this release knows.")
    numbers = [_integer(number) for number in row[1:6]]
    kind = TAGS.get(numbers[4])
    if kind is None:
        raise CorruptLogError(
            f"Metadata command {numbers[4]} is unknown to this release: a newer one wrote it. Upgrade this node."
        )
    command: c.Command = shapes.parse(kind, row[6])
    principal = row[7] if len(row) > 7 else ""
    if not isinstance(principal, str):
        raise CorruptLogError("The principal of a metadata command is not text.")
    return c.Envelope(
        proposer=numbers[0],
        incarnation=numbers[1],
        sequence=numbers[2],
        now_ms=WallMs(numbers[3]),
        command=command,
        principal=principal,
    )


def encode_response(value: Response) -> bytes:
    """Encode a command's response."""
    return _packed([FORMAT_VERSION, value])


def encode_error(error: MilenaError) -> bytes:
    """Encode a refusal: its code and its message."""
    return _packed([FORMAT_VERSION, error.code, error.message])


def encode_code(error: MilenaError) -> bytes:
    """Encode a refusal as the image keeps it from ``CODES_LEVEL`` on: without its message."""
    return _packed([FORMAT_VERSION, error.code, ""])


def decode_response(data: bytes) -> Response:
    """Decode a command's response.

    Raises:
        MilenaError: the command was refused; the typed error of the refusal.
        CorruptLogError: not a response.
    """
    row = _unpacked(data)
    if not isinstance(row, list) or not row or row[0] != FORMAT_VERSION:
        raise CorruptLogError("Not a response of a format that this release knows.")
    if len(row) == 3 and isinstance(row[1], str) and isinstance(row[2], str):
        raise _error_of(row[1])(row[2] or f"An earlier try of this got the response {row[1]}.")
    if len(row) != 2:
        raise CorruptLogError("Not a response.")
    return _response_of(row[1])


def error_of(code: str, message: str) -> MilenaError:
    """Return the typed error of a code, for a part of a command that was refused."""
    return _error_of(code)(message)


def _response_of(value: object) -> Response:
    if value is None or type(value) is int or isinstance(value, str):
        return value
    if isinstance(value, list):
        numbers = tuple(item for item in value if isinstance(item, int))
        words = tuple(item for item in value if isinstance(item, str))
        if len(numbers) == len(value):
            return numbers
        if len(words) == len(value):
            return words
    raise CorruptLogError("Not a response.")


def _error_of(code: str) -> Callable[[str], MilenaError]:
    """Return the class of an error code; for a code of a newer release, the nearest known class.

    Only classes of ``milena.model.errors`` count: a class from elsewhere shares the code of the class that it extends.
    """
    pending: list[type[MilenaError]] = [MilenaError]
    while pending:
        kind = pending.pop()
        if kind.code == code and kind.__module__ == MilenaError.__module__:
            return kind
        pending.extend(kind.__subclasses__())
    return MilenaError


# --- images ---


def encode_image(image: Image) -> Iterator[bytes]:
    """Yield the image in chunks. The iterator may run on any thread, and may be abandoned."""
    digest = hashlib.blake2b(_MAGIC, digest_size=HASH_BYTES)
    lead = _MAGIC
    for section, rows in sections_of(image):
        for body in _bodies(section, rows):
            frame = _framed(body)
            digest.update(frame)
            yield lead + frame
            lead = b""
    yield _framed(_packed([END, [digest.digest()]]))


def image_hash(image: Image) -> bytes:
    """Return the digest of the image's canonical bytes: equal on two nodes exactly if their images are equal.

    This takes about as long as a snapshot (3 s per million partitions), so it belongs on a worker thread. Nodes of
    different releases compare digests. So an image's bytes and this digest are as fixed as a snapshot's format.
    """
    digest = hashlib.blake2b(digest_size=HASH_BYTES)
    for chunk in encode_image(image):
        digest.update(chunk)
    return digest.digest()


def _bodies(section: int, rows: Iterator[object]) -> Iterator[bytes]:
    """Yield frame bodies of about CHUNK_BYTES. Packed items behind a list header are a packed list."""
    group: list[bytes] = []
    size = 0
    packer = msgpack.Packer()
    for row in rows:
        item = _packed(row)
        group.append(item)
        size += len(item)
        if size >= CHUNK_BYTES:
            yield _body(packer, section, group)
            group, size = [], 0
    if group:
        yield _body(packer, section, group)


def _body(packer: msgpack.Packer, section: int, items: list[bytes]) -> bytes:
    head = bytes(packer.pack_array_header(2)) + bytes(packer.pack(section))
    return b"".join([head, bytes(packer.pack_array_header(len(items))), *items])


def _framed(body: bytes) -> bytes:
    return _FRAME.pack(len(body), crc32c.crc32c(body)) + body


def decode_image(chunks: Iterable[bytes]) -> Image:
    """Decode the image in these chunks, which may be cut anywhere.

    Raises:
        CorruptLogError: not one whole, undamaged image of a known format and feature level.
    """
    reader = ImageReader()
    for section, items in _frames(chunks):
        reader.take(section, items)
    image = reader.finish()
    if image.feature_level > FEATURE_LEVEL_MAX:
        raise CorruptLogError(
            f"The snapshot is of feature level {image.feature_level}; this release knows up to"
            f" {FEATURE_LEVEL_MAX}. Upgrade this node."
        )
    problems = invariants.violations(image)
    if problems:
        raise CorruptLogError(f"The snapshot contradicts itself: {problems[0]}")
    return image


def _frames(chunks: Iterable[bytes]) -> Iterator[tuple[int, list[object]]]:
    """Yield sections and items of checked frames, up to the digest, which must match and be last."""
    source = _Source(chunks)
    lead = source.take(len(_MAGIC))
    if lead != _MAGIC:
        raise CorruptLogError("Not a metadata snapshot of a format that this release knows.")
    digest = hashlib.blake2b(lead, digest_size=HASH_BYTES)
    while True:
        head = source.take(_FRAME.size)
        length, checksum = _FRAME.unpack(head)
        if length > FRAME_BYTES_MAX:
            raise CorruptLogError(f"A snapshot frame of {length} bytes.")
        body = source.take(length)
        if crc32c.crc32c(body) != checksum:
            raise CorruptLogError("A snapshot frame fails its checksum.")
        row = _unpacked(body)
        if not isinstance(row, list) or len(row) != 2 or not isinstance(row[1], list):
            raise CorruptLogError("Not a snapshot frame.")
        if row[0] == END:
            if row[1] != [digest.digest()] or not source.is_at_end():
                raise CorruptLogError("The snapshot's digest is wrong or not at its end.")
            return
        digest.update(head)
        digest.update(body)
        yield _integer(row[0]), row[1]


class _Source:
    """A source of bytes that arrive in chunks and are read in other lengths."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._buffer = bytearray()

    def take(self, length: int) -> bytes:
        while len(self._buffer) < length:
            chunk = next(self._chunks, None)
            if chunk is None:
                raise CorruptLogError("The snapshot ends too early.")
            self._buffer += chunk
        taken = bytes(self._buffer[:length])
        del self._buffer[:length]
        return taken

    def is_at_end(self) -> bool:
        return not self._buffer and not any(self._chunks)


def _packed(value: object) -> bytes:
    packed = msgpack.packb(value, use_bin_type=True)
    assert isinstance(packed, bytes)
    return packed


def _unpacked(data: bytes) -> object:
    try:
        value: object = msgpack.unpackb(data, raw=False, use_list=True)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise CorruptLogError(f"Not msgpack: {error}") from error
    return value


def _integer(value: object) -> int:
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise CorruptLogError(f"Expected a 64-bit integer, found {type(value).__name__}.")
    return value
