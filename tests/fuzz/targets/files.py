"""Decoders of files of storage."""

import crc32c

from milena.model.batch.header import (
    Extent,
    IdempotencyExtension,
    KeyPlace,
    ProducerStamp,
)
from milena.model.errors import (
    StartupError,
)
from storage.compaction.mark import read_mark
from storage.replica.data_directory import DataDirectory
from storage.replica.folder import COMPACTION_NAME, open_replica
from storage.replica.meta import Change, ChangeKind, MetaFile, ReplicaMeta
from storage.segments.index import decode_index, encode_index
from storage.segments.segment import Segment
from storage.state.checkpoint import Checkpoint, CheckpointFile
from storage.state.leader_epochs import LeaderEpochs
from storage.state.producer_state import WriterState
from storage.state.sealed import seal
from storage.state.writer_snapshot import decode_snapshot, encode_snapshot
from tests.fuzz.targets.target import CORRUPT, Target
from tests.support.disk.log_model import NOW_MS, LogModel, make_batch
from tests.support.disk.memory_files import MemoryFiles
from tests.support.disk.transactions import marker, transactional


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
    return _filled_log().log.state.table.active


def _index(data: bytes) -> object:
    summary, index = decode_index(data)
    index.floor(summary.base_offset)
    index.floor_by_timestamp(NOW_MS)
    return index.truncated_to(summary.next_offset - 1)


def _index_seeds() -> list[bytes]:
    segment = _segment()
    return [encode_index(segment.summary, segment.load_index())]


def _reseal_index(data: bytes) -> bytes:
    if len(data) < 48:
        return data
    fields = data[:40] + crc32c.crc32c(data[48:]).to_bytes(4, "big")
    return fields + crc32c.crc32c(fields).to_bytes(4, "big") + data[48:]


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


def _shared_transactions() -> bytes:
    """Of a log in which requests under keys share two transactions, one of them open."""
    model = LogModel()
    for number in range(2):
        keys = [
            IdempotencyExtension(bytes([number]) * 16, b"b" * 8, 3, (KeyPlace(0, 0, 1),)),
            IdempotencyExtension(bytes([9 - number]) * 16, b"b" * 8, 3, (KeyPlace(0, 1, 1),)),
        ]
        model.append([transactional(number, 0, (b"k", b"v"), (b"l", b"w"), keys=keys)])
    model.append([marker(0, 0, 0, commit=2, extents=[Extent("ab" * 16, 0, 0, 2)])])
    return model.log.producer_snapshot(high_watermark=5)


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


FILES: tuple[Target, ...] = (
    Target("index", _index, CORRUPT, _index_seeds, _reseal_index),
    Target(
        "leader-epochs",
        _epochs,
        CORRUPT,
        lambda: [LeaderEpochs([(0, 0), (2, 5), (7, 90)]).encode()],
        _sealed,
    ),
    Target(
        "producers",
        _producers,
        CORRUPT,
        lambda: [_filled_log().log.producer_snapshot(high_watermark=12), _shared_transactions()],
        _sealed,
    ),
    Target("checkpoint", _checkpoint, CORRUPT, _checkpoint_seeds, _slots),
    Target("meta", _meta, CORRUPT, _meta_seeds, _slots),
    Target(
        "meta-content",
        _meta_content,
        CORRUPT,
        lambda: [ReplicaMeta(topic_id="t", topic_name="o", partition=3).encode()],
        _sealed,
    ),
    Target("directory", _directory, (StartupError,), _directory_seeds, _reseal_directory),
    Target("compaction-mark", _mark, (), _mark_seeds, _sealed),
)
