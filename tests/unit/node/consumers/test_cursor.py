"""Rules of a consumer's places: where it begins, what is delivered, arrived and committed, and what starts over."""

from collections.abc import Mapping

from node.consumers.answer_cutting import AnswerRoom, cut
from node.consumers.cursor import AUTO_COMMIT_MS, Cursor, GivenExtent, OffsetAndEpoch
from raft_meta.machine.image import PartitionKey
from tests.support.disk.stored_batches import filler, stored

A: PartitionKey = ("a" * 32, 0)
B: PartitionKey = ("b" * 32, 1)
AMPLE = AnswerRoom(payload_bytes=1 << 20, records=1_000, needs_one=True)


def cursor_at(places: Mapping[PartitionKey, int | None], *, is_auto_commit: bool = True) -> Cursor:
    """With these commits."""
    cursor = Cursor(is_auto_commit=is_auto_commit, now_ms=0)
    assign(cursor, places)
    return cursor


def assign(
    cursor: Cursor, places: Mapping[PartitionKey, int | None], *, is_exclusive: bool = True
) -> None:
    cursor.assign(places, places.get, is_exclusive=is_exclusive)


def deliver(cursor: Cursor, key: PartitionKey, count: int) -> bool:
    """The next records."""
    position = cursor.position(key)
    assert position is not None
    return cursor.deliver(key, cut(stored(position, [b"v"] * count), position, 1 << 40, AMPLE))


class TestWhereItBegins:
    def test_at_the_commit(self) -> None:
        assert cursor_at({A: 5}).position(A) == 5

    def test_nowhere_without_one_until_it_is_put_somewhere(self) -> None:
        cursor = cursor_at({A: None, B: 1})
        assert cursor.without_position() == [A]
        cursor.put(A, 9)
        assert (cursor.position(A), cursor.without_position()) == (9, [])
        assert cursor.delivered() == {A: OffsetAndEpoch(9, -1)}
        assert cursor.arrived() == {}

    def test_a_commit_of_another_is_not_taken_back_by_one_who_has_read_nothing(self) -> None:
        cursor = cursor_at({A: 0})
        cursor.assign([A], lambda key: 7, is_exclusive=False)
        assert (cursor.position(A), cursor.delivered()) == (0, {})

    def test_at_its_own_commit_when_it_stood_nowhere(self) -> None:
        cursor = cursor_at({A: None})
        cursor.on_committed(A, 3)
        assign(cursor, {A: 3})
        assert cursor.position(A) == 3

    def test_what_was_taken_away_begins_at_its_commit_when_it_returns(self) -> None:
        cursor = cursor_at({A: 5, B: 0})
        deliver(cursor, A, 3)
        assign(cursor, {B: 0})
        assert A not in cursor
        assign(cursor, {A: 5, B: 0})
        assert cursor.position(A) == 5

    def test_another_members_commit_moves_it(self) -> None:
        cursor = cursor_at({A: 5})
        deliver(cursor, A, 3)
        assign(cursor, {A: 20})
        assert cursor.position(A) == 20
        assert cursor.delivered() == {}

    def test_its_own_commit_does_not(self) -> None:
        cursor = cursor_at({A: 5})
        deliver(cursor, A, 3)
        cursor.on_committed(A, 8)
        deliver(cursor, A, 1)
        assign(cursor, {A: 8})
        assert cursor.position(A) == 9

    def test_neither_does_one_of_which_it_never_heard(self) -> None:
        cursor = cursor_at({A: 5})
        deliver(cursor, A, 3)
        cursor.on_committing(A, 8)
        deliver(cursor, A, 1)
        assign(cursor, {A: 8})
        assert cursor.position(A) == 9
        assert cursor.delivered() == {A: OffsetAndEpoch(9, 7)}

    def test_by_hand_others_commits_are_none_of_its_business(self) -> None:
        cursor = cursor_at({A: 5})
        deliver(cursor, A, 3)
        assign(cursor, {A: 20}, is_exclusive=False)
        assert cursor.position(A) == 8


class TestTokens:
    def test_the_same_one_asks_for_the_same_extents_until_another_call_begins(self) -> None:
        cursor = self.answered("t")
        assert cursor.again("t") == [GivenExtent(A, 0, 2)]
        assert cursor.again("u") is None
        assert cursor.again("") is None
        cursor.begin("2")
        assert cursor.again("t") is None

    def test_without_one_nothing_is_asked_for_again(self) -> None:
        assert self.answered("").again("") is None

    def test_a_call_without_an_answer_is_none_to_ask_for_again(self) -> None:
        cursor = cursor_at({A: 0})
        cursor.begin("1", "t")
        deliver(cursor, A, 2)
        assert cursor.again("t") is None
        assert cursor.take_back("1")
        assert cursor.position(A) == 0

    def test_what_is_answered_under_one_is_neither_taken_back_nor_in_doubt(self) -> None:
        cursor = self.answered("t")
        assert not cursor.take_back("1")
        assert cursor.position(A) == 2
        assert cursor.unproven == ""

    def test_it_has_arrived_once_the_client_says_so(self) -> None:
        cursor = self.answered("t")
        for token in ("", "u"):
            cursor.acknowledge(token)
            assert cursor.arrived() == {}
        cursor.acknowledge("t")
        assert cursor.arrived() == {A: OffsetAndEpoch(2, 7)}

    def test_partitions_that_were_taken_away_are_not_asked_for_again(self) -> None:
        cursor = self.answered("t")
        assign(cursor, {})
        assign(cursor, {A: 0})
        assert cursor.again("t") == []

    def test_a_seek_voids_it(self) -> None:
        cursor = self.answered("t")
        cursor.seek(A, 1)
        assert cursor.again("t") is None

    @staticmethod
    def answered(token: str) -> Cursor:
        """A call that was answered with two records."""
        cursor = cursor_at({A: 0})
        cursor.begin("1", token)
        deliver(cursor, A, 2)
        cursor.on_answered([GivenExtent(A, 0, 2)])
        return cursor


class TestDelivering:
    def test_records_come_once_and_in_order(self) -> None:
        cursor = cursor_at({A: 0})
        made = cut(stored(0, [b"x", b"y"]), 0, 2, AMPLE)
        cursor.begin("1")
        assert cursor.deliver(A, made)
        assert not cursor.deliver(A, made)
        assert cursor.position(A) == 2

    def test_what_was_delivered_last_comes_last(self) -> None:
        cursor = cursor_at({A: 0, B: 0})
        assert list(cursor) == [A, B]
        deliver(cursor, A, 1)
        assert list(cursor) == [B, A]

    def test_a_commit_passes_what_no_reader_sees(self) -> None:
        cursor = cursor_at({A: 0})
        cursor.begin("1")
        cursor.deliver(A, cut(stored(0, [b"v"]) + filler(1, 9), 0, 10, AMPLE))
        assert (cursor.position(A), cursor.delivered()) == (10, {A: OffsetAndEpoch(10, 7)})
        cursor.begin("2")
        cursor.deliver(A, cut(filler(10, 5), 10, 15, AMPLE))
        assert cursor.delivered() == {A: OffsetAndEpoch(15, 7)}
        assert cursor.arrived() == {A: OffsetAndEpoch(10, 7)}
        assert cursor.take_back("2")
        assert cursor.delivered() == {A: OffsetAndEpoch(10, 7)}

    def test_an_answer_that_nobody_got_is_delivered_again(self) -> None:
        cursor = cursor_at({A: 0})
        cursor.begin("1")
        deliver(cursor, A, 2)
        cursor.begin("2")
        deliver(cursor, A, 2)
        deliver(cursor, A, 2)
        assert cursor.take_back("2")
        assert cursor.position(A) == 2
        assert cursor.delivered() == {A: OffsetAndEpoch(2, 7)}

    def test_a_repeated_call_gets_the_same_records(self) -> None:
        cursor = cursor_at({A: 0})
        cursor.begin("1")
        deliver(cursor, A, 2)
        cursor.begin("1")
        assert cursor.position(A) == 0
        assert cursor.arrived() == {}

    def test_an_answer_is_not_taken_back_once_the_client_came_again(self) -> None:
        cursor = cursor_at({A: 0})
        cursor.begin("1")
        deliver(cursor, A, 2)
        cursor.begin("2")
        assert not cursor.take_back("1")
        assert cursor.position(A) == 2

    def test_a_seek_outlives_the_answer_before_it(self) -> None:
        cursor = cursor_at({A: 0})
        cursor.begin("1")
        deliver(cursor, A, 2)
        cursor.seek(A, 7)
        cursor.take_back("1")
        assert cursor.position(A) == 7


class TestCommitting:
    def test_a_commit_is_the_last_delivered(self) -> None:
        cursor = cursor_at({A: 0})
        deliver(cursor, A, 3)
        assert cursor.delivered() == {A: OffsetAndEpoch(3, 7)}

    def test_what_is_committed_is_no_news(self) -> None:
        cursor = cursor_at({A: 0})
        deliver(cursor, A, 3)
        cursor.on_committed(A, 3)
        assert cursor.delivered() == {}

    def test_the_last_answer_has_not_arrived_until_the_client_comes_again(self) -> None:
        cursor = cursor_at({A: 0})
        cursor.begin("1")
        deliver(cursor, A, 3)
        assert cursor.arrived() == {}
        cursor.begin("2")
        deliver(cursor, A, 3)
        assert cursor.arrived() == {A: OffsetAndEpoch(3, 7)}
        assert cursor.delivered() == {A: OffsetAndEpoch(6, 7)}

    def test_a_seek_is_committed_too(self) -> None:
        cursor = cursor_at({A: 5})
        cursor.seek(A, 2)
        assert cursor.delivered() == cursor.arrived() == {A: OffsetAndEpoch(2, -1)}

    def test_every_interval_if_at_all(self) -> None:
        cursor = cursor_at({A: 0})
        assert not cursor.is_commit_due(AUTO_COMMIT_MS - 1)
        assert cursor.is_commit_due(AUTO_COMMIT_MS)
        assert not cursor.is_commit_due(2 * AUTO_COMMIT_MS - 1)
        assert not cursor_at({}, is_auto_commit=False).is_commit_due(1 << 40)
