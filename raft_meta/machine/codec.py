"""Commands, responses and images as bytes: versioned msgpack, canonical (equal values are equal bytes).

Envelope: msgpack ``[version, proposer, incarnation, sequence, now_ms, tag, fields]``; tags below never change meaning.
Response: msgpack ``[version, value]``, or ``[version, code, message]`` for a refusal.

Image: ``MLNI`` and a version byte, then frames, all big-endian:

    offset  size  type   meaning
    0       4     u32    length of the body
    4       4     u32    CRC-32C of the body
    8       ..    bytes  msgpack [section, items]

Sections come in the order of their numbers, items in ascending order of keys. The last frame is the digest of all
bytes before it, so that frames of two snapshots cannot be spliced. Nothing that can be derived is stored (the maps
from names to ids). Chunks are of about ``CHUNK_BYTES``, so that whoever packs them may let others run in between.

Every decoder takes hostile bytes: it raises CorruptLogError and nothing else.
"""

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import crc32c
import msgpack  # type: ignore[import-untyped]  # ships no type hints
from immutables import Map

from raft_meta.machine import commands as c
from raft_meta.machine import invariants, shapes
from raft_meta.machine.image import (
    Broker,
    Image,
    Partition,
    PartitionKey,
    Producer,
    Proposer,
    Topic,
)
from raft_meta.machine.outcome import Response
from storage.errors import CorruptLogError, MilenaError
from storage.types import WallMs

T = TypeVar("T")

FORMAT_VERSION = 1
FEATURE_LEVEL_MAX = 1
"""The highest feature level that this release knows."""

TAGS: dict[int, type[c.Command]] = {
    1: c.InitCluster,
    2: c.ClaimController,
    3: c.RegisterBroker,
    4: c.UnfenceBroker,
    5: c.FenceBroker,
    6: c.DrainBroker,
    7: c.UnregisterBroker,
    8: c.ElectLeaders,
    9: c.CreateTopic,
    10: c.DeleteTopic,
    11: c.AddPartitions,
    12: c.AlterConfigs,
    13: c.AlterIsr,
    14: c.AllocateProducer,
    15: c.CheckImage,
    16: c.SetFeatureLevel,
}
"""Wire tag → command. A tag is never used again for something else."""
LEVELS: dict[type[c.Command], int] = dict.fromkeys(TAGS.values(), 1)
"""The feature level from which on each command is allowed."""

CHUNK_BYTES = 128 << 10
FRAME_BYTES_MAX = 16 << 20
"""No frame comes near it: an item is at most about one command (1 MiB), and a frame holds at most one item above
``CHUNK_BYTES``."""
HASH_BYTES = 16

_MAGIC = b"MLNI" + bytes([FORMAT_VERSION])
_FRAME = struct.Struct(">II")
_HEADER, _BROKERS, _TOPICS, _PARTITIONS, _PRODUCERS, _PROPOSERS, _RESPONSES, _END = range(8)
_TAG_OF = {kind: tag for tag, kind in TAGS.items()}


def encode_envelope(envelope: c.Envelope) -> bytes:
    """The bytes of a command as it travels and is logged."""
    command = envelope.command
    return _packed(
        [
            FORMAT_VERSION,
            envelope.proposer,
            envelope.incarnation,
            envelope.sequence,
            envelope.now_ms,
            _TAG_OF[type(command)],
            shapes.pack(command),
        ]
    )


def decode_envelope(data: bytes) -> c.Envelope:
    """The command in these bytes.

    Raises:
        CorruptLogError: they are not a command, or one of a newer release; the node must stop.
    """
    row = _unpacked(data)
    if not isinstance(row, list) or not row or row[0] != FORMAT_VERSION or len(row) != 7:
        raise CorruptLogError("Not a metadata command of a format that this release knows.")
    numbers = [_integer(number) for number in row[1:6]]
    kind = TAGS.get(numbers[4])
    if kind is None:
        raise CorruptLogError(
            f"Metadata command {numbers[4]} is unknown to this release: a newer one wrote it. Upgrade this node."
        )
    command: c.Command = shapes.parse(kind, row[6])
    return c.Envelope(
        proposer=numbers[0],
        incarnation=numbers[1],
        sequence=numbers[2],
        now_ms=WallMs(numbers[3]),
        command=command,
    )


def encode_response(value: Response) -> bytes:
    """The bytes of a command's answer."""
    return _packed([FORMAT_VERSION, value])


def encode_error(error: MilenaError) -> bytes:
    """The bytes of a refusal; only its code and message travel."""
    return _packed([FORMAT_VERSION, error.code, error.message])


def decode_response(data: bytes) -> Response:
    """The answer in these bytes.

    Raises:
        MilenaError: the typed error that the command was refused with.
        CorruptLogError: they are not a response.
    """
    row = _unpacked(data)
    if not isinstance(row, list) or not row or row[0] != FORMAT_VERSION:
        raise CorruptLogError("Not a response of a format that this release knows.")
    if len(row) == 3 and isinstance(row[1], str) and isinstance(row[2], str):
        raise _error_of(row[1])(row[2])
    if len(row) != 2:
        raise CorruptLogError("Not a response.")
    return _response_of(row[1])


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
    """The class of an error code; the nearest that is known for a code of a newer release."""
    pending: list[type[MilenaError]] = [MilenaError]
    while pending:
        kind = pending.pop()
        if kind.code == code:
            return kind
        pending.extend(kind.__subclasses__())
    return MilenaError


# --- images ---


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    index: int
    now_ms: WallMs
    cluster_id: str
    voters: tuple[int, ...]
    feature_level: int
    controller_id: int | None
    controller_epoch: int
    next_producer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """A partition with its key."""

    topic_id: str
    partition: int
    state: Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProposerRow:
    """A proposer without its window: responses are items of their own, so that items stay small."""

    proposer: int
    incarnation: int
    floor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _ResponseRow:
    proposer: int
    sequence: int
    response: bytes


def encode_image(image: Image) -> Iterator[bytes]:
    """The image in chunks. It may run on any thread, and may be left off."""
    digest = hashlib.blake2b(_MAGIC, digest_size=HASH_BYTES)
    lead = _MAGIC
    for section, packed in _sections(image):
        for body in _bodies(section, packed):
            frame = _framed(body)
            digest.update(frame)
            yield lead + frame
            lead = b""
    yield _framed(_packed([_END, [digest.digest()]]))


def image_hash(image: Image) -> bytes:
    """The digest of the image's canonical bytes: equal on two nodes exactly if their images are.

    Takes about as long as a snapshot (3 s per million partitions), so not after every command.
    """
    digest = hashlib.blake2b(digest_size=HASH_BYTES)
    for chunk in encode_image(image):
        digest.update(chunk)
    return digest.digest()


def _sections(image: Image) -> Iterator[tuple[int, Iterator[bytes]]]:
    header = _Header(
        index=image.index,
        now_ms=image.now_ms,
        cluster_id=image.cluster_id,
        voters=image.voters,
        feature_level=image.feature_level,
        controller_id=image.controller_id,
        controller_epoch=image.controller_epoch,
        next_producer_id=image.next_producer_id,
    )
    yield _HEADER, iter([_packed(shapes.pack(header))])
    yield _BROKERS, _values(image.brokers)
    yield _TOPICS, _values(image.topics)
    yield _PARTITIONS, _partition_rows(image)
    yield _PRODUCERS, _values(image.producers)
    yield _PROPOSERS, _proposer_rows(image)
    yield _RESPONSES, _response_rows(image)


K = TypeVar("K", int, str)


def _values(items: Map[K, T]) -> Iterator[bytes]:
    for key in sorted(items):
        yield _packed(shapes.pack(items[key]))


def _partition_rows(image: Image) -> Iterator[bytes]:
    for (topic_id, partition), state in sorted(image.partitions.items(), key=_key_of):
        yield _packed([topic_id, partition, shapes.pack(state)])


def _key_of(item: tuple[PartitionKey, Partition]) -> PartitionKey:
    return item[0]


def _proposer_rows(image: Image) -> Iterator[bytes]:
    for broker_id in sorted(image.proposers):
        proposer = image.proposers[broker_id]
        yield _packed([broker_id, proposer.incarnation, proposer.floor])


def _response_rows(image: Image) -> Iterator[bytes]:
    for broker_id in sorted(image.proposers):
        for sequence, response in sorted(image.proposers[broker_id].window.items()):
            yield _packed([broker_id, sequence, response])


def _bodies(section: int, items: Iterator[bytes]) -> Iterator[bytes]:
    """Frame bodies of about CHUNK_BYTES; joining packed items packs their list."""
    group: list[bytes] = []
    size = 0
    packer = msgpack.Packer()
    for item in items:
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
    """The image in these chunks, wherever they were cut.

    Raises:
        CorruptLogError: they are not one whole, unharmed image of a format and feature level known here.
    """
    reader = _ImageReader()
    for section, items in _frames(chunks):
        reader.take(section, items)
    image = reader.finish()
    problems = invariants.violations(image)
    if problems:
        raise CorruptLogError(f"The snapshot contradicts itself: {problems[0]}")
    return image


def _frames(chunks: Iterable[bytes]) -> Iterator[tuple[int, list[object]]]:
    """Sections and items of checked frames up to the digest, which must be right and last."""
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
        if row[0] == _END:
            if row[1] != [digest.digest()] or not source.is_at_end():
                raise CorruptLogError("The snapshot's digest is wrong or not at its end.")
            return
        digest.update(head)
        digest.update(body)
        yield _integer(row[0]), row[1]


class _Source:
    """Bytes in chunks, taken in other lengths."""

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


class _ImageReader:
    """Puts an image together, section by section; refuses what is out of order."""

    def __init__(self) -> None:
        self._header: _Header | None = None
        self._section = -1
        self._key: tuple[int | str, ...] = ()
        self._brokers: dict[int, Broker] = {}
        self._topics: dict[str, Topic] = {}
        self._partitions: dict[PartitionKey, Partition] = {}
        self._producers: dict[int, Producer] = {}
        self._proposers: dict[int, _ProposerRow] = {}
        self._responses: dict[int, dict[int, bytes]] = {}

    def take(self, section: int, items: list[object]) -> None:
        takers: dict[int, Callable[[object], tuple[int | str, ...]]] = {
            _HEADER: self._take_header,
            _BROKERS: self._take_broker,
            _TOPICS: self._take_topic,
            _PARTITIONS: self._take_partition,
            _PRODUCERS: self._take_producer,
            _PROPOSERS: self._take_proposer,
            _RESPONSES: self._take_response,
        }
        taker = takers.get(section)
        if taker is None:
            raise CorruptLogError(f"Snapshot section {section} is unknown to this release.")
        for item in items:
            key = taker(item)
            # Keys of one section have one shape, so that two of them always compare.
            is_next = self._key < key if section == self._section else self._section < section
            if not is_next:
                raise CorruptLogError(f"Snapshot items are out of order at {key}.")
            self._section, self._key = section, key

    def _take_header(self, item: object) -> tuple[int | str, ...]:
        self._header = shapes.parse(_Header, item)
        return ()

    def _take_broker(self, item: object) -> tuple[int | str, ...]:
        broker = shapes.parse(Broker, item)
        self._brokers[broker.broker_id] = broker
        return (broker.broker_id,)

    def _take_topic(self, item: object) -> tuple[int | str, ...]:
        topic = shapes.parse(Topic, item)
        self._topics[topic.topic_id] = topic
        return (topic.topic_id,)

    def _take_partition(self, item: object) -> tuple[int | str, ...]:
        placed = shapes.parse(_Placed, item)
        self._partitions[placed.topic_id, placed.partition] = placed.state
        return (placed.topic_id, placed.partition)

    def _take_producer(self, item: object) -> tuple[int | str, ...]:
        producer = shapes.parse(Producer, item)
        self._producers[producer.producer_id] = producer
        return (producer.producer_id,)

    def _take_proposer(self, item: object) -> tuple[int | str, ...]:
        row = shapes.parse(_ProposerRow, item)
        self._proposers[row.proposer] = row
        return (row.proposer,)

    def _take_response(self, item: object) -> tuple[int | str, ...]:
        row = shapes.parse(_ResponseRow, item)
        if row.proposer not in self._proposers:
            raise CorruptLogError(f"A response for proposer {row.proposer}, which is not there.")
        self._responses.setdefault(row.proposer, {})[row.sequence] = row.response
        return (row.proposer, row.sequence)

    def finish(self) -> Image:
        header = self._header
        if header is None:
            raise CorruptLogError("The snapshot has no header.")
        if header.feature_level > FEATURE_LEVEL_MAX:
            raise CorruptLogError(
                f"The snapshot is of feature level {header.feature_level}; this release knows up to"
                f" {FEATURE_LEVEL_MAX}. Upgrade this node."
            )
        topic_ids = {topic.name: topic.topic_id for topic in self._topics.values()}
        named = {p.name: p.producer_id for p in self._producers.values() if p.name is not None}
        proposers = {
            row.proposer: Proposer(
                incarnation=row.incarnation,
                floor=row.floor,
                window=Map(self._responses.get(row.proposer, {})),
            )
            for row in self._proposers.values()
        }
        return replace(
            Image(),
            index=header.index,
            now_ms=header.now_ms,
            cluster_id=header.cluster_id,
            voters=header.voters,
            feature_level=header.feature_level,
            controller_id=header.controller_id,
            controller_epoch=header.controller_epoch,
            next_producer_id=header.next_producer_id,
            brokers=Map(self._brokers),
            topics=Map(self._topics),
            topic_ids=Map(topic_ids),
            partitions=Map(self._partitions),
            producers=Map(self._producers),
            producer_names=Map(named),
            proposers=Map(proposers),
        )


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
