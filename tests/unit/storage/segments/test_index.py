"""The sparse index and its two files."""

import pytest

from milena.model.errors import CorruptLogError
from storage.segments.index import (
    INDEX_HEADER_BYTES,
    SegmentIndex,
    SegmentSummary,
    decode_index,
    decode_summary,
    encode_index,
    encode_time_index,
)

SUMMARY = SegmentSummary(100, 160, 9000, 700)


def filled():
    index = SegmentIndex()
    index.add(100, 0, -1)
    index.add(120, 4100, 500)
    index.add(140, 8300, 500)
    index.add(155, 8900, 600)
    return index


def files(index=None, summary=SUMMARY):
    index = index or filled()
    return encode_index(summary, index), encode_time_index(summary, index)


def test_an_entry_at_or_below_the_offset_is_found():
    index = filled()
    found = [index.floor(offset) for offset in (99, 100, 119, 120, 154, 155, 10_000)]
    assert found == [-1, 0, 0, 1, 2, 3, 3]
    assert SegmentIndex().floor(5) == -1


@pytest.mark.parametrize(
    ("timestamp", "entry"), [(-5, 0), (0, 0), (500, 0), (501, 2), (600, 2), (601, 3), (10_000, 3)]
)
def test_a_search_by_time_begins_after_all_that_is_older(timestamp, entry):
    assert filled().floor_by_timestamp(timestamp) == entry


def test_an_empty_index_finds_nothing():
    assert SegmentIndex().floor_by_timestamp(5) == -1


def test_truncation_makes_a_new_index():
    """A reader on another thread goes on with the one it has."""
    index = filled()
    kept = index.truncated_to(140)
    assert (list(kept.offsets), list(kept.positions), list(kept.timestamps)) == (
        [100, 120],
        [0, 4100],
        [-1, 500],
    )
    assert len(index) == 4
    assert len(index.truncated_to(100)) == 0


def test_the_files_hold_the_index():
    summary, index = decode_index(*files())
    assert summary == SUMMARY
    assert (index.offsets, index.positions, index.timestamps) == (
        filled().offsets,
        filled().positions,
        filled().timestamps,
    )
    assert decode_summary(files()[0][:INDEX_HEADER_BYTES]) == SUMMARY


def test_the_files_of_an_empty_segment():
    summary = SegmentSummary(100, 100, 0, -1)
    index = SegmentIndex()
    found, decoded = decode_index(encode_index(summary, index), encode_time_index(summary, index))
    assert found == summary
    assert len(decoded) == 0


def test_numbers_are_big_endian():
    index_file, time_file = files()
    assert index_file[INDEX_HEADER_BYTES : INDEX_HEADER_BYTES + 16].hex() == f"{100:016x}{120:016x}"
    assert time_file[INDEX_HEADER_BYTES : INDEX_HEADER_BYTES + 8] == b"\xff" * 8


@pytest.mark.parametrize("number", [0, 1])
def test_any_flipped_bit_is_noticed(number):
    whole = list(files())
    for position in range(len(whole[number])):
        damaged = bytearray(whole[number])
        damaged[position] ^= 1
        pair = [*whole]
        pair[number] = bytes(damaged)
        with pytest.raises(CorruptLogError):
            decode_index(*pair)


@pytest.mark.parametrize("length", [0, 10, INDEX_HEADER_BYTES, 60])
def test_a_file_that_is_cut_off_is_refused(length):
    index_file, time_file = files()
    with pytest.raises(CorruptLogError):
        decode_index(index_file[:length], time_file)
    with pytest.raises(CorruptLogError):
        decode_index(index_file, time_file[:length])


def test_the_two_files_must_belong_together():
    index_file, _ = files()
    other = SegmentIndex()
    other.add(100, 0, -1)
    with pytest.raises(CorruptLogError, match="belong together"):
        decode_index(index_file, encode_time_index(SUMMARY, other))
    with pytest.raises(CorruptLogError, match="belong together"):
        decode_index(index_file, encode_time_index(SUMMARY._replace(size_bytes=1), filled()))
    with pytest.raises(CorruptLogError, match="begins with"):
        decode_index(index_file, index_file)


@pytest.mark.parametrize(
    "summary",
    [
        SUMMARY._replace(base_offset=99),
        SUMMARY._replace(next_offset=155),
        SUMMARY._replace(size_bytes=8900),
    ],
)
def test_an_index_that_does_not_cover_its_segment_is_refused(summary):
    with pytest.raises(CorruptLogError, match="does not cover"):
        decode_index(*files(summary=summary))


def test_an_index_without_entries_covers_nothing():
    with pytest.raises(CorruptLogError, match="does not cover"):
        decode_index(
            *(encode(SUMMARY, SegmentIndex()) for encode in (encode_index, encode_time_index))
        )
