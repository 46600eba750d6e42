"""Snapshot files and transfers: whole, or refused."""

import pytest

from milena.model.errors import CorruptLogError, DiskFailedError, DiskFullError
from raft_meta.consensus.snapshot import (
    SnapshotMeta,
    SnapshotReader,
    SnapshotStore,
    write_snapshot,
)
from tests.support.disk.memory_files import MemoryFiles

META = SnapshotMeta(last=(b"\0b", 7, 2), previous=(b"\0a", 6, 2))
CHUNKS = [b"one", b"", b"three" * 100]


@pytest.fixture
def files() -> MemoryFiles:
    made = MemoryFiles()
    made.make_directory("/raft")
    return made


def stored(files: MemoryFiles, meta: SnapshotMeta = META) -> SnapshotStore:
    store = SnapshotStore(files, "/raft", piece_bytes=100)
    write_snapshot(files, store.local_path, meta, CHUNKS)
    store.adopt(store.local_path)
    return store


def test_a_snapshot_is_read_as_it_was_written(files: MemoryFiles) -> None:
    store = stored(files)
    assert store.meta == META
    assert store.read() == (META, CHUNKS)
    assert store.size_bytes == len(files.read_bytes(store.path))


def test_an_adopted_snapshot_survives_a_power_cut(files: MemoryFiles) -> None:
    stored(files)
    files.crash(keep="none")
    assert SnapshotStore(files, "/raft").read() == (META, CHUNKS)


def test_a_store_begins_without_left_over_files(files: MemoryFiles) -> None:
    for name in ("snapshot.local", "snapshot.incoming"):
        files.write_atomically(f"/raft/{name}", b"half")
    store = SnapshotStore(files, "/raft")
    assert store.meta is None
    assert files.list_directory("/raft") == []


def test_a_snapshot_without_chunks_is_a_snapshot(files: MemoryFiles) -> None:
    write_snapshot(files, "/raft/snapshot", META, [])
    assert SnapshotStore(files, "/raft").read() == (META, [])


def test_any_flipped_bit_is_found(files: MemoryFiles) -> None:
    path = stored(files).path
    for position in range(0, len(files.read_bytes(path)), 7):
        files.flip_bit(path, position)
        with pytest.raises(CorruptLogError):
            SnapshotReader(files, path).verify()
        files.flip_bit(path, position)
    assert SnapshotReader(files, path).verify() == META


def test_any_cut_is_found(files: MemoryFiles) -> None:
    content = files.read_bytes(stored(files).path)
    for length in range(len(content)):
        files.write_atomically("/raft/cut", content[:length])
        with pytest.raises(CorruptLogError):
            SnapshotReader(files, "/raft/cut").verify()


def test_bytes_behind_the_end_are_found(files: MemoryFiles) -> None:
    files.write_atomically("/raft/long", files.read_bytes(stored(files).path) + b"x")
    with pytest.raises(CorruptLogError, match="end is wrong"):
        SnapshotReader(files, "/raft/long").verify()


def test_records_of_two_snapshots_cannot_be_joined(files: MemoryFiles) -> None:
    write_snapshot(files, "/raft/a", META, [b"aaaa", b"bbbb"])
    write_snapshot(files, "/raft/b", META, [b"cccc", b"dddd"])
    first, second = files.read_bytes("/raft/a"), files.read_bytes("/raft/b")
    half = len(first) - 24
    files.write_atomically("/raft/c", first[:half] + second[half:])
    with pytest.raises(CorruptLogError):
        SnapshotReader(files, "/raft/c").verify()


def test_a_head_that_contradicts_itself_is_refused(files: MemoryFiles) -> None:
    meta = SnapshotMeta(last=(b"\0", 9, 1), previous=(b"\0", 6, 1))
    write_snapshot(files, "/raft/x", meta, [])
    with pytest.raises(CorruptLogError, match="contradicts itself"):
        SnapshotReader(files, "/raft/x").read_meta()


def test_a_malformed_head_is_refused(files: MemoryFiles) -> None:
    meta = SnapshotMeta(last=("text", 7, 1), previous=(b"", 6, 1))  # type: ignore[arg-type]  # on purpose
    write_snapshot(files, "/raft/x", meta, [])
    with pytest.raises(CorruptLogError, match="malformed"):
        SnapshotReader(files, "/raft/x").read_meta()


def test_a_full_disk_leaves_no_half_snapshot(files: MemoryFiles) -> None:
    files.capacity = files.used_bytes() + 100
    with pytest.raises(DiskFullError):
        write_snapshot(files, "/raft/snapshot.local", META, CHUNKS)
    assert not files.exists("/raft/snapshot.local")


def test_a_failed_sync_of_a_snapshot_is_reported(files: MemoryFiles) -> None:
    files.fail_next_sync("snapshot.local")
    with pytest.raises(DiskFailedError):
        write_snapshot(files, "/raft/snapshot.local", META, CHUNKS)


def test_a_transfer_carries_the_whole_file_in_order(files: MemoryFiles) -> None:
    store = stored(files)
    outgoing = store.open_outgoing((4, 1))
    assert outgoing is not None
    incoming = store.open_incoming(2, (4, 1))
    count = 0
    while True:
        data, is_first, is_last, transfer_id, offset = outgoing.next_piece()
        assert (is_first, transfer_id, offset) == (count == 0, (4, 1), incoming.received_bytes)
        incoming.write(data)
        count += 1
        if is_last:
            break
    assert count == -(-store.size_bytes // 100)
    incoming.sync()
    incoming.close()
    outgoing.close()
    assert store.verify_incoming() == META
    assert files.read_bytes(store.incoming_path) == files.read_bytes(store.path)


def test_a_transfer_goes_on_with_its_file_when_a_newer_one_replaces_it(
    files: MemoryFiles,
) -> None:
    store = stored(files)
    before = files.read_bytes(store.path)
    outgoing = store.open_outgoing((4, 1))
    assert outgoing is not None
    data = outgoing.next_piece()[0]
    newer = SnapshotMeta(last=(b"\0z", 20, 3), previous=(b"\0y", 19, 3))
    write_snapshot(files, store.local_path, newer, [b"other"])
    store.adopt(store.local_path)
    while len(data) < len(before):
        data += outgoing.next_piece()[0]
    assert data == before


def test_without_a_snapshot_there_is_nothing_to_send(files: MemoryFiles) -> None:
    assert SnapshotStore(files, "/raft").open_outgoing((1, 1)) is None


def test_a_damaged_current_snapshot_is_not_half_loaded(files: MemoryFiles) -> None:
    store = stored(files)
    files.flip_bit(store.path, store.size_bytes - 1)
    with pytest.raises(CorruptLogError):
        store.read()
