"""Rules of cutting an answer: at records, within bounds, one at least, nothing at or above the high watermark."""

from node.consumers.answer_cutting import AnswerRoom, cut
from tests.support.disk.stored_batches import filler, offsets_in, stored

AMPLE = AnswerRoom(payload_bytes=1 << 20, records=1_000, needs_one=True)


def room(payload_bytes: int, *, records: int = 100, needs_one: bool = True) -> AnswerRoom:
    return AnswerRoom(payload_bytes=payload_bytes, records=records, needs_one=needs_one)


class TestBounds:
    def test_keys_and_values_count_and_nothing_else(self) -> None:
        batch = stored(0, [b"aaaa", b"bbbb", None], keys=[b"k", None, b"kk"])
        made = cut(batch, 0, 3, AMPLE)
        assert (made.record_count, made.payload_bytes) == (3, 11)
        assert offsets_in(cut(batch, 0, 3, room(9))) == [0, 1]
        assert offsets_in(cut(batch, 0, 3, room(8))) == [0]

    def test_the_first_record_goes_out_however_large_it_is(self) -> None:
        batch = stored(0, [b"a" * 100, b"b"])
        assert offsets_in(cut(batch, 0, 2, room(1))) == [0]
        assert offsets_in(cut(batch, 0, 2, room(0, records=0))) == [0]

    def test_it_does_so_once_in_an_answer(self) -> None:
        made = cut(stored(0, [b"a" * 100]), 0, 1, room(1, needs_one=False))
        assert (made.record_count, made.next_offset, made.batches) == (0, 0, b"")

    def test_records_are_counted_too(self) -> None:
        made = cut(stored(0, [None] * 5), 0, 5, room(100, records=2))
        assert (offsets_in(made), made.next_offset) == ([0, 1], 2)

    def test_several_batches_share_the_room(self) -> None:
        batches = stored(0, [b"aa", b"bb"]) + stored(2, [b"cc", b"dd"])
        made = cut(batches, 0, 4, room(6))
        assert (offsets_in(made), made.end_offset, made.next_offset) == ([0, 1, 2], 3, 3)

    def test_what_a_cut_takes_leaves_less_room(self) -> None:
        left = room(10, records=5).less(cut(stored(0, [b"aaa"]), 0, 1, room(10, records=5)))
        assert left == AnswerRoom(payload_bytes=7, records=4, needs_one=False)
        assert not left.is_over
        assert room(0, needs_one=False).is_over
        assert not room(0).is_over


class TestWhere:
    def test_it_begins_within_a_batch(self) -> None:
        batches = stored(0, [b"a", b"b"]) + stored(2, [b"c", b"d"])
        made = cut(batches, 3, 4, AMPLE)
        assert (offsets_in(made), made.start_offset, made.end_offset) == ([3], 3, 4)
        assert made.batches == stored(2, [b"c", b"d"])

    def test_it_ends_at_the_high_watermark(self) -> None:
        batches = stored(0, [b"a", b"b", b"c"]) + stored(3, [b"d"])
        made = cut(batches, 0, 2, AMPLE)
        assert (offsets_in(made), made.end_offset, made.next_offset) == ([0, 1], 2, 2)

    def test_the_epoch_is_that_of_the_last_record(self) -> None:
        batches = stored(0, [b"a"], epoch=3) + stored(1, [b"b"], epoch=5)
        assert cut(batches, 0, 2, AMPLE).leader_epoch == 5
        assert cut(batches, 0, 1, AMPLE).leader_epoch == 3


class TestDamage:
    def test_what_lies_before_it_is_delivered_and_the_next_cut_begins_there(self) -> None:
        whole, damaged = stored(0, [b"a", b"b"]), bytearray(stored(2, [b"c", b"d"]))
        damaged[-1] ^= 1
        made = cut(whole + damaged + stored(4, [b"e"]), 0, 5, AMPLE)
        assert (offsets_in(made), made.next_offset, made.damaged_at) == ([0, 1], 2, 2)
        made = cut(bytes(damaged) + stored(4, [b"e"]), 3, 5, AMPLE)
        assert (made.record_count, made.next_offset, made.damaged_at) == (0, 3, 3)
        assert cut(whole, 0, 2, AMPLE).damaged_at is None


class TestGaps:
    def test_what_compaction_removed_is_passed_over(self) -> None:
        batches = filler(0, 4) + stored(4, [b"a", b"b"], deltas=[1, 3])
        made = cut(batches, 0, 8, AMPLE)
        assert (offsets_in(made), made.end_offset, made.next_offset) == ([5, 7], 8, 8)

    def test_a_gap_at_the_end_moves_the_position_and_not_the_commit(self) -> None:
        made = cut(stored(0, [b"a"]) + filler(1, 9), 0, 10, AMPLE)
        assert (made.end_offset, made.next_offset) == (1, 10)

    def test_nothing_but_gaps_is_no_record(self) -> None:
        made = cut(filler(0, 10), 3, 8, AMPLE)
        assert (made.record_count, made.end_offset, made.next_offset) == (0, 3, 8)

    def test_what_leaders_write_for_themselves_is_passed_over(self) -> None:
        made = cut(stored(0, [b"x"], is_control=True) + stored(1, [b"a"]), 0, 2, AMPLE)
        assert (offsets_in(made), made.record_count) == ([1], 1)
