"""Every decoder that takes bytes from outside, as a target: feed it anything, and see whether it keeps its word.

A decoder's word is always the same: a correct value, or one of its typed errors. Anything else (another exception, a
hang, memory without bound) is a finding. ``tests.fuzz.test_decoders`` mutates sound inputs with Hypothesis,
``tests.fuzz.coverage`` lets atheris look for new paths. What was interesting is kept in ``corpus/<target>.txt``: an
input a line, in hex; a line that begins with ``#`` says why the next one is there.

A target that accepts an input goes on to use the value, as the node would.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import crc32c
import msgpack

from http_api.formats import binary_v2, json_v2, text_v2
from http_api.formats.json_texts import JsonTexts
from http_api.formats.v3_records import columns_of, parse_record, texts_of
from http_api.media import metadata_type, produce_format, records_type
from http_api.routes import ROUTES
from http_api.routing import Router
from http_api.schemas import parse_json, parse_query
from http_api.v2.consumers import parse_partitions
from http_api.v2.produce_head import parse_options
from milena.model.batch.client_checks import TIMESTAMP_AHEAD_MS_MAX, validate_client_batch
from milena.model.batch.decode import check_batch, decode_columns, records_in, timestamps_of
from milena.model.batch.encode import encode_batch, rewrite_batch
from milena.model.batch.header import (
    HEADER_BYTES,
    IdempotencyExtension,
    ProducerStamp,
)
from milena.model.batch.header import decode_header as decode_batch_header
from milena.model.codecs import compress, decompress
from milena.model.columns import RecordColumns, pack_columns, unpack_columns
from milena.model.errors import (
    CorruptBatchError,
    CorruptLogError,
    MalformedRequestError,
    MilenaError,
    StartupError,
)
from milena.model.turns import at_once
from milena.model.types import Codec
from node.access.key_set import KeySetError
from node.consumers import consumer_messages
from node.groups import group_messages
from node.groups.subscriptions import TopicPattern
from node.peers.codec import decode_error, decode_header
from node.peers.messages import pack, unpack
from node.replication.fetch_wire import parse_log_starts, parse_positions, parse_rows
from raft_meta.consensus.bootstrap import load_record
from raft_meta.consensus.frames import (
    Channel,
    FrameDecoder,
    FrameEncoder,
    Handshake,
    HandshakeRole,
    PeerIdentity,
    PeerProtocolError,
    decode_preface,
    encode_preface,
)
from raft_meta.consensus.messages import decode_message, encode_message
from raft_meta.consensus.snapshot import SnapshotReader
from raft_meta.consensus.wal import Wal
from raft_meta.machine import codec
from raft_meta.machine.image import Image
from storage.compaction.mark import read_mark
from storage.replica.data_directory import DataDirectory
from storage.replica.folder import COMPACTION_NAME, open_replica
from storage.replica.meta import Change, ChangeKind, MetaFile, ReplicaMeta
from storage.segments.index import decode_index, encode_index, encode_time_index
from storage.segments.segment import Segment
from storage.state.checkpoint import Checkpoint, CheckpointFile
from storage.state.leader_epochs import LeaderEpochs
from storage.state.producer_state import WriterState, decode_snapshot, encode_snapshot
from storage.state.sealed import seal
from tests.fuzz import access_targets
from tests.support.clusters.peer_samples import calls_of, fields_of, samples_of
from tests.support.clusters.raft_bench import entries, entry, snapshot_bytes
from tests.support.disk.log_model import NOW_MS, LogModel, make_batch, stamped
from tests.support.disk.memory_files import MemoryFiles
from tests.support.machine.commands import (
    random_group_history,
    random_history,
    random_transaction_history,
)

CORPUS = Path(__file__).parent / "corpus"

BYTES_MAX = 1 << 20
"""What the targets allow a payload to become."""

KEY = b"k" * 32


@dataclass(frozen=True, slots=True)
class Target:
    """One decoder.

    Attributes:
        name: of the target, and of its file in the corpus.
        decode: takes any bytes.
        errors: what it may raise.
        seeds: makes sound inputs.
        reseal: repairs the checksums of a mutated input, so that what they guard is looked at, too.
    """

    name: str
    decode: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    seeds: Callable[[], list[bytes]]
    reseal: Callable[[bytes], bytes] = field(default=lambda data: data)


# Record batches.


def _sound_batches() -> list[bytes]:
    columns = RecordColumns(
        None, [0, 1, 2], [b"a", None, b"k"], [b"one", b"two" * 40, None], [None, [("h", b"x")], []]
    )
    made = [encode_batch(columns, base_timestamp_ms=NOW_MS, codec=codec) for codec in Codec]
    made.append(encode_batch(columns, base_timestamp_ms=NOW_MS, is_control=True))
    made.append(
        make_batch(
            2,
            producer=ProducerStamp(5, 1, 7),
            key=IdempotencyExtension(b"k" * 16, b"b" * 8, 3),
        )
    )
    stored = stamped(made[0], base_offset=9, leader_epoch=2, append_time_ms=NOW_MS)
    return [*made, stored + made[1]]


def _reseal_batch(data: bytes) -> bytes:
    """Both checksums, for a batch that is as long as the bytes."""
    if len(data) < HEADER_BYTES:
        return data
    frame = len(data).to_bytes(4, "big") + data[4:27]
    return b"".join(
        (
            frame,
            crc32c.crc32c(frame).to_bytes(4, "big"),
            crc32c.crc32c(data[35:]).to_bytes(4, "big"),
            data[35:],
        )
    )


def _read_batches(data: bytes) -> object:
    return list(records_in(data, 1, 1 << 40, bytes_max=BYTES_MAX))


def _validate(data: bytes) -> object:
    header = validate_client_batch(data, bytes_max=BYTES_MAX, now_ms=NOW_MS)
    assert not header.is_control
    assert not header.is_transactional
    columns = decode_columns(data, header, bytes_max=BYTES_MAX)
    assert len(columns.values) == header.record_count == header.last_offset_delta + 1
    stored = stamped(data, base_offset=1 << 40, leader_epoch=1, append_time_ms=NOW_MS)
    latest = max(timestamps_of(decode_batch_header(stored), columns))
    assert latest <= NOW_MS + TIMESTAMP_AHEAD_MS_MAX
    assert len(list(records_in(stored, bytes_max=BYTES_MAX))) == header.record_count
    return rewrite_batch(header, columns)


def _columns(data: bytes) -> object:
    count = int.from_bytes(data[:3], "big")
    return unpack_columns(data[3:], count)


def _column_seeds() -> list[bytes]:
    plain = pack_columns(
        RecordColumns(None, None, [b"k", None], [b"v", None], [None, [("h", b"")]])
    )
    # Large enough to be read in slices.
    large = pack_columns(RecordColumns(None, None, None, [b""] * 17_000, None))
    return [(2).to_bytes(3, "big") + plain, (17_000).to_bytes(3, "big") + large]


def _decompress(data: bytes) -> object:
    codecs = list(Codec)
    codec = codecs[data[0] % len(codecs)] if data else Codec.NONE
    size = int.from_bytes(data[1:4], "big") % BYTES_MAX
    plain = decompress(codec, data[4:], size)
    assert len(plain) == size
    return plain


def _compressed() -> list[bytes]:
    plain = b"some text that repeats, some text that repeats" * 5
    return [
        bytes([number]) + len(plain).to_bytes(3, "big") + compress(codec, plain)
        for number, codec in enumerate(Codec)
    ] + [
        # Bombs: a megabyte of zeros, and a header that owns up to a few bytes only.
        bytes([number]) + (9).to_bytes(3, "big") + compress(codec, bytes(1 << 20))
        for number, codec in enumerate(Codec)
        if codec is not Codec.NONE
    ]


# Small files of storage.


def _in_file(path: str, data: bytes) -> MemoryFiles:
    files = MemoryFiles()
    files.make_directory(path.rpartition("/")[0])
    file = files.open(path, create=True)
    file.pwritev([data], 0)
    file.sync()
    files.sync_directory(path.rpartition("/")[0])
    return files


def _sealed(data: bytes) -> bytes:
    """The checksum of ``storage.state.sealed``."""
    return data[:4] + crc32c.crc32c(data[8:]).to_bytes(4, "big") + data[8:]


def _slots(data: bytes) -> bytes:
    """The checksums of both slots of ``storage.state.slots``."""
    parts = []
    for slot in (data[:4096], data[4096:8192]):
        length = min(int.from_bytes(slot[16:20], "big"), max(len(slot) - 20, 0))
        checksum = crc32c.crc32c(slot[8 : 20 + length]).to_bytes(4, "big")
        parts.append(slot[:4] + checksum + slot[8:] if len(slot) >= 20 else slot)
    return b"".join(parts)


def _filled_log() -> LogModel:
    model = LogModel()
    for number in range(6):
        model.leader_epoch = number // 2
        model.append(
            [
                make_batch(
                    2,
                    value_bytes=100 * number,
                    producer=ProducerStamp(number % 2, 0, 2 * (number // 2)),
                    key=IdempotencyExtension(bytes([number]) * 16, b"b" * 8, 3),
                )
            ]
        )
    model.sync()
    return model


def _segment() -> Segment:
    return _filled_log().log._table.active


def _index(data: bytes) -> object:
    half = int.from_bytes(data[:2], "big")
    summary, index = decode_index(data[2 : 2 + half], data[2 + half :])
    index.floor(summary.base_offset)
    index.floor_by_timestamp(NOW_MS)
    return index.truncated_to(summary.next_offset - 1)


def _index_seeds() -> list[bytes]:
    segment = _segment()
    first = encode_index(segment.summary, segment.load_index())
    return [
        len(first).to_bytes(2, "big")
        + first
        + encode_time_index(segment.summary, segment.load_index())
    ]


def _reseal_index(data: bytes) -> bytes:
    half = int.from_bytes(data[:2], "big")
    return data[:2] + b"".join(
        _index_sealed(part) for part in (data[2 : 2 + half], data[2 + half :])
    )


def _index_sealed(part: bytes) -> bytes:
    if len(part) < 48:
        return part
    fields = part[:40] + crc32c.crc32c(part[48:]).to_bytes(4, "big")
    return fields + crc32c.crc32c(fields).to_bytes(4, "big") + part[48:]


def _epochs(data: bytes) -> object:
    table = LeaderEpochs.decode(data)
    table.end_of(3, 1 << 40)
    table.advance_start(5)
    table.truncate_to(9)
    return table.encode()


def _producers(data: bytes) -> object:
    state = WriterState()
    state.install(decode_snapshot(data))
    state.expire(NOW_MS)
    state.forget_from(5)
    return encode_snapshot(state.freeze(9))


def _checkpoint(data: bytes) -> object:
    return CheckpointFile(_in_file("/d/checkpoint", data), "/d").load()


def _checkpoint_seeds() -> list[bytes]:
    files = MemoryFiles()
    files.make_directory("/d")
    file = CheckpointFile(files, "/d")
    file.store(Checkpoint(recovery_point=5, log_start_offset=1, high_watermark=3))
    first = files.read_bytes("/d/checkpoint")
    file.store(Checkpoint(recovery_point=9, log_start_offset=1, high_watermark=8, is_clean=True))
    return [first, files.read_bytes("/d/checkpoint")]


def _meta(data: bytes) -> object:
    return MetaFile(_in_file("/d/meta", data), "/d").load()


def _meta_seeds() -> list[bytes]:
    files = MemoryFiles()
    files.make_directory("/d")
    file = MetaFile(files, "/d")
    meta = ReplicaMeta(topic_id="t", topic_name="orders", partition=3)
    file.store(meta)
    file.store(
        ReplicaMeta(topic_id="t", topic_name="o", partition=3, change=Change(ChangeKind.RESTART, 9))
    )
    return [files.read_bytes("/d/meta")]


def _meta_content(data: bytes) -> object:
    return ReplicaMeta.decode(data).encode()


def _directory(data: bytes) -> object:
    """Two bytes of length, the identity, then the manifest."""
    half = int.from_bytes(data[:2], "big")
    files = _in_file("/n/identity", data[2 : 2 + half])
    file = files.open("/n/replicas", create=True)
    file.pwritev([data[2 + half :]], 0)
    directory = DataDirectory.open(files, "/n", node_id=1, directory_id="d", reserve_bytes=0)
    for topic_id, partition in directory.replicas():
        directory.partition_directory(topic_id, partition)
    directory.consume_clean_marker()
    return directory.cluster_id, directory.broker_epoch


def _directory_seeds() -> list[bytes]:
    files = MemoryFiles()
    directory = DataDirectory.open(files, "/n", node_id=1, directory_id="d", reserve_bytes=0)
    directory.set_cluster_id("c")
    directory.set_broker_epoch(4)
    directory.add_replicas([("t1", 0), ("t1", 1)])
    directory.mark_clean_stop()
    identity = files.read_bytes("/n/identity")
    return [len(identity).to_bytes(2, "big") + identity + files.read_bytes("/n/replicas")]


def _reseal_directory(data: bytes) -> bytes:
    half = int.from_bytes(data[:2], "big")
    return data[:2] + _slots(data[2 : 2 + half]) + _sealed(data[2 + half :])


def _mark(data: bytes) -> object:
    files = _in_file(f"/r/{COMPACTION_NAME}", data)
    meta = ReplicaMeta(topic_id="t", topic_name="orders", partition=3)
    MetaFile(files, "/r").store(meta)
    replica = open_replica(files, "/r", meta, index_interval_bytes=100, is_listed=True)
    return read_mark(replica)


def _mark_seeds() -> list[bytes]:
    return [seal(b"MCM1", [5, NOW_MS, encode_snapshot(WriterState().freeze(5))])]


# The Raft directory.


def _wal(data: bytes) -> object:
    wal = Wal(_in_file("/raft/wal", data), "/raft/wal", room_step_bytes=4096, reserve_bytes=512)
    last = wal.entries[-1][1] if wal.entries else 0
    wal.append((b"\0x", last + 1, wal.term))
    wal.sync()
    return wal.entries


def _wal_seeds() -> list[bytes]:
    files = MemoryFiles()
    files.make_directory("/raft")
    wal = Wal(files, "/raft/wal", room_step_bytes=512, reserve_bytes=64)
    wal.append(entry(1))
    for one in entries(2, 5):
        wal.append(one)
        wal.sync()
    wal.set_hard_state(3, 1)
    wal.truncate_from(4)
    wal.sync()
    return [files.read_bytes("/raft/wal")]


def _reseal_wal(data: bytes) -> bytes:
    """The checksum of each group, as long as lengths make sense."""
    out = bytearray(data)
    at = 0
    while at + 20 <= len(out) and out[at : at + 4] == b"MWAL":
        length = int.from_bytes(out[at + 4 : at + 8], "big")
        end = at + 20 + length
        if end > len(out):
            break
        checked = crc32c.crc32c(bytes(out[at + 4 : at + 16]))
        out[at + 16 : at + 20] = crc32c.crc32c(bytes(out[at + 20 : end]), checked).to_bytes(
            4, "big"
        )
        at = end
    return bytes(out)


def _snapshot(data: bytes) -> object:
    reader = SnapshotReader(_in_file("/raft/snapshot", data), "/raft/snapshot")
    return reader.verify()


def _reseal_snapshot(data: bytes) -> bytes:
    out = bytearray(data)
    at = crc = 0
    while at + 9 <= len(out):
        end = at + 9 + int.from_bytes(out[at : at + 4], "big")
        if end > len(out):
            break
        crc = crc32c.crc32c(
            bytes(out[at + 9 : end]), crc32c.crc32c(bytes(out[at + 8 : at + 9]), crc)
        )
        out[at + 4 : at + 8] = crc.to_bytes(4, "big")
        at = end
    return bytes(out)


def _voter(data: bytes) -> object:
    return load_record(_in_file("/raft/voter", data), "/raft")


def _voter_seeds() -> list[bytes]:
    body = msgpack.packb([1, 0, [0, 1, 2], 3])
    return [body + crc32c.crc32c(body).to_bytes(4, "big")]


def _reseal_voter(data: bytes) -> bytes:
    return data[:-4] + crc32c.crc32c(data[:-4]).to_bytes(4, "big")


# Between nodes.


def _frames(data: bytes) -> object:
    """In two cuts; what comes out is read as both channels would."""
    decoder = FrameDecoder(KEY, header_bytes_max=1 << 16, body_bytes_max=1 << 16)
    found = decoder.feed(data[: len(data) // 2]) + decoder.feed(data[len(data) // 2 :])
    return [(_raft_or_data(header), body) for header, body in found]


def _raft_or_data(header: bytes) -> object:
    try:
        return decode_message(header)
    except PeerProtocolError:
        return decode_header(header)


def _frame_seeds() -> list[bytes]:
    encoder = FrameEncoder(KEY)
    message = encode_message({"type": "response_vote", "term": 4})
    return [b"".join(encoder.encode(message, [b"body"]) + encoder.encode(message))]


def _preface(data: bytes) -> object:
    return decode_preface(data)


def _handshake(data: bytes) -> object:
    """The first byte says which end; the rest is what the peer sends."""
    role = HandshakeRole.DIALER if data[:1] == b"\1" else HandshakeRole.ACCEPTOR
    mine = PeerIdentity(node_id=1, cluster_id="c", is_voter=True, voters=(1, 2))
    handshake = Handshake(role, mine, b"secret", channel=Channel.DATA, nonce=b"n" * 16)
    for at in range(1, len(data), 50):
        handshake.receive(data[at : at + 50])
        handshake.outgoing()
    return handshake.finish() if handshake.is_complete else handshake.peer


def _handshake_seeds() -> list[bytes]:
    found = []
    ends = (HandshakeRole.DIALER, HandshakeRole.ACCEPTOR)
    for role in ends:
        mine = PeerIdentity(node_id=1, cluster_id="c", is_voter=True, voters=(1, 2))
        theirs = PeerIdentity(node_id=2, cluster_id="c", is_voter=True, voters=(1, 2))
        other = ends[1] if role is ends[0] else ends[0]
        ours = Handshake(role, mine, b"secret", channel=Channel.DATA, nonce=b"n" * 16)
        peer = Handshake(other, theirs, b"secret", channel=Channel.DATA, nonce=b"m" * 16)
        sent = b""
        for _ in range(3):
            peer.receive(ours.outgoing())
            piece = peer.outgoing()
            sent += piece
            ours.receive(piece)
        found.append((b"\1" if role is HandshakeRole.DIALER else b"\0") + sent)
    return found


def _peer_header(data: bytes) -> object:
    parts = decode_header(data)
    return decode_error(parts[-3:][0], parts[-2:][0], parts[-1])


def _peer_header_seeds() -> list[bytes]:
    return [
        msgpack.packb([1, 7, "fetch", {"a": 1, "b": {"c": [None, True, b"x", "y"]}}]),
        msgpack.packb([3, 7, "not_leader", "elsewhere", 3]),
        msgpack.packb([0, "rpc"]),
    ]


def _raft_message(data: bytes) -> object:
    message = decode_message(data)
    assert decode_message(encode_message(message)) == message
    return message


def _raft_message_seeds() -> list[bytes]:
    chunk = (b"data", True, False, (1, 2), 0)
    return [
        encode_message(message)
        for message in (
            {"type": "request_vote", "term": 1, "last_log_index": 2, "last_log_term": 1},
            {
                "type": "append_entries",
                "term": 1,
                "commit_index": 2,
                "prevLogIdx": 1,
                "prevLogTerm": None,
                "entries": entries(2, 4),
            },
            {"type": "append_entries", "term": 1, "commit_index": 2, "serialized": chunk},
            {"type": "apply_command", "command": b"\0x", "request_id": 3},
        )
    ]


def _fetch(data: bytes) -> object:
    fields = decode_header(data)[-1]
    if not isinstance(fields, dict):
        raise MalformedRequestError("this is no fetch")
    body_bytes = fields.get("bytes", 0)
    return (
        parse_positions(fields.get("p")),
        parse_log_starts(fields.get("ls")),
        parse_rows(fields.get("r"), body_bytes if type(body_bytes) is int else 0),
    )


def _fetch_seeds() -> list[bytes]:
    fields = {
        "p": [[0, "topic", 3, 1, 500, 1], [1, "topic", 4, 1, 0, -1]],
        "ls": [[0, 3]],
        "r": [[0, 0, 9, 0, 10, -1, -1], [1, 2, 9, 0, 5, 7, -1]],
        "bytes": 15,
    }
    return [msgpack.packb([1, 1, "fetch", fields])]


# Metadata.


def _command(data: bytes) -> object:
    envelope = codec.decode_envelope(data)
    assert codec.decode_envelope(codec.encode_envelope(envelope)) == envelope
    return envelope


def _command_seeds() -> list[bytes]:
    found: dict[str, bytes] = {}
    for seed in range(8):
        log = random_history(seed, 120)[0] + random_group_history(seed, 60)[0]
        for command in log + random_transaction_history(seed, 40)[0]:
            found.setdefault(type(codec.decode_envelope(command).command).__name__, command)
    return list(found.values())


def _image(data: bytes) -> object:
    image = codec.decode_image([data[:100], data[100:]])
    assert b"".join(codec.encode_image(image)) == data
    return image


def _images_of_transactions(seed: int) -> list[Image]:
    return [applied.image for applied in random_transaction_history(seed, 80)[1]]


def _image_seeds() -> list[bytes]:
    images = [random_history(seed, 30)[1][-1].image for seed in range(3)]
    images += [random_group_history(seed, 60)[1][-1].image for seed in range(2)]
    for seed in range(2):
        images.append(max(_images_of_transactions(seed), key=lambda image: image.ending_count))
    return [b"".join(codec.encode_image(image)) for image in images]


def _reseal_image(data: bytes) -> bytes:
    """The checksum of each frame and the digest of all; the last frame holds it."""
    lead, frames = data[:5], []
    at = 5
    while at + 8 <= len(data):
        end = at + 8 + int.from_bytes(data[at : at + 4], "big")
        if end > len(data):
            break
        body = data[at + 8 : end]
        frames.append(len(body).to_bytes(4, "big") + crc32c.crc32c(body).to_bytes(4, "big") + body)
        at = end
    digest = codec.hashlib.blake2b(lead + b"".join(frames[:-1]), digest_size=codec.HASH_BYTES)
    body = msgpack.packb([7, [digest.digest()]])
    last = len(body).to_bytes(4, "big") + crc32c.crc32c(body).to_bytes(4, "big") + body
    return lead + b"".join([*frames[:-1], last]) + data[at:]


def _response(data: bytes) -> object:
    return codec.decode_response(data)


def _response_seeds() -> list[bytes]:
    return [codec.encode_response(value) for value in (None, 5, "id", (1, 2), ("a", "b"))] + [
        codec.encode_error(StartupError("no"))
    ]


# HTTP.

_ROUTER = Router(ROUTES)


def _json_records(data: bytes) -> object:
    return _encoded(json_v2.decode(data, records_max=1000))


def _binary_records(data: bytes) -> object:
    return _encoded(binary_v2.decode(data, records_max=1000))


def _text_records(data: bytes) -> object:
    return _encoded(at_once(text_v2.decode_steps(data, records_max=1000)))


def _encoded(records: object) -> bytes:
    """As the node packs them."""
    stamps = None
    if records.timestamps is not None:
        stamps = [0 if stamp is None else stamp for stamp in records.timestamps]
    columns = RecordColumns(None, stamps, records.keys, records.values, records.headers)
    batch = encode_batch(columns, base_timestamp_ms=0)
    header = check_batch(batch)
    assert decode_columns(batch, header).values == records.values
    return batch


def _json_seeds() -> list[bytes]:
    return [
        b'{"records":[{"key":"k","value":{"a":[1,2.5e300,null,true,"\\u00e9"]}}]}',
        b'{"records":[{"value":1},{"value":null,"partition":0,"timestamp":1700000000000}]}',
        b'{"records":[{"value":"x","headers":[{"key":"h","value":"aGk="}],"timestamp":"2026-01-31T12:00:00Z"}]}',
        b'{"records":[{"value":123456789012345678901234567890}],"key_schema":null}',
        b'{"records":[{"value":"\\ud800"},{"value":{"a":1,"a":2}}]}',
        b'{"records":[{"value":' + b"[" * 300 + b"]" * 300 + b"}]}",
    ]


def _binary_seeds() -> list[bytes]:
    return [
        b'{"records":[{"key":"aw==","value":"dmFsdWU="},{"value":null}]}',
        b'{"records":[{"value":"","partition":1,"headers":[]}]}',
    ]


def _text_seeds() -> list[bytes]:
    return [
        b'{"records":[{"key":"k","value":"\\u00e9"},{"value":null}]}',
        b'{"records":[{"value":"","partition":1,"headers":[]}]}',
    ]


def _path(data: bytes) -> object:
    text = data.decode("latin-1")
    method, _, path = text.partition(" ")
    match = _ROUTER.find.__wrapped__(method, path)
    assert all(name.isprintable() or name for name in match.names.values())
    return match.names


def _path_seeds() -> list[bytes]:
    return [
        b"GET /topics/orders/partitions/3/records",
        b"POST /topics/%F0%9F%98%80%2F..",
        b"DELETE /v3/clusters/c/topics/a%00b/",
        b"GET //v3//clusters",
    ]


def _query(data: bytes) -> object:
    text = data.decode("latin-1")
    parse_query(text)
    return parse_options.__wrapped__(text)


def _media(data: bytes) -> object:
    text = data.decode("utf-8", "surrogateescape")
    found = []
    for parse in (metadata_type, records_type, produce_format):
        try:
            found.append(parse.__wrapped__(text))
        except MilenaError as error:
            found.append(error)
    return found


# Consumers and groups.


def _v3_records(data: bytes) -> object:
    """In two pieces, as they come from a connection; each is packed as the node does it."""
    texts = JsonTexts(1 << 16)
    found: list[object] = []
    for piece in (data[: len(data) // 2], data[len(data) // 2 :]):
        values, broken = texts.feed(piece)
        if (stored := texts_of(values)) is not None:
            assert stored == columns_of([parse_record(value) for value in values]).values
        found += [_encoded(columns_of([parse_record(value)])) for value in values]
        if broken is not None:
            raise broken
    texts.close()
    return found


def _v3_record_seeds() -> list[bytes]:
    return [
        b'{"partition_id":0,"key":{"type":"STRING","data":"k\\"\\\\"},"value":{"type":"JSON","data":{"a":[1]}}}',
        b'{"value":{"type":"BINARY","data":"dmFsdWU="},"headers":[{"name":"h","value":"aGk="}]}{"value":null}',
        b' {"timestamp":1700000000000,"value":{"type":"json","data":null}}\r\n{"timestamp":"2026-01-31T12:00:00Z"}',
        b'{"value":{"type":"STRING","data":"first"}}\n' * 3
        + b'{"value":{"data":"","type":"STRING"}}\n' * 2,
    ]


def _partitions(data: bytes) -> object:
    found = parse_partitions(parse_json(data))
    assert all(0 <= number < 1 << 63 for _, number in found)
    return found


def _partition_seeds() -> list[bytes]:
    return [
        b'{"partitions":[{"topic":"orders","partition":0},{"topic":"orders","partition":"7"}]}',
        b'{"partitions":[{"topic":"t","partition":9223372036854775807}]}',
    ]


def _topic_pattern(data: bytes) -> object:
    pattern = TopicPattern(data.decode("utf-8", "replace"))
    return [pattern.matches(name) for name in ("orders", "a.b-c_9", "x" * 60)]


def _topic_pattern_seeds() -> list[bytes]:
    return [
        b"orders|pay(ments|outs)?",
        b"^[a-z.\\d-]{1,20}\\w*?[^x-z]+$",
        b"(?:(a|b)*c){3,}\\.",
        b".*",
    ]


_CALLS = calls_of(group_messages) | calls_of(consumer_messages)


def _group_messages(data: bytes) -> object:
    """A header with the call's name, "request" or "answer", the frame's body, and the fields."""
    parts = decode_header(data)
    match parts:
        case [_, str(name), str(side), bytes(body), dict(fields)] if name in _CALLS:
            call = _CALLS[name]
        case _:
            raise MalformedRequestError("this is about no message")
    message = unpack(call.request if side == "request" else call.answer, fields, body)
    again, chunks = pack(message)
    assert unpack(type(message), again, b"".join(chunks)) == message
    return message


def _group_message_seeds() -> list[bytes]:
    return [
        msgpack.packb([1, name, side, body, fields_of(header)])
        for name in _CALLS
        for side in ("request", "answer")
        for header, body in samples_of(name, side)
    ]


_CORRUPT = (CorruptLogError,)

TARGETS: tuple[Target, ...] = (
    Target("batch", _read_batches, (CorruptBatchError,), _sound_batches, _reseal_batch),
    Target("client-batch", _validate, (MilenaError,), _sound_batches, _reseal_batch),
    Target("columns", _columns, (CorruptBatchError,), _column_seeds),
    Target("decompress", _decompress, (CorruptBatchError,), _compressed),
    Target("index", _index, _CORRUPT, _index_seeds, _reseal_index),
    Target(
        "leader-epochs",
        _epochs,
        _CORRUPT,
        lambda: [LeaderEpochs([(0, 0), (2, 5), (7, 90)]).encode()],
        _sealed,
    ),
    Target(
        "producers",
        _producers,
        _CORRUPT,
        lambda: [_filled_log().log.producer_snapshot(high_watermark=12)],
        _sealed,
    ),
    Target("checkpoint", _checkpoint, _CORRUPT, _checkpoint_seeds, _slots),
    Target("meta", _meta, _CORRUPT, _meta_seeds, _slots),
    Target(
        "meta-content",
        _meta_content,
        _CORRUPT,
        lambda: [ReplicaMeta(topic_id="t", topic_name="o", partition=3).encode()],
        _sealed,
    ),
    Target("directory", _directory, (StartupError,), _directory_seeds, _reseal_directory),
    Target("compaction-mark", _mark, (), _mark_seeds, _sealed),
    Target("wal", _wal, _CORRUPT, _wal_seeds, _reseal_wal),
    Target("snapshot", _snapshot, _CORRUPT, lambda: [snapshot_bytes(12)], _reseal_snapshot),
    Target("voter", _voter, _CORRUPT, _voter_seeds, _reseal_voter),
    Target("frames", _frames, (PeerProtocolError, MilenaError), _frame_seeds),
    Target(
        "preface",
        _preface,
        (PeerProtocolError,),
        lambda: [encode_preface(channel) for channel in Channel],
    ),
    Target("handshake", _handshake, (PeerProtocolError,), _handshake_seeds),
    Target("peer-header", _peer_header, (MilenaError,), _peer_header_seeds),
    Target("raft-message", _raft_message, (PeerProtocolError,), _raft_message_seeds),
    Target("fetch", _fetch, (MilenaError,), _fetch_seeds),
    Target("command", _command, _CORRUPT, _command_seeds),
    Target("image", _image, _CORRUPT, _image_seeds, _reseal_image),
    Target("response", _response, (MilenaError,), _response_seeds),
    Target("json-records", _json_records, (MilenaError,), _json_seeds),
    Target("binary-records", _binary_records, (MilenaError,), _binary_seeds),
    Target("text-records", _text_records, (MilenaError,), _text_seeds),
    Target("v3-records", _v3_records, (MilenaError,), _v3_record_seeds),
    Target("partitions", _partitions, (MilenaError,), _partition_seeds),
    Target("topic-pattern", _topic_pattern, (MilenaError,), _topic_pattern_seeds),
    Target("group-messages", _group_messages, (MilenaError,), _group_message_seeds),
    Target("path", _path, (MilenaError,), _path_seeds),
    Target(
        "query",
        _query,
        (MilenaError,),
        lambda: [b"acks=all&timeout_ms=5000", b"acks=%31&timeout_ms=+7&&=&x=%ff"],
    ),
    Target("key-set", access_targets.key_set, (KeySetError,), access_targets.key_set_seeds),
    Target("web-token", access_targets.web_token, (MilenaError,), access_targets.web_token_seeds),
    Target(
        "signed-token",
        access_targets.signed_token,
        (MilenaError,),
        access_targets.signed_token_seeds,
    ),
    Target(
        "media",
        _media,
        (),
        lambda: [
            b"application/vnd.kafka.json.v2+json; q=0.5, */*;q=0.001",
            b"application/vnd.kafka.v2+json;charset=UTF-8",
        ],
    ),
)


def target_of(name: str) -> Target:
    """The target of this name."""
    return next(target for target in TARGETS if target.name == name)


def run(target: Target, data: bytes) -> bool:
    """Feed it; True when it was taken. A finding raises what no decoder may."""
    try:
        target.decode(data)
    except target.errors:
        return False
    return True


def all_seeds() -> Iterable[tuple[Target, bytes]]:
    """Every sound input of every target."""
    return ((target, seed) for target in TARGETS for seed in target.seeds())


def corpus_of(name: str) -> list[bytes]:
    """The inputs that are kept for a target."""
    path = CORPUS / f"{name}.txt"
    lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
    return [bytes.fromhex(line) for line in lines if not line.startswith("#")]
