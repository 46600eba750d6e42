"""Decoders of the Raft directory."""

import crc32c
import msgpack

from raft_meta.consensus.bootstrap import load_record
from raft_meta.consensus.snapshot import SnapshotReader
from raft_meta.consensus.wal import Wal
from tests.fuzz.targets.files import _in_file
from tests.fuzz.targets.target import CORRUPT, Target
from tests.support.clusters.raft_bench import entries, entry, snapshot_bytes
from tests.support.disk.memory_files import MemoryFiles


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


RAFT_DIRECTORY: tuple[Target, ...] = (
    Target("wal", _wal, CORRUPT, _wal_seeds, _reseal_wal),
    Target("snapshot", _snapshot, CORRUPT, lambda: [snapshot_bytes(12)], _reseal_snapshot),
    Target("voter", _voter, CORRUPT, _voter_seeds, _reseal_voter),
)
