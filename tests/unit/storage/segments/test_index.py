"""The sparse index and its file."""

import pytest

from milena.model.errors import CorruptLogError
from storage.segments.index import (
    INDEX_HEADER_BYTES,
    SegmentIndex,
    SegmentSummary,
    decode_index,
    decode_summary,
    encode_index,
)

SUMMARY = SegmentSummary(100, 160, 9000, 700)


def filled():
    index = SegmentIndex()
    index.add(100, 0, -1)
    index.add(120, 4100, 500)
    index.add(140, 8300, 500)
    index.add(155, 8900, 600)
    return index


def stored(summary=SUMMARY):
    return encode_index(summary, filled())


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


def test_the_file_holds_the_index():
    summary, index = decode_index(stored())
    assert summary == SUMMARY
    assert (index.offsets, index.positions, index.timestamps) == (
        filled().offsets,
        filled().positions,
        filled().timestamps,
    )
    assert decode_summary(stored()[:INDEX_HEADER_BYTES]) == SUMMARY


def test_the_file_of_an_empty_segment():
    summary = SegmentSummary(100, 100, 0, -1)
    found, decoded = decode_index(encode_index(summary, SegmentIndex()))
    assert found == summary
    assert len(decoded) == 0


def test_numbers_are_big_endian():
    columns = stored()[INDEX_HEADER_BYTES:]
    assert columns[:16].hex() == f"{100:016x}{120:016x}"
    assert columns[8 * 4 * 2 :][:8] == b"\xff" * 8


def test_any_flipped_bit_is_noticed():
    for position in range(len(stored())):
        damaged = bytearray(stored())
        damaged[position] ^= 1
        with pytest.raises(CorruptLogError):
            decode_index(bytes(damaged))


@pytest.mark.parametrize("length", [0, 10, INDEX_HEADER_BYTES, 60])
def test_a_file_that_is_cut_off_is_refused(length):
    with pytest.raises(CorruptLogError):
        decode_index(stored()[:length])


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
        decode_index(stored(summary))


def test_an_index_without_entries_covers_nothing():
    with pytest.raises(CorruptLogError, match="does not cover"):
        decode_index(encode_index(SUMMARY, SegmentIndex()))
