"""Rules of the leader's side of replica fetches: sessions, verdicts, news, wake-ups."""

import asyncio

import pytest

from milena.model.errors import CorruptLogError, MalformedRequestError
from milena.model.pending import Pending
from milena.model.requests import Acks
from node.replica.runner import PartitionRunner
from node.replication.fetch_server import SNAPSHOT_BYTES_MAX, FetchServer
from node.replication.fetch_wire import FetchCode, Row, parse_rows
from tests.support.clusters import leaders
from tests.support.clusters.runners import TOPIC_ID, Bench, batch, settings, values_of
from tests.support.fakes.peers import travelled
from tests.support.time.virtual_time import after, settle, virtual

FOLLOWER = 2


class Served:
    """Broker 1 leads partitions 0, 1, ... and broker 2 fetches them by hand."""

    def __init__(self, count: int = 1, isr: tuple[int, ...] = (1, 2)) -> None:
        self.benches = [
            Bench(settings=settings(min_insync_replicas="1", max_message_bytes="1000000"))
            for _ in range(count)
        ]
        for bench in self.benches:
            bench.lead(isr)
        self.brokers = self.benches[0].brokers
        self.server = FetchServer(find_runner=self.find, brokers=lambda: self.brokers)
        self.session = 1

    def find(self, topic_id: str, partition: int) -> PartitionRunner | None:
        is_known = topic_id == TOPIC_ID and partition < len(self.benches)
        return self.benches[partition].runner if is_known else None

    @property
    def bench(self) -> Bench:
        return self.benches[0]

    def request(
        self,
        *positions: tuple[int, int, int],
        full: bool = False,
        forget: tuple[int, ...] = (),
        wait_ms: int = 0,
        max_bytes: int = 1 << 20,
        broker_epoch: int = 20,
        leader_epoch: int = 5,
        bad: tuple[object, ...] = (),
    ) -> "asyncio.Task[tuple[list[Row], bytes]]":
        """Positions are (partition, offset, last epoch); index and partition are the same."""
        header: dict[str, object] = {
            "s": self.session,
            "full": full,
            "be": broker_epoch,
            "p": [[p, TOPIC_ID, p, leader_epoch, offset, last] for p, offset, last in positions],
            "f": list(forget),
            "w": wait_ms,
            "m": max_bytes,
        }
        if bad:
            header["bad"] = list(bad)

        async def ask() -> tuple[list[Row], bytes]:
            reply = self.server.on_fetch(FOLLOWER, header, b"")
            answer, chunks = reply if isinstance(reply, tuple) else await reply
            body = b"".join(chunks)
            return parse_rows(travelled(answer)["r"], len(body)), body

        return asyncio.get_running_loop().create_task(ask())

    async def ask(self, *positions: tuple[int, int, int], **options: object) -> list[Row]:
        rows, _ = await self.request(*positions, **options)  # type: ignore[arg-type]
        return rows

    def write(self, *values: str, partition: int = 0) -> None:
        self.benches[partition].send(batch(*values), Acks.NONE)


class TestSessions:
    @virtual
    async def test_first_answer_has_the_records_and_both_offsets(self) -> None:
        served = Served()
        served.write("a", "b")
        await settle()
        rows, body = await served.request((0, 0, -1), full=True)
        assert rows == [Row(0, FetchCode.OK, 0, 0, len(body))]
        assert values_of(body) == ["a", "b"]

    @virtual
    async def test_only_what_changed_is_answered(self) -> None:
        served = Served(3)
        await served.ask((0, 0, -1), (1, 0, -1), (2, 0, -1), full=True)
        served.write("a", partition=1)
        await settle()
        assert [row.index for row in await served.ask()] == [1]
        assert await served.ask() == []

    @virtual
    async def test_a_position_is_sent_data_once(self) -> None:
        served = Served()
        await served.ask((0, 0, -1), full=True)
        served.write("a")
        await settle()
        assert (await served.ask())[0].size > 0
        served.write("b")
        await settle()
        assert await served.ask() == [], "the follower has not told that it has the first"
        assert [row.size > 0 for row in await served.ask((0, 1, 5))] == [True]

    @virtual
    async def test_an_unknown_session_is_told_so(self) -> None:
        served = Served()
        assert [row.code for row in await served.ask()] == [FetchCode.UNKNOWN_SESSION]
        await served.ask((0, 0, -1), full=True)
        served.session = 2
        assert [row.code for row in await served.ask()] == [FetchCode.UNKNOWN_SESSION]

    @virtual
    async def test_a_new_session_replaces_the_one_before(self) -> None:
        served = Served()
        await served.ask((0, 0, -1), full=True)
        parked = served.request(wait_ms=60_000)
        await settle()
        served.session = 2
        await served.ask((0, 0, -1), full=True)
        await settle()
        assert parked.done()
        assert len(served.bench.runner.watchers) == 1

    @virtual
    async def test_what_is_forgotten_is_not_watched_any_more(self) -> None:
        served = Served()
        await served.ask((0, 0, -1), full=True)
        await served.ask(forget=(0, 99))
        assert not served.bench.runner.watchers
        served.write("a")
        await settle()
        assert await served.ask() == []

    @virtual
    async def test_what_does_not_fit_comes_with_the_next_answer(self) -> None:
        served = Served(2)
        for partition in range(2):
            served.write("x" * 500, partition=partition)
        await settle()
        first = await served.ask((0, 0, -1), (1, 0, -1), full=True, max_bytes=300)
        assert [row.index for row in first] == [0]
        assert [row.index for row in await served.ask(max_bytes=300)] == [1]

    @virtual
    async def test_a_request_of_the_wrong_shape_is_refused(self) -> None:
        served = Served()
        with pytest.raises(MalformedRequestError):
            served.server.on_fetch(FOLLOWER, {"s": 1}, b"")
        header: dict[str, object] = {
            "s": 1, "full": True, "be": 20, "p": [], "f": [], "w": 0, "m": 1, "bad": 0,
        }  # fmt: skip
        with pytest.raises(MalformedRequestError):
            served.server.on_fetch(FOLLOWER, header, b"")
        del header["bad"]
        header["p"] = [[0, "t"]]
        with pytest.raises(CorruptLogError):
            served.server.on_fetch(FOLLOWER, header, b"")


class TestWaiting:
    @virtual
    async def test_an_append_completes_the_waiting_fetch_before_our_own_sync(self) -> None:
        served = Served()
        await served.ask((0, 0, -1), full=True)
        served.bench.pool.hold()
        parked = served.request(wait_ms=60_000)
        await settle()
        served.write("a")
        await settle()
        assert parked.done()
        assert served.bench.log.flushing.synced_end == 0
        served.bench.pool.release()

    @virtual
    async def test_an_empty_answer_after_the_longest_wait(self) -> None:
        served = Served()
        await served.ask((0, 0, -1), full=True)
        parked = served.request(wait_ms=500)
        await after(499)
        assert not parked.done()
        await after(2)
        assert parked.result() == ([], b"")

    @virtual
    async def test_the_follower_itself_may_end_the_wait(self) -> None:
        served = Served()
        await served.ask((0, 0, -1), full=True)
        parked = served.request(wait_ms=60_000)
        await settle()
        served.server.on_wake(FOLLOWER, {}, b"")
        await settle()
        assert parked.done()
        served.server.on_wake(9, {}, b"")

    @virtual
    async def test_the_later_of_two_waiting_fetches_is_the_one_that_is_woken(self) -> None:
        served = Served()
        await served.ask((0, 0, -1), full=True)
        given_up = served.request(wait_ms=60_000)
        await settle()
        parked = served.request(wait_ms=60_000)
        await settle()
        assert (given_up.done(), parked.done()) == (True, False)
        served.write("a")
        await settle()
        assert parked.done()

    @virtual
    async def test_news_of_the_high_watermark_alone_waits_a_little(self) -> None:
        served = Served()
        served.write("a")
        await settle()
        await served.ask((0, 0, -1), full=True)
        # This fetch moves it, and may wait with it as well.
        parked = served.request((0, 1, 5), wait_ms=60_000)
        await settle()
        assert not parked.done()
        await after(6)
        assert [row.high_watermark for row in parked.result()[0]] == [1]
        served.write("b")
        await settle()
        assert (await served.ask())[0].size
        parked = served.request(wait_ms=60_000)
        await settle()
        served.bench.ack(2)
        await settle()
        assert not parked.done()
        await after(6)
        assert [row.high_watermark for row in parked.result()[0]] == [2]

    @virtual
    async def test_a_high_watermark_travels_with_data_and_then_wakes_nobody(self) -> None:
        served = Served()
        served.write("a")
        await settle()
        await served.ask((0, 0, -1), full=True)
        parked = served.request((0, 1, 5), wait_ms=60_000)
        await after(4)
        served.write("b")
        await settle()
        assert [(row.high_watermark, row.size > 0) for row in parked.result()[0]] == [(1, True)]
        parked = served.request(wait_ms=60_000)
        await after(100)
        assert not parked.done()

    @virtual
    async def test_a_high_watermark_waits_its_own_time(self) -> None:
        served = Served()
        served.write("a")
        await settle()
        await served.ask((0, 0, -1), full=True)
        parked = served.request((0, 1, 5), wait_ms=60_000)
        await after(4)
        served.write("b")
        await settle()
        assert parked.done()
        parked = served.request((0, 2, 5), wait_ms=60_000)
        await after(4)
        assert not parked.done(), "the timer of the one before does not count"
        await after(2)
        assert [row.high_watermark for row in parked.result()[0]] == [2]

    @virtual
    async def test_a_new_session_hears_of_the_high_watermark_at_once(self) -> None:
        served = Served(isr=(1,))
        served.write("a")
        await settle()
        parked = served.request((0, 1, 5), full=True, wait_ms=60_000)
        await settle()
        assert [row.high_watermark for row in parked.result()[0]] == [1]

    @virtual
    async def test_a_high_watermark_goes_along_with_another_partitions_data(self) -> None:
        served = Served(2)
        served.write("a")
        await settle()
        await served.ask((0, 0, -1), (1, 0, -1), full=True)
        served.write("b", partition=1)
        parked = served.request((0, 1, 5), wait_ms=60_000)
        await settle()
        rows, _ = parked.result()
        assert {row.index: (row.high_watermark, row.size > 0) for row in rows} == {
            0: (1, False),
            1: (0, True),
        }

    @virtual
    async def test_retention_is_told_also_when_nothing_is_written(self) -> None:
        served = Served(isr=(1,))
        served.write("a")
        await settle()
        await served.ask((0, 0, -1), full=True)
        await served.ask((0, 1, 5))
        parked = served.request(wait_ms=60_000)
        served.bench.log.config = served.bench.log.config.__class__(retention_ms=1)
        await after(10)
        served.bench.runner.upkeep.maybe_apply_retention()
        await after(10)
        assert [row.log_start for row in parked.result()[0]] == [1]


class TestVerdicts:
    @virtual
    async def test_a_position_that_is_not_on_our_log_gets_no_high_watermark(self) -> None:
        served = Served(isr=(1,))
        served.write("a", "b")
        await settle()
        rows = await served.ask((0, 3, 4), full=True)
        assert [(row.code, row.high_watermark) for row in rows] == [(FetchCode.DIVERGING, -1)]

    @virtual
    async def test_no_high_watermark_for_a_position_until_it_was_accepted(self) -> None:
        # The follower would take records of its own, which parted from ours, for committed ones.
        served = Served(isr=(1,))
        served.write("a", "b")
        await settle()
        await served.ask((0, 3, 4), full=True)
        served.write("c")
        await after(10)
        assert await served.ask() == []
        served.brokers = {**served.brokers, 2: leaders.broker(2, epoch=21)}
        rows = await served.ask((0, 2, 5), full=True)
        assert [row.code for row in rows] == [FetchCode.STALE_BROKER_EPOCH]
        served.write("d")
        await after(10)
        assert await served.ask() == []

    @virtual
    @pytest.mark.parametrize(
        ("leader_epoch", "code"),
        [(4, FetchCode.STALE_LEADER_EPOCH), (6, FetchCode.UNKNOWN_LEADER_EPOCH)],
    )
    async def test_another_leader_epoch_is_refused(self, leader_epoch: int, code: object) -> None:
        served = Served()
        rows = await served.ask((0, 0, -1), full=True, leader_epoch=leader_epoch)
        assert [row.code for row in rows] == [code]

    @virtual
    async def test_below_the_log_start_comes_with_the_writers_state(self) -> None:
        served = Served(isr=(1,))
        served.write("a", "b")
        await settle()
        served.bench.log.start.advance(2)
        rows, body = await served.request((0, 1, 5), full=True)
        assert rows == [Row(0, FetchCode.BELOW_LOG_START, size=len(body), a=2)]
        assert body == served.bench.log.producer_snapshot(served.bench.log.log_end_offset)

    @virtual
    async def test_snapshots_of_many_partitions_do_not_overflow_one_answer(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        served = Served(3, isr=(1,))
        for partition, bench in enumerate(served.benches):
            served.write("a", "b", partition=partition)
            await settle()
            bench.log.start.advance(2)
        big = b"s" * (SNAPSHOT_BYTES_MAX - 1)
        monkeypatch.setattr(type(served.bench.log), "producer_snapshot", lambda *_: big)
        rows, body = await served.request((0, 1, 5), (1, 1, 5), (2, 1, 5), full=True)
        assert len(body) == len(big)
        retried = [FetchCode.NOT_LEADER] * 2
        assert [row.code for row in rows] == [FetchCode.BELOW_LOG_START, *retried]

    @virtual
    async def test_a_partition_that_is_not_here_is_refused_alone(self) -> None:
        served = Served()
        rows = await served.ask((0, 0, -1), (7, 0, -1), full=True)
        assert {row.index: row.code for row in rows} == {
            0: FetchCode.OK,
            7: FetchCode.NOT_LEADER,
        }

    @virtual
    async def test_a_deposed_leader_ends_the_wait_and_says_so_once(self) -> None:
        served = Served()
        await served.ask((0, 0, -1), full=True)
        parked = served.request(wait_ms=60_000)
        await settle()
        served.bench.follow(2)
        await settle()
        assert [row.code for row in parked.result()[0]] == [FetchCode.NOT_LEADER]
        assert await served.ask() == []

    @virtual
    async def test_a_partition_that_cannot_be_read_does_not_hold_up_the_others(self) -> None:
        served = Served(2)
        for partition in range(2):
            served.write("a", partition=partition)
        await settle()
        served.write("b")  # what was appended last is in memory
        await settle()
        path = next(p for p in served.bench.files.paths() if p.endswith(".log"))
        served.bench.files.evict(path)
        served.bench.files.fail_next_read(path)
        rows, body = await served.request((0, 0, -1), (1, 0, -1), full=True)
        assert {row.index: row.code for row in rows} == {
            0: FetchCode.NOT_LEADER,
            1: FetchCode.OK,
        }
        assert values_of(body) == ["a"]
        assert served.bench.doubts == [0], "the disk is looked at for more"

    @virtual
    async def test_what_cannot_be_read_is_logged_once_for_each_position(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The follower asks for it forty times a second."""
        served = Served()
        for value in ("a", "b", "c"):
            served.write(value)
            await settle()
        path = next(p for p in served.bench.files.paths() if p.endswith(".log"))
        for count, offset in enumerate([0, 0, 0, 1, 1], 1):
            served.bench.files.evict(path)
            served.bench.files.fail_next_read(path)
            rows = await served.ask((0, offset, 5 if offset else -1), full=count == 1)
            assert [row.code for row in rows] == [FetchCode.NOT_LEADER]
        assert caplog.text.count("read for a follower") == 2

    @virtual
    async def test_what_followers_refuse_as_damaged_is_doubted_where_they_stand(self) -> None:
        served = Served(3)
        for partition in range(3):
            served.write("a", partition=partition)
            served.write("b", partition=partition)
        await settle()
        await served.ask((0, 1, 5), (1, 1, 4), full=True)
        await served.ask(bad=(0, 1, 2, "0", [0]))
        doubts = [bench.doubts for bench in served.benches]
        assert doubts == [[1], [], []], "only of who follows us here, on a log that is ours"

    @virtual
    async def test_what_is_in_memory_is_answered_without_a_task(self) -> None:
        served = Served()
        served.write("a")
        await settle()
        header: dict[str, object] = {
            "s": 1, "full": True, "be": 20, "p": [[0, TOPIC_ID, 0, 5, 0, -1]], "f": [], "w": 500,
            "m": 1 << 20,
        }  # fmt: skip
        tasks = asyncio.all_tasks()
        reply = served.server.on_fetch(FOLLOWER, header, b"")
        assert isinstance(reply, Pending)
        await asyncio.sleep(0)
        assert reply.done(), "in the next turn"
        assert asyncio.all_tasks() == tasks
        assert values_of(b"".join(reply.result()[1])) == ["a"]

    @virtual
    async def test_an_acknowledgement_counts_before_anything_else_is_done_for_its_fetch(
        self,
    ) -> None:
        served = Served()
        await served.ask((0, 0, -1), full=True)
        served.write("a")
        await settle()
        await served.ask()
        header: dict[str, object] = {
            "s": 1, "full": False, "be": 20, "p": [[0, TOPIC_ID, 0, 5, 1, 5]], "f": [], "w": 500,
            "m": 1 << 20,
        }  # fmt: skip
        reply = served.server.on_fetch(FOLLOWER, header, b"")
        assert served.bench.runner.high_watermark == 1
        assert isinstance(reply, Pending)
        assert not reply.done()

    @virtual
    async def test_a_wake_that_comes_right_behind_its_fetch_is_not_lost(self) -> None:
        served = Served()
        await served.ask((0, 0, -1), full=True)
        fetch = served.request(wait_ms=60_000)
        await asyncio.sleep(0)
        served.server.on_wake(FOLLOWER, {}, b"")
        await settle()
        assert fetch.done()

    @virtual
    async def test_a_wake_that_comes_while_the_disk_is_read_is_not_lost(self) -> None:
        served = Served()
        served.write("a")
        await settle()
        for path in served.bench.files.paths():
            served.bench.files.evict(path)
        reading = asyncio.get_running_loop().create_future()

        async def read(*_: object, **named: object) -> bytes:
            await reading
            return b""

        served.bench.runner.read = read  # type: ignore[method-assign,assignment]
        await served.ask((0, 1, 5), full=True)
        fetch = served.request((0, 0, -1), wait_ms=60_000)
        served.bench.runner.read_cached = lambda *_, **named: None  # type: ignore[method-assign]
        await settle()
        served.server.on_wake(FOLLOWER, {}, b"")
        reading.set_result(None)
        await settle()
        assert fetch.done()

    @virtual
    async def test_what_is_on_the_disk_alone_comes_behind_the_rest(self) -> None:
        served = Served(2)
        for partition, value in enumerate("ab"):
            served.write(value, partition=partition)
        await settle()
        served.write("c")  # what was appended last is in memory
        await settle()
        files = served.bench.files
        files.evict(next(p for p in files.paths() if p.endswith(".log")))
        rows, body = await served.request((0, 0, -1), (1, 0, -1), full=True, wait_ms=500)
        assert [(row.index, row.code) for row in rows] == [(1, FetchCode.OK), (0, FetchCode.OK)]
        assert values_of(body) == ["b", "a", "c"]
        assert all(row.size for row in rows)

    @virtual
    async def test_a_large_batch_is_in_memory_until_it_is_committed(self) -> None:
        served = Served()
        bench = served.bench
        await served.ask((0, 0, -1), full=True)
        value = "x" * 50_000
        served.write(value)
        served.write("behind")
        await settle()
        for path in bench.files.paths():
            bench.files.evict(path)
        rows, body = await served.request()
        assert values_of(body)[0] == value
        assert body[: rows[0].size] == bench.log.read_span(0, max_bytes=rows[0].size)
        for path in bench.files.paths():
            bench.files.evict(path)
        assert bench.log.read_uncommitted(0, max_bytes=1 << 20, end_offset=1)
        await served.ask((0, 1, 5))
        assert bench.runner.high_watermark == 1
        assert not bench.log.read_uncommitted(0, max_bytes=1 << 20, end_offset=1)

    @virtual
    async def test_who_leads_no_more_keeps_nothing_in_memory(self) -> None:
        served = Served()
        served.write("x" * 50_000)
        await settle()
        log = served.bench.log
        assert log.read_uncommitted(0, max_bytes=1 << 20, end_offset=1)
        served.bench.follow(2)
        assert not log.read_uncommitted(0, max_bytes=1 << 20, end_offset=1)

    @virtual
    async def test_what_a_follower_refuses_is_read_from_the_disk_next(self) -> None:
        served = Served()
        await served.ask((0, 0, -1), full=True)
        served.write("x" * 50_000)
        await settle()
        await served.ask()
        assert served.bench.log.read_uncommitted(0, max_bytes=1 << 20, end_offset=1)
        await served.ask((0, 0, -1), bad=(0,))
        assert not served.bench.log.read_uncommitted(0, max_bytes=1 << 20, end_offset=1)

    @virtual
    async def test_a_fetch_that_was_woken_reads_from_the_disk_too(self) -> None:
        served = Served()
        await served.ask((0, 0, -1), full=True)
        parked = served.request(wait_ms=60_000)
        await settle()
        served.write("a")
        files = served.bench.files
        files.evict(next(p for p in files.paths() if p.endswith(".log")))
        rows, body = await parked
        assert [row.code for row in rows] == [FetchCode.OK]
        assert values_of(body) == ["a"]

    @virtual
    async def test_a_follower_that_is_gone_is_not_answered(self) -> None:
        served = Served()
        await served.ask((0, 0, -1), full=True)
        parked = served.request(wait_ms=60_000)
        await settle()
        parked.cancel()
        served.write("a")
        await settle()
        assert parked.cancelled()

    @virtual
    async def test_closing_forgets_every_watcher(self) -> None:
        served = Served(2)
        await served.ask((0, 0, -1), (1, 0, -1), full=True)
        served.server.close()
        assert not any(bench.runner.watchers for bench in served.benches)


class TestCatchingUp:
    @virtual
    async def test_what_writers_wait_for_goes_first_and_the_rest_takes_little_room(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("node.replication.catch_up.CATCH_UP_BYTES_MAX", 2000)
        served = Served(count=2)
        served.benches[0].lead((1,))
        for value in ("a", "b", "c", "d"):
            served.write(value * 900, partition=0)
        served.write("new", partition=1)
        await settle()
        rows, body = await served.request((0, 0, -1), (1, 0, -1), full=True)
        assert [row.index for row in rows] == [1, 0]
        late = rows[1]
        assert 0 < late.size <= 2000 < served.benches[0].runner.log.size_bytes
        assert len(body) == rows[0].size + late.size
