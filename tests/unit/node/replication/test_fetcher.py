"""Rules of the follower's loop: write, sync, tell; sessions that break; answers that nobody expected."""

from typing import TYPE_CHECKING

import pytest

from milena.model.contained import EntryPoint
from milena.model.errors import DiskFailedError
from milena.model.requests import Acks
from milena.model.types import NO_OFFSET
from node.config.budgets import RETRY_MS, UNREACHABLE_RETRY_MS_MAX
from node.metrics.counts import NodeCounts
from node.replica.group_commit import SHORT_SYNC_BYTES
from node.replica.runner import ReplicaRole
from node.replication import fetcher as fetcher_module
from node.replication.fetch_wire import FETCH, FETCH_WAKE, FetchCode, Row
from node.replication.fetcher import OFFSET_MAX, REST_S_MAX, LeaderFetcher, ReplicaFetchers, _Phase
from node.replication.followed import FollowedPartitions
from tests.support.clusters import leaders
from tests.support.clusters.replication import FOLLOWER, LEADER, Replicated
from tests.support.clusters.runners import DIRECTORY, batch
from tests.support.fakes.peers import Network, travelled
from tests.support.fakes.standing import FixedStanding
from tests.support.time.virtual_time import after, settle, virtual

if TYPE_CHECKING:
    import asyncio


def write(pair: Replicated, *values: str, number: int = 0) -> "asyncio.Task[object]":
    return pair.leaders[number].send(batch(*values), Acks.ALL, 60_000)  # type: ignore[return-value]


class TestReplication:
    @virtual
    async def test_a_record_is_committed_once_the_follower_has_synced_it(self) -> None:
        pair = Replicated().start()
        task = write(pair, "a")
        await after(1)
        assert task.done()
        assert pair.follower.content() == ["a"]
        await after(10)
        assert pair.follower.runner.high_watermark == 1
        await pair.stop()

    @virtual
    async def test_a_follower_never_acknowledges_what_it_has_not_synced(self) -> None:
        pair = Replicated().start()
        await after(1)
        pair.follower.pool.hold()
        task = write(pair, "a")
        await after(5_000)
        assert pair.follower.log.log_end_offset == 1
        assert pair.leader.runner.high_watermark == 0
        assert not task.done()
        pair.follower.pool.release()
        await after(1)
        assert task.done()
        await pair.stop()

    @virtual
    async def test_a_follower_of_a_relaxed_topic_acknowledges_what_it_wrote(self) -> None:
        pair = Replicated(configs={"flush_messages": "1000"}).start()
        await after(1)
        pair.follower.pool.hold()
        task = write(pair, "a")
        await after(5)
        assert task.done()
        pair.follower.pool.release()
        await pair.stop()

    @virtual
    async def test_only_positions_that_moved_are_told(self) -> None:
        pair = Replicated(3).start()
        await after(1)
        write(pair, "a", number=1)
        await after(20)
        first, *later = pair.requests()
        assert first["full"]
        assert len(first["p"]) == 3  # type: ignore[arg-type]
        told = [position for request in later for position in request["p"]]  # type: ignore[attr-defined]
        assert [(position[0], position[4]) for position in told] == [(1, 1)]
        await pair.stop()

    @virtual
    async def test_a_partition_that_is_followed_later_does_not_wait_for_news(self) -> None:
        pair = Replicated(2, wait_ms=60_000)
        pair.fetcher.follow(pair.followers[0].runner)
        pair.fetcher.start()
        await after(100)
        write(pair, "a", number=1)
        pair.fetcher.follow(pair.followers[1].runner)
        await after(5)
        assert pair.followers[1].content() == ["a"]
        await pair.stop()

    @virtual
    async def test_a_partition_with_unsynced_records_is_told_soon_after_their_sync(self) -> None:
        # A deposed leader begins to follow with records that it has just written.
        pair = Replicated(2, wait_ms=60_000)
        pair.fetcher.follow(pair.followers[0].runner)
        pair.fetcher.start()
        await after(100)
        slow, other = pair.followers
        other.pool.hold()
        other.log.append_as_leader([batch("mine")], leader_epoch=4, now_ms=1)
        pair.fetcher.follow(other.runner)
        await after(10)
        slow.pool.hold()
        write(pair, "a")
        await after(10)
        other.pool.release()
        slow.pool.release()
        await after(10)
        assert other.content() == []
        assert slow.content() == ["a"]
        await pair.stop()

    @virtual
    async def test_what_is_forgotten_is_not_followed_any_more(self) -> None:
        pair = Replicated(2).start()
        await after(1)
        pair.fetcher.forget(pair.followers[0].runner)
        write(pair, "a")
        write(pair, "b", number=1)
        await after(20)
        assert pair.followers[0].content() == []
        assert pair.followers[1].content() == ["b"]
        assert not pair.leaders[0].runner.watchers
        pair.fetcher.forget(pair.followers[1].runner)
        await after(600)
        assert pair.fetcher.is_idle
        count = len(pair.requests())
        await after(59_000)  # its writer gives up after a minute
        assert len(pair.requests()) == count, "nothing to ask for"
        await pair.stop()


LONG = "x" * (SHORT_SYNC_BYTES + 1)
BYTES_MAX = 1 << 20


def kinds(pair: Replicated) -> list[str]:
    return [kind for _, _, kind, _ in pair.network.calls]


def positions(pair: Replicated, first: int = 0) -> list[list[int]]:
    """Numbers of partitions and where they end, as fetches told them, from the ``first`` fetch on."""
    return [
        [position[0], position[4]]
        for request in pair.requests()[first:]
        for position in request["p"]  # type: ignore[attr-defined]
    ]


class TestSyncs:
    @virtual
    async def test_a_lone_writers_record_takes_one_fetch_and_no_wake(self) -> None:
        pair = Replicated(wait_ms=60_000).start()
        await after(1)
        before = len(kinds(pair))
        for number in range(3):
            pair.follower.pool.hold()
            task = write(pair, f"{number}")
            await after(3)
            pair.follower.pool.release()
            await after(1)
            assert task.done()
        assert kinds(pair)[before:] == [FETCH] * 3
        await pair.stop()

    @virtual
    async def test_a_record_does_not_wait_for_the_long_sync_of_another_partition(self) -> None:
        pair = Replicated(2, wait_ms=60_000).start()
        await after(1)
        pair.followers[1].pool.hold()
        long = write(pair, LONG, number=1)
        await after(5)
        assert pair.followers[1].log.log_end_offset == 1
        for _ in range(3):
            short = write(pair, "a")
            await after(1)
            assert short.done()
            assert not long.done(), "told without being stored"
        await pair.stop()

    @virtual
    async def test_a_long_sync_that_ends_while_a_fetch_is_parked_is_told_at_once(self) -> None:
        pair = Replicated(wait_ms=60_000).start()
        await after(1)
        pair.follower.pool.hold()
        task = write(pair, LONG)
        await after(100)
        before = len(kinds(pair))
        pair.follower.pool.release()
        await after(1)
        assert task.done()
        assert kinds(pair)[before:] == [FETCH_WAKE, FETCH]
        await pair.stop()

    @virtual
    async def test_a_fetch_is_woken_once_however_much_there_is_to_tell(self) -> None:
        pair = Replicated(5, wait_ms=60_000, network=Network(delay_ms=lambda: 10)).start()
        await after(100)
        for number in range(5):
            pair.followers[number].pool.hold()
            write(pair, LONG, number=number)
        await after(100)
        before = len(kinds(pair))
        for follower in pair.followers:
            follower.pool.release()
            await after(1)
        await after(60)
        wake, told, *_ = kinds(pair)[before:]
        assert [wake, told] == [FETCH_WAKE, FETCH]
        assert kinds(pair)[before:].count(FETCH_WAKE) == 1
        assert 5 in [len(request["p"]) for request in pair.requests()]  # type: ignore[arg-type]
        await pair.stop()

    @virtual
    async def test_syncs_that_end_together_are_told_together(self) -> None:
        pair = Replicated(3, wait_ms=60_000).start()
        await after(1)
        for number in range(3):
            pair.followers[number].pool.hold()
            write(pair, "a", number=number)
        await after(5)
        for follower in pair.followers:
            follower.pool.release()
        await after(1)
        assert sorted(position[0] for position in pair.requests()[-1]["p"]) == [0, 1, 2]  # type: ignore[attr-defined]
        await pair.stop()

    @virtual
    async def test_no_more_comes_while_as_much_as_an_answer_holds_is_unsynced(self) -> None:
        pair = Replicated(4, wait_ms=60_000)
        for number in range(4):
            pair.followers[number].pool.hold()
            pair.leaders[number].log.append_as_leader(
                [batch("x" * 400_000)], leader_epoch=5, now_ms=1
            )
            pair.leaders[number].log.flushing.sync_all()
        pair.start()
        await after(1_000)
        assert sum(follower.log.size_bytes for follower in pair.followers) < 2 * BYTES_MAX
        assert [request["m"] for request in pair.requests()] == sorted(
            (request["m"] for request in pair.requests()),
            reverse=True,  # type: ignore[type-var]
        )
        asked = len(pair.requests())
        await after(10_000)
        assert len(pair.requests()) == asked, "a busy loop"
        for follower in pair.followers:
            follower.pool.release()
        await after(10)
        assert [follower.log.log_end_offset for follower in pair.followers] == [1] * 4
        await pair.stop()

    @pytest.mark.parametrize(
        ("isr", "others", "sync_ms", "rest_ms"),
        [
            ((LEADER,), True, 10, 10),
            ((LEADER,), True, 400, REST_S_MAX * 1000),
            ((LEADER,), False, 10, 0),
            ((LEADER, FOLLOWER), True, 10, 0),
        ],
        ids=["as long as it took", "not for long", "alone on the disk", "writers wait for it"],
    )
    @virtual
    async def test_one_that_catches_up_rests_after_a_long_sync_where_others_sync(
        self, isr: tuple[int, ...], others: bool, sync_ms: int, rest_ms: int
    ) -> None:
        pair = Replicated(wait_ms=60_000).start()
        pair.take_roles(isr=isr, version=8)
        await after(1)
        pair.follower.pool.hold()
        pair.leader.send(batch(LONG), Acks.LEADER)
        await after(sync_ms)
        pair.counts.short_syncs += others
        told = len(pair.requests())
        pair.follower.pool.release()
        if rest_ms:
            await after(rest_ms - 2)
            assert not positions(pair, told)
        await after(4)
        assert positions(pair, told) == [[0, 1]]
        await pair.stop()

    @virtual
    async def test_while_one_rests_the_others_are_told(self) -> None:
        pair = Replicated(2, wait_ms=60_000).start()
        pair.take_roles(1, isr=(LEADER,), version=8)
        await after(1)
        pair.followers[1].pool.hold()
        pair.leaders[1].send(batch(LONG), Acks.LEADER)
        await after(40)
        pair.counts.short_syncs += 1
        pair.followers[1].pool.release()
        for _ in range(3):
            short = write(pair, "a")
            await after(3)
            assert short.done()
        assert [1, 1] not in positions(pair)
        await after(40)
        assert [1, 1] in positions(pair)
        await pair.stop()

    @virtual
    async def test_what_is_cut_off_while_it_is_synced_is_told_as_it_is_then(self) -> None:
        pair = Replicated(wait_ms=60_000).start()
        await after(1)
        pair.follower.pool.hold()
        write(pair, "a")
        await after(5)
        pair.take_roles(epoch=6, version=9)
        pair.fetcher.follow(pair.follower.runner)
        pair.follower.runner.restart_as_follower(
            leader_epoch=6, log_start=0, producers=pair.leader.log.producer_snapshot(0)
        )
        await after(5)
        assert pair.requests()[-1]["p"][0][3:5] == [6, 0]  # type: ignore[index]
        pair.follower.pool.release()
        await after(5)
        assert pair.follower.content() == ["a"]
        assert pair.leader.runner.high_watermark == 1
        await pair.stop()


class TestTurns:
    @virtual
    async def test_the_next_fetch_leaves_in_the_turn_of_the_answer_and_readers_hear_after_it(
        self,
    ) -> None:
        pair = Replicated(configs={"flush_messages": "1000"}, wait_ms=60_000).start()
        await after(1)
        asked = pair.fetcher._asked
        assert asked is not None
        [exchange] = pair.network.exchanges
        pair.network.exchanges.clear()
        pair.leader.log.append_as_leader([batch("a")], leader_epoch=5, now_ms=1)
        data = pair.leader.log.read_span(0, max_bytes=1 << 20)
        heard: list[int] = []
        advance = pair.follower.runner.advance_as_follower

        def advancing(**said: int) -> bool:
            heard.append(len(pair.requests()))
            return advance(**said)

        pair.follower.runner.advance_as_follower = advancing  # type: ignore[method-assign]
        before = len(pair.requests())
        asked.set_result((travelled({"r": [Row(0, FetchCode.OK, 1, 0, len(data)).pack()]}), data))
        assert len(pair.requests()) == before + 1
        assert not heard
        await settle()
        assert heard == [before + 1]
        assert pair.follower.runner.high_watermark == 1
        assert exchange.answer is asked
        await pair.stop()

    @virtual
    async def test_there_is_one_fetch_at_a_time_also_where_an_answer_brings_word_of_a_sync(
        self,
    ) -> None:
        """Of two, one answer would be thrown away, and the leader waits for ever for who has what came in it."""
        pair = Replicated(wait_ms=60_000).start()
        await after(1)
        pair.follower.pool.hold()
        write(pair, "a")
        await after(5)
        write(pair, "b")
        # The first is stored, and nobody was told yet: whoever appends next notices.
        pair.follower.log.flushing.sync_all()
        pair.fetcher._look_soon()
        await after(5)
        assert pair.follower.log.log_end_offset == 2
        assert not pair.network.exchanges, "held until that is stored"
        pair.follower.pool.release()
        await after(20)
        assert len(pair.network.exchanges) == 1
        assert pair.leader.runner.high_watermark == 2
        await pair.stop()


class TestDivergence:
    @virtual
    async def test_truncates_what_the_leader_does_not_have_and_goes_on(self) -> None:
        pair = Replicated()
        pair.leader.log.append_as_leader([batch("a")], leader_epoch=3, now_ms=1)
        data = pair.leader.log.read_span(0, max_bytes=1 << 20)
        pair.follower.log.append_as_follower(data)
        pair.follower.log.append_as_leader([batch("x"), batch("y")], leader_epoch=4, now_ms=1)
        for number in range(pair.count):
            pair.take_roles(number, epoch=6, version=9)
        pair.start()
        write(pair, "b")
        await after(20)
        assert pair.follower.content() == pair.leader.content() == ["a", "b"]
        assert pair.leader.runner.high_watermark == 2
        await pair.stop()

    @virtual
    async def test_begins_anew_where_the_leaders_log_starts(self) -> None:
        pair = Replicated()
        pair.leader.log.append_as_leader([batch("a"), batch("b")], leader_epoch=4, now_ms=1)
        pair.leader.log.start.advance(2)
        pair.take_roles(epoch=6, version=9)
        pair.start()
        write(pair, "c")
        await after(20)
        assert pair.follower.log.log_start_offset == 2
        assert pair.follower.content() == ["c"]
        await pair.stop()

    @virtual
    async def test_follower_at_the_start_of_a_log_whose_epoch_retention_dropped_goes_on(
        self,
    ) -> None:
        pair = Replicated()
        for bench in (pair.leader, pair.follower):
            bench.log.append_as_leader([batch("a")], leader_epoch=4, now_ms=1)
            bench.log.flushing.sync_all()
        pair.leader.log.start.advance(1)
        pair.leader.log.append_as_leader([batch("b")], leader_epoch=5, now_ms=1)
        pair.follower.runner.advance_as_follower(leader_epoch=5, high_watermark=1, log_start=0)
        pair.take_roles(epoch=6, version=9)
        pair.start()
        await after(100)
        assert not pair.follower.runner.is_stuck
        assert pair.follower.log.log_end_offset == 2
        await pair.stop()

    @virtual
    async def test_a_follower_that_may_not_truncate_stops_asking(self) -> None:
        pair = Replicated()
        pair.follower.log.append_as_leader([batch("x")], leader_epoch=4, now_ms=1)
        pair.follower.log.flushing.sync_all()
        pair.follower.runner.advance_as_follower(leader_epoch=5, high_watermark=1, log_start=0)
        pair.start()
        await after(10_000)
        assert pair.follower.runner.is_stuck
        assert pair.follower.content() == ["x"]
        told = [position for request in pair.requests() for position in request["p"]]  # type: ignore[attr-defined]
        assert len(told) == 1
        pair.take_roles(epoch=6, version=9)
        assert not pair.follower.runner.is_stuck
        await pair.stop()


class TestTrouble:
    @virtual
    async def test_a_leaders_node_that_forgot_the_session_gets_a_new_one(self) -> None:
        pair = Replicated().start()
        await after(1)
        pair.server.close()
        pair.serve()
        write(pair, "a")
        await after(20)
        assert pair.follower.content() == ["a"]
        await pair.stop()

    @virtual
    async def test_a_broken_connection_begins_a_new_session(self) -> None:
        pair = Replicated().start()
        await after(1)
        pair.peer.disconnect(LEADER)
        write(pair, "a")
        await after(100)
        assert pair.follower.content() == ["a"]
        assert sum(bool(request["full"]) for request in pair.requests()) == 2
        await pair.stop()

    @virtual
    async def test_an_unreachable_leader_is_tried_again(self) -> None:
        pair = Replicated().start()
        await after(1)
        handlers = pair.network.handlers.pop(LEADER)
        pair.peer.disconnect(LEADER)
        await after(5_000)
        pair.network.handlers[LEADER] = handlers
        write(pair, "a")
        await after(UNREACHABLE_RETRY_MS_MAX + 10)
        assert pair.follower.content() == ["a"]
        await pair.stop()

    @virtual
    async def test_an_unreachable_leader_is_logged_seldom(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", "node.replication.fetcher")
        pair = Replicated().start()
        await after(1)
        del pair.network.handlers[LEADER]
        pair.peer.disconnect(LEADER)
        await after(30_500)
        lines = [r.getMessage() for r in caplog.records if "fetch failed" in r.getMessage()]
        assert len(lines) == 3
        assert "leader=1 times=1: " in lines[0]
        await pair.stop()

    @virtual
    async def test_a_leader_of_a_new_epoch_is_asked_however_long_it_was_unreachable(self) -> None:
        pair = Replicated().start()
        await after(1)
        handlers = pair.network.handlers.pop(LEADER)
        pair.peer.disconnect(LEADER)
        await after(30_000)
        pair.network.handlers[LEADER] = handlers
        pair.take_roles(epoch=6, version=8)
        pair.fetcher.follow(pair.follower.runner)
        write(pair, "a")
        await after(RETRY_MS + 10)
        assert pair.follower.content() == ["a"]
        await pair.stop()

    @virtual
    async def test_answers_that_get_lost_are_asked_for_again(self) -> None:
        pair = Replicated().start()
        await after(1)
        pair.network.cuts = {(LEADER, FOLLOWER)}
        task = write(pair, "a")
        await after(1_000)
        pair.network.heal()
        await after(2_000)
        assert task.done()
        assert pair.follower.content() == ["a"]
        await pair.stop()

    @virtual
    async def test_a_leader_that_is_a_moment_behind_is_asked_again(self) -> None:
        pair = Replicated()
        pair.follower.image(
            leaders.partition((1, 2), leader=LEADER, leader_epoch=6, partition_epoch=8)
        )
        pair.start()
        await after(200)
        assert pair.follower.log.log_end_offset == 0
        pair.take_roles(epoch=6, version=8)
        write(pair, "a")
        await after(100)
        assert pair.follower.content() == ["a"]
        await pair.stop()

    @virtual
    async def test_a_new_leader_epoch_is_told_at_once(self) -> None:
        pair = Replicated(wait_ms=60_000).start()
        await after(1)
        pair.take_roles(epoch=6, version=8)
        pair.fetcher.follow(pair.follower.runner)
        write(pair, "a")
        await after(60)
        assert pair.leader.runner.high_watermark == 1
        await pair.stop()

    @virtual
    async def test_a_role_that_changed_while_an_answer_was_under_way_takes_nothing(self) -> None:
        pair = Replicated(network=Network(delay_ms=lambda: 10)).start()
        await after(50)
        write(pair, "a")
        await after(5)
        pair.follower.lead((1, 2), epoch=6, version=8)
        await after(50)
        assert pair.follower.content() == []
        await pair.stop()

    @virtual
    async def test_a_full_disk_is_tried_again_until_there_is_room(self) -> None:
        pair = Replicated().start()
        await after(1)
        pair.follower.files.capacity = pair.follower.files.used_bytes()
        task = write(pair, "x" * 100_000)
        await after(2_000)
        assert not task.done()
        assert pair.follower.full_disks
        pair.follower.files.capacity = None
        await after(1_100)
        assert task.done()
        await pair.stop()

    @virtual
    async def test_damaged_records_are_refused_and_asked_for_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pair = Replicated().start()
        await after(1)
        real, reads = pair.leader.runner.read_cached, 0

        def read(offset: int, *, max_bytes: int, end_offset: int) -> bytes | None:
            nonlocal reads
            reads += 1
            data = real(offset, max_bytes=max_bytes, end_offset=end_offset)
            return data[:-1] + b"?" if data and reads <= 2 else data

        monkeypatch.setattr(pair.leader.runner, "read_cached", read)
        task = write(pair, "a")
        await after(1_900)
        assert pair.follower.content() == []
        assert reads == 2, "not again and again"
        await after(200)
        assert pair.follower.content() == ["a"]
        assert task.done()
        assert pair.leader.doubts == [0, 0], "the leader hears of it each time"
        assert [request["bad"] for request in pair.requests() if "bad" in request] == [[0], [0]]
        await pair.stop()

    @pytest.mark.parametrize(("lost_from", "expected"), [(2, True), (1, False), (NO_OFFSET, False)])
    @virtual
    async def test_a_follower_takes_the_batches_before_the_damage_and_reports_its_place(
        self, lost_from: int, monkeypatch: pytest.MonkeyPatch, *, expected: bool
    ) -> None:
        """It has no source only if the leader knows of exactly this damage."""
        pair = Replicated()
        leader, follower = pair.leader.runner, pair.follower.runner
        real, is_damaged = leader.read_cached, True

        def read(offset: int, *, max_bytes: int, end_offset: int) -> bytes | None:
            data = real(offset, max_bytes=max_bytes, end_offset=end_offset)
            return data[:-1] + b"?" if data and is_damaged else data

        monkeypatch.setattr(leader, "read_cached", read)
        monkeypatch.setattr(leader, "lost_from", lambda *_: lost_from)
        monkeypatch.setattr(leader, "kept_damage", object())
        for value in ("a", "b", "c"):
            write(pair, value)
            await after(1)
        pair.start()
        await after(1_500)
        assert pair.follower.content() == ["a", "b"]
        assert follower.has_no_source is expected
        assert set(pair.leader.doubts) == {2}
        is_damaged = False
        await after(2_000)
        assert pair.follower.content() == ["a", "b", "c"]
        assert not follower.has_no_source
        await pair.stop()

    @virtual
    async def test_a_doubt_of_what_is_followed_no_more_is_not_told(self) -> None:
        pair = Replicated(2)
        followed = FollowedPartitions()
        for bench in pair.followers:
            followed.add(bench.runner)
        followed.refused += [0, 1]
        followed.remove(pair.followers[0].runner)
        assert followed.take_refused() == [], "its position is not told yet"
        followed.changed.clear()
        assert followed.take_refused() == [1]
        assert followed.take_refused() == []

    @virtual
    async def test_an_answer_of_another_shape_ends_the_session_only(self) -> None:
        pair = Replicated()
        real = pair.network.handlers[LEADER][FETCH]
        answers: list[object] = [
            [[0, 99, 0, 0, 0, 0, 0]],
            "rows",
            [Row(0, FetchCode.OK, size=5).pack()],
            [Row(77, FetchCode.OK, 5, 0).pack()],
        ]

        async def odd(*request: object) -> object:
            if answers:
                return {"r": answers.pop(0)}, ()
            reply = real(*request)  # type: ignore[arg-type]
            return reply if isinstance(reply, tuple) else await reply

        pair.network.handlers[LEADER][FETCH] = odd  # type: ignore[assignment]
        pair.start()
        write(pair, "a")
        await after(1_000)
        assert pair.follower.content() == ["a"]
        assert not pair.counts.contained.total
        await pair.stop()

    @virtual
    async def test_no_row_of_an_answer_ends_a_node_or_the_fetching(self) -> None:
        numbers = (0, -1, -2, 1, 3, 1 << 31, (1 << 63) - 1, -(1 << 63), 1 << 63, (1 << 64) - 1)
        sound = {"high_watermark": 2, "log_start": 0, "a": 0, "b": 2}
        pair = Replicated().start()
        write(pair, "a")
        write(pair, "b")
        await after(10)
        real = pair.network.handlers[LEADER][FETCH]
        snapshot = pair.leaders[0].runner.log.producer_snapshot(2)
        bodies = (b"", b"\x00" * 20, bytes(range(256)), snapshot)
        lies = [
            (Row(0, code, size=len(body), **{**sound, name: number}).pack(), body)  # type: ignore[arg-type]
            for code in FetchCode
            for name in sound
            for number in numbers
            for body in bodies
            # A place where a log may start is believed: the follower would begin there.
            if (code, name, body) != (FetchCode.BELOW_LOG_START, "a", snapshot)
            or not 0 <= number <= OFFSET_MAX
            if (code, body) != (FetchCode.BELOW_LOG_START, snapshot) or name == "a"
        ]

        async def lying(*request: object) -> object:
            if lies:
                row, body = lies.pop()
                return {"r": [row]}, [body]
            reply = real(*request)  # type: ignore[arg-type]
            return reply if isinstance(reply, tuple) else await reply

        pair.network.handlers[LEADER][FETCH] = lying  # type: ignore[assignment]
        for _ in range(100):
            await after(20_000)
            if not lies:
                break
        assert not lies
        assert not pair.follower.fatal
        assert not pair.counts.contained.total
        assert not pair.network.failures
        await pair.stop()

    @virtual
    async def test_an_unexpected_error_of_one_partition_is_contained_and_the_others_go_on(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pair = Replicated(2).start()
        await after(1)

        def broken(*_: object, **__: object) -> None:
            raise KeyError("a bug")

        with monkeypatch.context() as patch:
            patch.setattr(pair.followers[0].runner, "append_as_follower", broken)
            write(pair, "a")
            write(pair, "b", number=1)
            await after(10)
            assert pair.followers[1].content() == ["b"]
            assert pair.counts.contained.counts[EntryPoint.REPLICATION] == 1
        await after(2_000)
        assert pair.followers[0].content() == ["a"]
        assert not pair.follower.fatal
        await pair.stop()

    @virtual
    async def test_an_unexpected_error_of_the_loop_is_contained_and_it_fetches_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pair = Replicated().start()
        await after(1)

        def broken(*_: object, **__: object) -> None:
            raise KeyError("a bug")

        with monkeypatch.context() as patch:
            patch.setattr(fetcher_module, "parse_rows", broken)
            write(pair, "a")
            await after(10)
            assert pair.counts.contained.counts[EntryPoint.REPLICATION] == 1
        await after(2_000)
        assert pair.follower.content() == ["a"]
        await pair.stop()

    @virtual
    async def test_an_error_in_the_middle_of_an_append_stops_the_node(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pair = Replicated().start()
        await after(1)

        def broken(*_: object, **__: object) -> None:
            raise AssertionError("the log contradicts itself")

        monkeypatch.setattr(type(pair.follower.runner.log), "append_as_follower", broken)
        write(pair, "a")
        await after(10)
        assert [type(error) for error in pair.follower.fatal] == [AssertionError]
        await pair.stop()

    @virtual
    async def test_a_failing_disk_is_fatal(self) -> None:
        pair = Replicated().start()
        await after(1)
        pair.follower.files.fail_next_write(DIRECTORY)
        write(pair, "a")
        await after(10)
        assert isinstance(pair.follower.fatal[0], DiskFailedError)
        await pair.stop()

    @virtual
    async def test_a_closing_replica_does_not_disturb_the_others(self) -> None:
        pair = Replicated(2).start()
        await after(1)
        pair.followers[0].runner.is_closed = True
        write(pair, "a")
        write(pair, "b", number=1)
        await after(1)
        assert pair.followers[1].content() == ["b"]
        assert sum(bool(request["full"]) for request in pair.requests()) == 1
        await pair.stop()


class TestAssignment:
    @virtual
    async def test_a_partition_is_followed_at_its_present_leader_only(self) -> None:
        pair = Replicated()
        made: dict[int, LeaderFetcher] = {}

        def make(leader_id: int) -> LeaderFetcher:
            made[leader_id] = LeaderFetcher(
                leader_id,
                peer=pair.peer,
                clock=pair.follower.clock,
                wait_ms_max=pair.wait_ms,
                bytes_max=1 << 20,
                standing=FixedStanding(20),
                next_session_id=lambda: leader_id,
                counts=NodeCounts(),
            )
            return made[leader_id]

        fetchers = ReplicaFetchers(make)
        runner = pair.follower.runner
        fetchers.assign(runner, 3)
        fetchers.assign(runner, 1)
        assert made[3].is_idle
        assert not made[1].is_idle
        await after(10)
        assert runner.role is ReplicaRole.FOLLOWER
        fetchers.assign(runner, None)
        assert made[1].is_idle
        await fetchers.stop()
        fetchers.assign(runner, 1)
        await settle()
        assert made[1]._phase is _Phase.ENDED, "a node that stops follows nobody"
