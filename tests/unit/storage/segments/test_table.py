"""Which segment holds an offset, and which stay open."""

import pytest

from storage.segments.segment import Segment
from storage.segments.table import OPEN_SEALED_MAX, SegmentTable
from storage.state.producer_state import WriterState
from tests.support.disk.memory_files import MemoryFiles

NO_STATE = WriterState().freeze(0)


@pytest.fixture
def files():
    files = MemoryFiles()
    files.make_directory("/log")
    return files


def segment(files, base, next_offset=None):
    made = Segment(files, "/log", base, index_interval_bytes=100)
    made.create_file()
    made.next_offset = base + 10 if next_offset is None else next_offset
    return made


@pytest.fixture
def table(files):
    return SegmentTable([segment(files, base) for base in range(0, 100, 10)], {})


def bases(segments):
    return [segment.base_offset for segment in segments]


def test_the_segment_that_holds_an_offset_is_found(table):
    assert [table.find(offset).base_offset for offset in (0, 9, 10, 55, 99, 500)] == [
        0,
        0,
        10,
        50,
        90,
        90,
    ]
    assert table.active.base_offset == 90
    assert table.bases == tuple(range(0, 100, 10))


def test_segments_are_split_by_where_they_begin(table):
    kept, dropped = table.split_at(30)
    assert (bases(kept), bases(dropped)) == ([0, 10, 20], [30, 40, 50, 60, 70, 80, 90])
    kept, dropped = table.split_at(31)
    assert bases(kept)[-1] == 30
    assert bases(table.split_at(0)[0]) == [0], "one is always kept"
    assert bases(table.above(70)) == [70, 80, 90]


def test_a_segment_that_was_rolled_waits_to_be_sealed(files, table):
    last = table.active
    table.push(segment(files, 100), NO_STATE)
    assert table.active.base_offset == 100
    assert list(table.unsealed) == [last]
    table.mark_sealed([last])
    assert not table.unsealed


def test_dropping_the_last_segments_lets_the_one_before_them_grow(files, table):
    table.push(segment(files, 100), NO_STATE)
    table.push(segment(files, 110), NO_STATE)
    kept, dropped = table.split_at(95)
    files_of_dropped = [old.file for old in dropped]
    table.drop_last(kept)
    assert table.active.base_offset == 90
    assert not table.unsealed
    assert all(file.is_closed for file in files_of_dropped)


def test_dropping_the_first_segments_removes_their_files(files, table):
    reader = table.segments[0].pin()
    table.drop_first(3)
    assert table.bases[0] == 30
    assert len(files.list_directory("/log")) == 7
    assert not reader.is_closed, "somebody is reading it"


def test_one_segment_may_take_the_place_of_all(files, table):
    table.push(segment(files, 100), NO_STATE)
    old = [each.file for each in table.segments]
    table.replace_all(segment(files, 500))
    assert table.bases == (500,)
    assert not table.unsealed
    assert all(file.is_closed for file in old)


def test_the_sealed_segments_that_were_read_last_stay_open(table):
    for old in table.segments:
        assert old.file
        table.note_use(old)
    opened = [old.base_offset for old in table.segments if old._file is not None]
    assert opened == [90 - 10 * n for n in range(OPEN_SEALED_MAX, -1, -1)]
    table.note_use(table.segments[5])
    table.note_use(table.segments[0])
    assert table.segments[5]._file is not None
    assert table.segments[6]._file is None


def test_a_segment_that_waits_to_be_sealed_keeps_its_index(files, table):
    last = table.active
    table.push(segment(files, 100), NO_STATE)
    for _ in range(2):
        for old in table.segments:
            table.note_use(old)
    assert last.has_index
    assert last._file is not None


def test_closing_closes_all(table):
    opened = [old.file for old in table.segments]
    table.close()
    assert all(file.is_closed for file in opened)
