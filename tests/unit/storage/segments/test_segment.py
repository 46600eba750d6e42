"""One segment: writing, finding, reading, cutting."""

import pytest

import storage.segments.segment
from milena.model.batch.header import decode_header
from milena.model.errors import CorruptBatchError, CorruptLogError, DiskFullError
from storage.log.reader import end_of_span
from storage.segments.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    RECENT_BATCHES_MAX,
    Segment,
    offset_name,
    parse_offset_name,
    scan_batches,
)
from tests.support.disk.log_model import NOW_MS, make_batch, stamped
from tests.support.disk.memory_files import MemoryFiles

BASE = 1000
DIRECTORY = "/log"


@pytest.fixture
def files():
    files = MemoryFiles()
    files.make_directory(DIRECTORY)
    return files


def new_segment(files, *, interval=300):
    segment = Segment(files, DIRECTORY, BASE, index_interval_bytes=interval)
    segment.create_file()
    return segment


def add(segment, *, records=1, value_bytes=20, timestamp_ms=NOW_MS, allocation_end=0):
    batch = stamped(
        make_batch(records, value_bytes=value_bytes, timestamp_ms=timestamp_ms),
        base_offset=segment.next_offset,
        leader_epoch=0,
        append_time_ms=NOW_MS,
    )
    segment.write([batch], len(batch), allocation_end=allocation_end)
    segment.add_batch(decode_header(batch))
    return batch


def reopened(files, segment):
    """The same segment as it is after it was sealed and forgotten."""
    files.write_atomically(*segment.encode_index())
    other = Segment(files, DIRECTORY, BASE, index_interval_bytes=300)
    other.adopt(segment.summary, None)
    return other


def read(segment, offset, *, max_bytes=1 << 20, end_offset=1 << 40, is_cached=False):
    file = segment.pin()
    try:
        found = segment.read(
            file, offset, max_bytes=max_bytes, end_offset=end_offset, is_cached=is_cached
        )
        if found is None:
            return None
        assert found[1] == (end_of_span(found[0]) == segment.next_offset)
        return found[0]
    finally:
        segment.unpin()


def wanted(batches, offset, max_bytes, end_offset):
    """What a read must return, by walking along a list."""
    found = []
    for batch in batches:
        header = decode_header(batch)
        if header.next_offset <= offset or header.base_offset >= end_offset:
            continue
        if found and sum(map(len, found)) + len(batch) > max_bytes:
            break
        found.append(batch)
    return b"".join(found)


def check_every_read(segment, batches, *, is_cached=False):
    sizes = (0, 1, 150, 400, 1000, 5000)
    for offset in range(segment.base_offset, segment.next_offset):
        for max_bytes in sizes:
            for end_offset in {offset + 1, offset + 5, offset + 20, segment.next_offset}:
                found = read(
                    segment, offset, max_bytes=max_bytes, end_offset=end_offset, is_cached=is_cached
                )
                assert found == wanted(batches, offset, max_bytes, end_offset), (
                    offset,
                    max_bytes,
                    end_offset,
                )


def test_names_sort_as_offsets_do():
    assert offset_name(42, LOG_SUFFIX) == "00000000000000000042.log"
    assert parse_offset_name("00000000000000000042.log", LOG_SUFFIX) == 42


@pytest.mark.parametrize(
    "name", ["42.log", "00000000000000000042.index", "0000000000000000004x.log", "checkpoint", ""]
)
def test_other_names_are_not_taken_for_segments(name):
    assert parse_offset_name(name, LOG_SUFFIX) is None


@pytest.mark.parametrize("value_bytes", [5, 60, 700])
def test_reads_at_the_tail_need_no_index(files, value_bytes):
    segment = new_segment(files)
    batches = [add(segment, records=1 + n % 4, value_bytes=value_bytes) for n in range(12)]
    check_every_read(segment, batches)


@pytest.mark.parametrize("value_bytes", [5, 60, 700])
@pytest.mark.parametrize("locate_bytes_max", [64 << 10, 200])
def test_reads_by_the_index_find_the_same(files, monkeypatch, value_bytes, locate_bytes_max):
    """Small reads cut a chunk, large ones find their ends first: the second case makes all of them large."""
    monkeypatch.setattr(storage.segments.segment, "_LOCATE_BYTES_MAX", locate_bytes_max)
    segment = new_segment(files)
    batches = [add(segment, records=1 + n % 4, value_bytes=value_bytes) for n in range(12)]
    check_every_read(reopened(files, segment), batches)
    check_every_read(reopened(files, segment), batches, is_cached=True)


def test_only_the_last_batches_are_remembered(files, monkeypatch):
    monkeypatch.setattr(storage.segments.segment, "RECENT_BATCHES_MAX", 4)
    segment = new_segment(files)
    batches = [add(segment, records=2) for _ in range(19)]
    assert len(segment._recent[0]) < 2 * 4 + 1
    assert RECENT_BATCHES_MAX > 1000
    check_every_read(segment, batches)


@pytest.mark.parametrize("max_bytes", [100, 200_000])
@pytest.mark.parametrize("is_recent", [True, False])
def test_a_read_from_the_page_cache_does_not_wait_for_the_disk(files, is_recent, max_bytes):
    segment = new_segment(files)
    for _ in range(9):
        add(segment)
    if not is_recent:
        segment = reopened(files, segment)
        segment.load_index()
    files.evict(segment.path(LOG_SUFFIX))
    assert read(segment, BASE + 1, is_cached=True, max_bytes=max_bytes) is None
    assert read(segment, BASE + 1, max_bytes=max_bytes)
    assert read(segment, BASE + 1, is_cached=True, max_bytes=max_bytes)


def test_the_index_has_an_entry_every_so_many_bytes(files):
    segment = new_segment(files, interval=300)
    size = max(len(add(segment)) for _ in range(20))
    index = segment.load_index()
    step = -(-300 // size)
    assert list(index.positions) == list(range(0, 20 * size, step * size))
    assert list(index.offsets) == list(range(BASE, BASE + 20, step))


def test_preallocation_grows_in_steps_that_grow_with_the_segment(files):
    segment = new_segment(files)
    add(segment, allocation_end=10 << 20)
    assert segment.file.size() == segment.allocated_bytes == 1 << 20
    while segment.size_bytes < 3 << 20:
        add(segment, value_bytes=300_000, allocation_end=10 << 20)
    assert segment.file.size() >= 3 << 20
    assert files.operations["allocate"] <= 4


def test_preallocation_stops_where_it_is_told(files):
    segment = new_segment(files)
    add(segment, allocation_end=5000)
    assert segment.file.size() == 5000
    add(segment, value_bytes=9000, allocation_end=5000)
    assert segment.file.size() == segment.size_bytes
    before = files.operations["allocate"]
    add(segment, allocation_end=0)
    assert files.operations["allocate"] == before


def test_a_nearly_full_disk_takes_what_fits_without_preallocation(files):
    segment = new_segment(files)
    files.capacity = files.used_bytes() + 500
    add(segment, allocation_end=1 << 20)
    assert segment.file.size() == segment.size_bytes


def test_a_full_disk_changes_nothing(files):
    segment = new_segment(files)
    add(segment, allocation_end=2000)
    files.capacity = files.used_bytes() + 100
    size, summary = segment.size_bytes, segment.summary
    with pytest.raises(DiskFullError):
        add(segment, value_bytes=5000, allocation_end=1 << 20)
    assert segment.summary == summary
    assert segment.file.size() == segment.allocated_bytes == size
    files.capacity = None
    add(segment)
    assert [header.base_offset for _, header in segment.headers_from(0)] == [BASE, BASE + 1]


def test_leftovers_of_the_same_name_do_not_count(files):
    file = files.open(f"{DIRECTORY}/{offset_name(BASE, LOG_SUFFIX)}", create=True)
    file.pwritev([b"leftovers"], 0)
    assert new_segment(files).file.size() == 0


def test_the_batch_that_holds_an_offset_is_located(files):
    segment = new_segment(files)
    batches = [add(segment, records=3) for _ in range(10)]
    size = len(batches[0])
    for offset in range(BASE, BASE + 30):
        number = (offset - BASE) // 3
        assert segment.locate(offset) == (number * size, BASE + number * 3)
    assert segment.locate(BASE + 30) == (10 * size, BASE + 30)


@pytest.mark.parametrize("kept", range(10))
def test_truncation_leaves_what_lies_below(files, kept):
    segment = new_segment(files)
    batches = [add(segment, records=2, timestamp_ms=NOW_MS + 7 * n % 10) for n in range(10)]
    files.sync_directory(DIRECTORY)
    segment.truncate_to(BASE + 2 * kept + 1)
    files.crash()
    again = Segment(files, DIRECTORY, BASE, index_interval_bytes=300)
    assert again.file.size() == segment.size_bytes == sum(map(len, batches[:kept]))
    assert segment.next_offset == BASE + 2 * kept
    stamps = [decode_header(batch).max_timestamp_ms for batch in batches[:kept]]
    assert segment.max_timestamp_ms == max(stamps, default=-1)
    again.adopt(segment.summary, segment.load_index())
    batches[kept:] = [add(again, records=2) for _ in range(3)]
    check_every_read(again, batches)


def test_indexes_come_back_from_their_files(files):
    segment = new_segment(files)
    for number in range(10):
        add(segment, timestamp_ms=NOW_MS + number)
    again = reopened(files, segment)
    assert not again.has_index
    assert list(again.load_index().offsets) == list(segment.load_index().offsets)
    assert again.has_index
    again.drop_index()
    assert not again.has_index


@pytest.mark.parametrize("damage", ["flip", "remove", "stale"])
def test_a_bad_index_is_made_again_from_the_log(files, damage):
    segment = new_segment(files)
    for number in range(10):
        add(segment, timestamp_ms=NOW_MS + number)
    _, stale = segment.encode_index()
    add(segment)
    again = reopened(files, segment)
    if damage == "flip":
        files.flip_bit(again.path(INDEX_SUFFIX), 60)
    elif damage == "remove":
        files.remove(again.path(INDEX_SUFFIX))
    else:
        files.write_atomically(again.path(INDEX_SUFFIX), stale)
    index, whole = again.load_index(), segment.load_index()
    assert (index.offsets, index.positions, index.timestamps) == (
        whole.offsets,
        whole.positions,
        whole.timestamps,
    )


def test_a_file_stays_open_while_it_is_pinned(files):
    """A descriptor that is closed under a reader may be another file by then."""
    segment = new_segment(files)
    batch = add(segment)
    file = segment.pin()
    segment.remove()
    assert not files.exists(segment.path(LOG_SUFFIX))
    assert file.pread(len(batch), 0) == batch
    segment.unpin()
    assert file.is_closed


def test_a_file_that_was_let_go_is_opened_again(files):
    segment = new_segment(files)
    batch = add(segment)
    first = segment.file
    segment.let_go()
    assert first.is_closed
    assert read(segment, BASE) == batch
    pinned = segment.pin()
    segment.let_go()
    assert segment.pin() is pinned
    segment.unpin()
    segment.unpin()
    assert not pinned.is_closed, "it was wanted again before the last pin was given up"


@pytest.mark.parametrize("position", [0, 4, 7, 40])
def test_a_damaged_frame_is_noticed_by_a_walk(files, position):
    segment = new_segment(files, interval=100_000)
    for _ in range(5):
        add(segment)
    again = reopened(files, segment)
    again.load_index()
    files.overwrite(again.path(LOG_SUFFIX), position, b"\xff\xff")
    with pytest.raises(CorruptLogError):
        again.locate(BASE + 3)
    if position < 40:
        with pytest.raises(CorruptLogError):
            read(again, BASE + 3)


def test_a_file_that_lost_its_end_is_noticed_by_a_read(files):
    segment = new_segment(files)
    for _ in range(5):
        add(segment)
    segment.file.truncate(segment.size_bytes - 10)
    with pytest.raises(CorruptLogError, match="ends at"):
        read(segment, BASE + 4)


def test_a_scan_reads_batches_that_are_larger_than_its_chunk(files, monkeypatch):
    monkeypatch.setattr(storage.segments.segment, "SCAN_CHUNK_BYTES", 400)
    segment = new_segment(files)
    batches = [add(segment, value_bytes=value_bytes) for value_bytes in (10, 900, 300, 5000, 1)]
    found = list(scan_batches(segment.file, 0, segment.size_bytes))
    assert [header.batch_bytes for _, header in found] == [len(batch) for batch in batches]


def test_a_scan_stops_at_the_first_bad_byte(files):
    segment = new_segment(files)
    batches = [add(segment, value_bytes=50) for _ in range(3)]
    size = len(batches[0])
    for position in range(size, 2 * size):
        files.flip_bit(segment.path(LOG_SUFFIX), position)
        found = []
        with pytest.raises(CorruptBatchError):
            found.extend(scan_batches(segment.file, 0, segment.size_bytes))
        files.flip_bit(segment.path(LOG_SUFFIX), position)
    with pytest.raises(CorruptBatchError):
        list(scan_batches(segment.file, 0, segment.size_bytes - 1))


def test_a_damaged_length_does_not_make_a_scan_read_gigabytes(files, peak_bytes):
    segment = new_segment(files)
    add(segment)
    segment.file.allocate(50 << 20)
    files.overwrite(segment.path(LOG_SUFFIX), 0, b"\x02\x00\x00\x00")
    with peak_bytes() as peak, pytest.raises(CorruptBatchError):
        list(scan_batches(segment.file, 0, 50 << 20))
    assert peak() < 3 << 20
