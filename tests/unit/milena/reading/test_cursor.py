"""What an answer means for a reader: where it goes on, what it gives out, what it does not believe."""

from dataclasses import replace

import pytest

from milena.errors import UnexpectedAnswerError, UnreadableOffsetError
from milena.model.errors import CorruptBatchError
from milena.reading.cursor import OnOutOfRange, ReadCursor, ReadPlan
from milena.records import LastN, StartAt, TimestampMs
from tests.support.fakes.partition import Answer, stored


def cursor(**plan):
    return ReadCursor(ReadPlan(topic="t", partition=0, **plan))


def pinned(latest, *, log_start=0, **plan):
    made = cursor(**plan)
    made.pin(Answer(start_offset=latest, high_watermark=latest, log_start_offset=log_start))
    return made


def answer(*batches, start=0, next_offset=None, end=10, log_start=0):
    return Answer(
        data=b"".join(batches),
        start_offset=start,
        next_offset=start if next_offset is None else next_offset,
        high_watermark=end,
        log_start_offset=log_start,
    )


TEN = stored(0, *[b"v"] * 10)


# -- the plan --------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [{"start": -1}, {"start": LastN(-1)}, {"end": -1}])
def test_a_plan_refuses_negative_offsets(plan):
    with pytest.raises(ValueError, match="0 or above"):
        cursor(**plan)


@pytest.mark.parametrize("start", ["earliest", "7", None, 7.0])
def test_a_plan_refuses_a_start_that_is_no_position(start):
    with pytest.raises(TypeError, match=f"start={start!r} is not a position: give an offset"):
        cursor(start=start)


@pytest.mark.parametrize(
    ("plan", "must_pin"),
    [
        ({}, True),
        ({"start": 3}, True),
        ({"start": 3, "is_following": True}, False),
        ({"start": TimestampMs(5), "is_following": True}, False),
        ({"start": StartAt.LATEST, "is_following": True}, True),
        ({"start": LastN(2), "is_following": True}, True),
    ],
)
def test_the_end_is_asked_for_only_by_those_who_need_it(plan, must_pin):
    made = cursor(**plan)
    assert made.must_pin is must_pin
    made.pin(answer(start=7, end=7))
    assert not made.must_pin


def test_a_reader_that_does_not_follow_ends_where_the_partition_ended():
    assert pinned(7).end == 7
    assert pinned(7, end=5).end == 5
    assert pinned(7, end=50).end == 7
    assert pinned(7, is_following=True).end is None
    assert pinned(7, is_following=True, end=50).end == 50


def test_latest_begins_at_the_pinned_end():
    assert cursor(start=StartAt.LATEST).pin_at is StartAt.LATEST
    assert pinned(7, start=StartAt.LATEST).position == 7


def test_the_last_n_begin_where_the_node_says_and_end_where_it_counted_from():
    made = cursor(start=LastN(3))
    assert made.pin_at == LastN(3)
    # Markers of transactions have offsets, too.
    made.pin(Answer(start_offset=2, high_watermark=7, log_start_offset=0))
    assert (made.position, made.end) == (2, 7)
    assert pinned(7, start=LastN(0)).is_done


def test_an_empty_partition_is_done_at_once():
    assert pinned(0).is_done
    assert pinned(5, log_start=5).is_done
    assert not pinned(5, log_start=4).is_done


def test_a_start_above_the_end_is_not_the_same_as_nothing_to_read():
    with pytest.raises(UnreadableOffsetError) as caught:
        pinned(7, start=8, log_start=2)
    error = caught.value
    assert (error.offset, error.log_start_offset, error.high_watermark) == (8, 2, 7)
    assert pinned(7, start=7).is_done
    assert pinned(7, start=8, on_out_of_range=OnOutOfRange.LATEST).is_done
    assert pinned(7, start=8, log_start=2, on_out_of_range=OnOutOfRange.EARLIEST).position == 2


# -- what is given out -----------------------------------------------------------------------------


def test_a_chunk_is_trimmed_to_the_start_and_to_the_high_watermark():
    reader = cursor(start=3, is_following=True)
    chunk = reader.take(answer(TEN, start=3, end=8))
    assert (chunk.start_offset, chunk.end_offset, chunk.next_offset) == (3, 8, 8)
    assert chunk.data == TEN
    assert reader.position == 8


def test_a_chunk_is_trimmed_to_the_end_and_batches_beyond_are_cut_off():
    reader = cursor(start=1, end=12, is_following=True)
    second, third = stored(10, b"a", b"b", b"c"), stored(13, b"d")
    chunk = reader.take(answer(TEN, second, third, start=1, end=14))
    assert (chunk.start_offset, chunk.end_offset) == (1, 12)
    assert chunk.data == TEN + second
    assert reader.is_done


def test_batches_before_the_offset_are_cut_off():
    reader = cursor(start=10, is_following=True)
    second = stored(10, b"a")
    chunk = reader.take(answer(TEN, second, start=10, end=11))
    assert chunk.data == second


def test_chunks_are_adjacent():
    reader = cursor(is_following=True)
    first = reader.take(answer(TEN, start=0, end=10))
    again = reader.take(answer(stored(10, b"a"), start=10, end=11))
    assert first.end_offset == again.start_offset == 10
    assert reader.position == 11


def test_the_first_answer_tells_which_offset_a_time_came_to():
    reader = cursor(start=TimestampMs(5), is_following=True)
    assert reader.take(answer(start=10, end=10)) is None
    assert reader.position == 10


def test_nothing_yet_leaves_the_position():
    reader = cursor(start=10, is_following=True)
    assert reader.take(answer(start=10, end=10)) is None
    assert reader.take(answer(start=10, end=4)) is None, "a follower that lags behind"
    assert reader.position == 10


def test_a_follower_that_lags_does_not_show_what_it_has_not_committed():
    reader = cursor(start=4, is_following=True)
    for end in (4, 2):
        assert reader.take(answer(TEN, start=4, end=end)) is None
        assert reader.position == 4


def test_gaps_that_compaction_left_are_passed_over():
    reader = cursor(start=2, is_following=True)
    gap = stored(6, b"a", b"b", b"c", keep=[2])
    chunk = reader.take(answer(gap, start=2, end=20))
    assert (chunk.start_offset, chunk.end_offset) == (2, 9)
    assert reader.take(answer(start=9, next_offset=15, end=20)) is None
    assert reader.position == 15


def test_a_gap_that_reaches_to_the_end_ends_the_reader():
    reader = pinned(8, start=2)
    assert reader.take(answer(stored(9, b"a"), start=2, end=10)) is None
    assert reader.is_done
    other = pinned(8, start=2)
    assert other.take(answer(start=2, next_offset=30, end=10)) is None
    assert other.is_done


def test_a_batch_without_records_is_read_over():
    reader = cursor(is_following=True)
    assert reader.take(answer(stored(0, b"a", b"b", keep=[]), end=2)).next_offset == 2


# -- what is deleted -------------------------------------------------------------------------------


def test_records_deleted_under_the_reader_are_not_passed_over_in_silence():
    reader = cursor(start=2, is_following=True)
    with pytest.raises(UnreadableOffsetError, match=r"offset 2 was deleted; .* from 6"):
        reader.take(answer(stored(6, b"a"), start=2, end=7, log_start=6))


@pytest.mark.parametrize(
    "late", [answer(stored(6, b"a"), start=2, end=7, log_start=6), answer(start=2, log_start=6)]
)
@pytest.mark.parametrize("end", [3, 6, 7])
def test_records_deleted_under_the_reader_are_not_taken_for_a_hole(late, end):
    with pytest.raises(UnreadableOffsetError, match=r"offset 2 was deleted; .* from 6"):
        cursor(start=2, end=end).take(late)


@pytest.mark.parametrize(
    ("policy", "position", "skipped"), [(OnOutOfRange.EARLIEST, 6, 4), (OnOutOfRange.LATEST, 9, 7)]
)
def test_a_reset_goes_on_and_counts_what_it_left_out(policy, position, skipped):
    reader = cursor(start=2, is_following=True, on_out_of_range=policy)
    assert reader.take(answer(stored(6, b"a"), start=2, end=9, log_start=6)) is None
    assert (reader.position, reader.skipped) == (position, skipped)


def test_a_position_in_range_is_left_alone():
    reader = cursor(start=2)
    reader.go_into_range(2, 2)
    assert (reader.position, reader.skipped) == (2, 0)


def test_a_log_that_became_shorter_is_an_error_or_a_reset_without_loss():
    with pytest.raises(UnreadableOffsetError, match="above the end"):
        cursor(start=9).go_into_range(0, 5)
    reader = cursor(start=9, on_out_of_range=OnOutOfRange.LATEST)
    reader.go_into_range(0, 5)
    assert (reader.position, reader.skipped) == (5, 0)


# -- what is not believed --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (answer(TEN, start=1), "asked for offset 0, answered 1"),
        (answer(TEN, start=-1), "start offset -1"),
        (answer(TEN, end=3, log_start=4), "contradict"),
        (answer(TEN, end=-1), "contradict"),
        (answer(TEN, log_start=-1), "contradict"),
        (answer(TEN, stored(9, b"a")), "follows one that ends at 10"),
        (answer(stored(10, b"a"), TEN), "follows one that ends at 11"),
    ],
)
def test_an_answer_that_contradicts_itself_moves_nothing(given, complaint):
    reader = cursor(start=0, is_following=True)
    with pytest.raises(UnexpectedAnswerError, match=complaint):
        reader.take(given)
    assert reader.position == 0


def test_batches_that_do_not_reach_the_offset_are_no_answer():
    reader = cursor(start=10, is_following=True)
    with pytest.raises(UnexpectedAnswerError, match="asked for offset 10, got batches that end"):
        reader.take(answer(TEN, start=10, end=11))
    with pytest.raises(UnexpectedAnswerError, match="told to go on at 9"):
        reader.take(answer(start=10, next_offset=9, end=11))


@pytest.mark.parametrize("position", [3, 40, len(TEN) - 1])
def test_a_flipped_bit_is_found(position):
    data = bytearray(TEN)
    data[position] ^= 4
    reader = cursor(start=0, is_following=True)
    with pytest.raises(CorruptBatchError):
        reader.take(answer(bytes(data)))
    assert reader.position == 0


def test_a_cut_off_batch_is_found():
    with pytest.raises(CorruptBatchError):
        cursor(start=0, is_following=True).take(answer(TEN[:-1]))


# -- a topic that is made again --------------------------------------------------------------------


def of_topic(tag, *batches, **bounds):
    return replace(answer(*batches, **bounds), topic_tag=tag)


def test_a_reader_does_not_go_on_in_another_topic_of_the_name():
    reader = cursor(is_following=True)
    assert reader.take(of_topic("a", TEN)).end_offset == 10
    with pytest.raises(UnreadableOffsetError, match="made again") as refused:
        reader.take(of_topic("b", start=10, end=12))
    assert refused.value.is_made_again


@pytest.mark.parametrize(
    ("policy", "position"), [(OnOutOfRange.EARLIEST, 3), (OnOutOfRange.LATEST, 12)]
)
def test_or_goes_on_where_it_is_told_to(policy, position):
    reader = cursor(is_following=True, on_out_of_range=policy)
    reader.take(of_topic("a", TEN))
    assert reader.take(of_topic("b", start=10, end=12, log_start=3)) is None
    assert (reader.position, reader.high_watermark) == (position, 12)
    with pytest.raises(UnexpectedAnswerError, match="deleted"):
        reader.take(of_topic("a", start=position, end=20))
    reader.take(of_topic("b", start=position, end=12, log_start=3))


def test_a_node_that_names_no_topic_is_believed():
    reader = cursor(is_following=True)
    reader.take(of_topic("a", TEN))
    assert reader.take(of_topic("", start=10, end=10)) is None
    assert reader.position == 10
