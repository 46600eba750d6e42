"""Rules of one local replica that leads: writes that share a group, repeats, acknowledgements."""

import asyncio

import pytest

from milena.model.batch.encode import encode_batch
from milena.model.batch.header import (
    IdempotencyExtension,
    KeyPlace,
    ProducerStamp,
    TransactionExtension,
    decode_header,
)
from milena.model.columns import RecordColumns
from milena.model.errors import (
    DiskFailedError,
    DiskFullError,
    FateUnknownError,
    IdempotencyKeyReusedError,
    InvalidProducerError,
    MilenaError,
    NotEnoughReplicasError,
    NotLeaderError,
    RequestTooLargeError,
    TooManyRequestsError,
    TransactionInProgressError,
)
from milena.model.pending import Pending
from milena.model.requests import Acks, BatchReceipt
from raft_meta.machine.image import Ending
from storage.state.idempotency import IDEMPOTENCY_KEPT_MS, IdempotencyTable
from tests.support.clusters.runners import DIRECTORY, Bench, batch, leading, settings
from tests.support.time.virtual_time import LoopExecutor, after, settle, virtual

KEY = b"k" * 16


def shared(producer_id: int, *keys: bytes, is_alone: bool = False) -> bytes:
    """A batch of a transaction, with a record for each key."""
    return encode_batch(
        RecordColumns(None, None, None, [b"%d" % number for number in range(len(keys))], None),
        base_timestamp_ms=1,
        producer=ProducerStamp(producer_id, 0, -1),
        request_keys=[
            IdempotencyExtension(key, b"body-abc", 1, () if is_alone else (KeyPlace(0, at, 1),))
            for at, key in enumerate(keys)
        ],
        transaction=TransactionExtension(1, 1, 30_000),
    )


async def end(bench: Bench, producer_id: int, *, is_commit: bool) -> None:
    ending = Ending(end_offset=bench.log.log_end_offset) if is_commit else None
    bench.runner.append_marker((producer_id, 0), ending)
    await settle()


class Watcher:
    def __init__(self) -> None:
        self.log_ends: list[int] = []

    def on_news(self, runner: object) -> None:
        self.log_ends.append(runner.log.log_end_offset)  # type: ignore[attr-defined]


class NotingExecutor(LoopExecutor):
    """Notes ``sync`` for each job."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self._events = events

    def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        self._events.append("sync")
        return super().submit(fn, *args, **kwargs)


class TestGroupAppend:
    @virtual
    async def test_what_arrives_in_one_turn_is_one_write(self) -> None:
        bench = leading()
        writes = bench.files.operations["write"]
        tasks = [bench.send(batch(f"{i}")) for i in range(5)]
        await settle()
        assert [task.result().base_offset for task in tasks] == [0, 1, 2, 3, 4]
        assert bench.files.operations["write"] == writes + 1

    @virtual
    async def test_a_write_is_told_of_once_and_one_that_is_refused_is_not(self) -> None:
        bench = leading()
        tasks = [bench.send(batch(f"{i}")) for i in range(5)]
        await settle()
        assert bench.appends == 1
        bench.follow(2)
        tasks.append(bench.send(batch("late")))
        await settle()
        assert isinstance(tasks[-1].exception(), NotLeaderError)
        assert bench.appends == 1

    @virtual
    async def test_one_sync_covers_what_was_written_while_another_ran(self) -> None:
        bench = leading()
        bench.pool.hold()
        first = bench.send(batch("a"))
        await settle()
        others = [bench.send(batch(f"{i}")) for i in range(3)]
        await settle()
        assert not first.done()
        syncs = bench.files.operations["sync"]
        bench.pool.release()
        await settle()
        assert all(task.done() for task in (first, *others))
        assert bench.files.operations["sync"] == syncs + 2

    @virtual
    async def test_one_bad_batch_does_not_refuse_the_others_of_its_group(self) -> None:
        bench = leading(max_message_bytes="1024")
        tasks = [bench.send(batch(value)) for value in ("a", "x" * 2_000, "b")]
        await settle()
        assert tasks[0].result().base_offset == 0
        with pytest.raises(RequestTooLargeError):
            tasks[1].result()
        assert tasks[2].result().base_offset == 1
        assert bench.content() == ["a", "b"]

    @virtual
    async def test_a_cancelled_writer_that_was_not_appended_writes_nothing(self) -> None:
        bench = leading()
        data = batch("a")
        pending = bench.runner.append(data, decode_header(data), acks=Acks.ALL, timeout_ms=1_000)
        pending.cancel()
        await settle()
        assert bench.content() == []


class TestDuplicates:
    @virtual
    async def test_a_batch_sent_twice_in_one_turn_is_appended_once(self) -> None:
        bench = leading()
        data = batch("a", "b", producer=ProducerStamp(7, 0, 0))
        first, second = bench.send(data), bench.send(data)
        await settle()
        assert not first.result().is_duplicate
        assert second.result().is_duplicate
        assert (second.result().base_offset, second.result().last_offset) == (0, 1)
        assert bench.content() == ["a", "b"]

    @virtual
    async def test_a_batch_sent_again_later_gets_its_first_offsets(self) -> None:
        bench = leading()
        data = batch("a", producer=ProducerStamp(7, 0, 0))
        await bench.send(data)
        await bench.sent("between")
        receipt = await bench.send(data)
        assert receipt.is_duplicate
        assert receipt.base_offset == 0

    @virtual
    async def test_consecutive_sequences_of_one_turn_are_all_appended_in_order(self) -> None:
        bench = leading()
        tasks = [bench.send(batch(f"{i}", producer=ProducerStamp(7, 0, i))) for i in range(4)]
        await settle()
        assert [task.result().base_offset for task in tasks] == [0, 1, 2, 3]
        assert bench.content() == ["0", "1", "2", "3"]

    @virtual
    async def test_a_gap_in_the_sequences_is_refused(self) -> None:
        bench = leading()
        await bench.send(batch("a", producer=ProducerStamp(7, 0, 0)))
        with pytest.raises(InvalidProducerError):
            await bench.send(batch("c", producer=ProducerStamp(7, 0, 2)))

    @virtual
    async def test_a_duplicate_waits_for_the_high_watermark_as_the_original_does(self) -> None:
        bench = leading((1, 2))
        data = batch("a", key=KEY)
        first = bench.send(data, timeout_ms=60_000)
        await settle()
        second = bench.send(data, timeout_ms=60_000)
        await settle()
        assert not first.done()
        assert not second.done()
        bench.ack(2)
        await settle()
        assert first.result().base_offset == second.result().base_offset == 0
        assert second.result().is_duplicate

    @virtual
    async def test_a_key_with_another_body_is_refused_within_one_turn_too(self) -> None:
        bench = leading()
        first, second = bench.send(batch("a", key=KEY)), bench.send(batch("b", key=KEY))
        await settle()
        assert first.result().base_offset == 0
        with pytest.raises(IdempotencyKeyReusedError):
            second.result()

    @virtual
    async def test_keys_that_share_a_batch_are_written_together_or_not_at_all(self) -> None:
        bench = leading()
        keys = [bytes([number]) * 16 for number in range(4)]
        both = shared(1, keys[0], keys[1])
        first, again = bench.send(both), bench.send(both)
        await settle()
        assert (first.result().base_offset, first.result().last_offset) == (0, 1)
        # Sent again by its own transaction, which does not know whether it was written.
        assert again.result().is_duplicate
        assert (again.result().base_offset, again.result().last_offset) == (0, 1)
        # Of another one it is in the way of all, whichever of the keys it has in common.
        for pair in ((keys[2], keys[1]), (keys[0], keys[2])):
            with pytest.raises(TransactionInProgressError):
                await bench.send(shared(2, *pair))
        await end(bench, 1, is_commit=True)
        for pair in ((keys[2], keys[1]), (keys[0], keys[2])):
            with pytest.raises(IdempotencyKeyReusedError, match="shares no transaction"):
                await bench.send(shared(2, *pair))
        assert (await bench.send(shared(2, keys[2], keys[3]))).base_offset == 3
        assert bench.content() == ["0", "1", "0", "1"]

    @virtual
    async def test_one_that_repeats_a_key_alone_is_told_of_its_own_records(self) -> None:
        bench = leading()
        keys = [bytes([number]) * 16 for number in range(2)]
        await bench.send(shared(1, *keys))
        await end(bench, 1, is_commit=True)
        receipt = await bench.send(shared(2, keys[1], is_alone=True))
        assert receipt.is_duplicate
        assert (receipt.base_offset, receipt.last_offset) == (1, 1)

    @virtual
    async def test_keys_of_an_aborted_batch_are_free_again(self) -> None:
        bench = leading()
        keys = [bytes([number]) * 16 for number in range(2)]
        await bench.send(shared(1, *keys))
        await end(bench, 1, is_commit=False)
        assert (await bench.send(shared(2, *keys))).base_offset == 3

    @virtual
    async def test_batches_of_one_turn_that_have_a_key_in_common_are_judged_one_by_one(
        self,
    ) -> None:
        bench = leading()
        keys = [bytes([number]) * 16 for number in range(3)]
        first, other = bench.send(shared(1, *keys[:2])), bench.send(shared(2, keys[2], keys[1]))
        await settle()
        assert first.result().base_offset == 0
        with pytest.raises(TransactionInProgressError):
            other.result()

    @virtual
    async def test_all_keys_of_a_batch_need_room(self) -> None:
        bench = leading()
        bench.log.state.writers.idempotency = IdempotencyTable(keys_max=2)
        keys = [bytes([number]) * 16 for number in range(5)]
        with pytest.raises(TooManyRequestsError):
            await bench.send(shared(1, *keys[:3]))
        assert (await bench.send(shared(1, *keys[:2]))).base_offset == 0
        await after(IDEMPOTENCY_KEPT_MS)
        with pytest.raises(TooManyRequestsError):
            await bench.send(shared(2, *keys[2:]))
        assert (await bench.send(shared(2, *keys[2:4]))).base_offset == 2

    @virtual
    async def test_no_key_is_taken_that_would_push_out_one_of_the_last_minutes(self) -> None:
        bench = leading()
        bench.log.state.writers.idempotency = IdempotencyTable(keys_max=2)
        keys = [bytes([number]) * 16 for number in range(3)]
        writes = [bench.send(batch("a", key=key)) for key in keys]
        await settle()
        assert [write.result().base_offset for write in writes[:2]] == [0, 1]
        with pytest.raises(TooManyRequestsError):
            writes[2].result()
        # Repeats, and what has no key, are none of it.
        assert (await bench.send(batch("a", key=keys[0]))).is_duplicate
        assert (await bench.send(batch("b"))).base_offset == 2
        await after(IDEMPOTENCY_KEPT_MS)
        assert (await bench.send(batch("a", key=keys[2]))).base_offset == 3


class TestAcks:
    @virtual
    async def test_acks_all_is_answered_after_the_high_watermark_passed(self) -> None:
        bench = leading((1, 2))
        task = bench.send(batch("a"))
        await settle()
        assert bench.runner.high_watermark == 0
        assert not task.done()
        bench.ack(2)
        assert bench.runner.high_watermark == 1
        await settle()
        assert task.result().base_offset == 0

    @virtual
    async def test_acks_one_is_answered_after_our_own_sync(self) -> None:
        bench = leading((1, 2))
        bench.pool.hold()
        task = bench.send(batch("a"), Acks.LEADER)
        await settle()
        assert not task.done()
        bench.pool.release()
        await settle()
        assert task.result().base_offset == 0
        assert bench.runner.high_watermark == 0

    @virtual
    async def test_acks_none_is_answered_without_an_offset_before_the_sync(self) -> None:
        bench = leading((1, 2))
        bench.pool.hold()
        task = bench.send(batch("a"), Acks.NONE)
        await settle()
        assert task.result().base_offset is None
        bench.pool.release()

    @virtual
    async def test_relaxed_topic_answers_before_any_sync(self) -> None:
        bench = leading(flush_messages="1000")
        bench.pool.hold()
        assert (await bench.sent("a", acks=Acks.ALL)).base_offset == 0
        bench.pool.release()

    @virtual
    async def test_too_small_an_isr_refuses_before_the_append(self) -> None:
        bench = leading((1,), min_insync_replicas="2")
        with pytest.raises(NotEnoughReplicasError, match="nothing was written"):
            await bench.send(batch("a"))
        assert bench.content() == []
        assert (await bench.sent("b", acks=Acks.LEADER)).base_offset == 0

    @virtual
    async def test_no_commit_in_time_is_reported_as_unknown(self) -> None:
        bench = leading((1, 2))
        task = bench.send(batch("a"), timeout_ms=500)
        await after(501)
        with pytest.raises(FateUnknownError):
            task.result()
        assert bench.counts.fate_unknown == 1

    @virtual
    async def test_writers_that_went_away_are_forgotten(self) -> None:
        bench = leading((1, 2))
        tasks = [bench.send(batch("a"), acks, 60_000) for acks in (Acks.ALL, Acks.LEADER) * 50]
        bench.pool.hold()
        await settle()
        for task in tasks:
            task.cancel()
        await settle()
        assert len(bench.runner._acknowledgements) <= 2
        bench.pool.release()

    @virtual
    async def test_readers_that_went_away_are_forgotten(self) -> None:
        bench = leading()
        readers = [asyncio.ensure_future(bench.runner.wait_readable(0, 60_000)) for _ in range(100)]
        await settle()
        for reader in readers:
            reader.cancel()
        await settle()
        assert len(bench.runner._acknowledgements) <= 2

    @virtual
    async def test_followers_hear_of_a_write_before_our_own_sync_returns(self) -> None:
        bench = leading((1, 2))
        watcher = Watcher()
        bench.runner.watchers[watcher] = None
        bench.pool.hold()
        bench.send(batch("a"), Acks.NONE)
        await settle()
        assert watcher.log_ends == [1]
        assert bench.log.flushing.synced_end == 0
        bench.pool.release()

    @pytest.mark.parametrize(
        ("acks", "isr", "order"),
        [
            (Acks.ALL, (1, 2), ["sent", "sync"]),
            (Acks.NONE, (1, 2), ["sent", "sync"]),
            (Acks.LEADER, (1, 2), ["sync", "sent"]),
            (Acks.ALL, (1,), ["sync", "sent"]),
        ],
    )
    @virtual
    async def test_our_own_sync_starts_after_the_records_were_sent_unless_a_writer_waits_for_it(
        self, acks: Acks, isr: tuple[int, ...], order: list[str]
    ) -> None:
        events: list[str] = []
        bench = Bench(settings=settings(min_insync_replicas="1"), pool=NotingExecutor(events))
        bench.lead(isr)

        class Sender:
            """As a follower's session: it sends in the turn after that of the write."""

            has_sent = False

            def on_news(self, runner: object) -> None:
                if not self.has_sent:
                    self.has_sent = True
                    asyncio.get_running_loop().call_soon(events.append, "sent")

        bench.runner.watchers[Sender()] = None
        events.clear()
        bench.send(batch("a"), acks)
        await settle()
        assert events == order

    @virtual
    async def test_a_sync_that_waits_for_its_turn_includes_later_writes_and_does_not_start_twice(
        self,
    ) -> None:
        events: list[str] = []
        bench = Bench(settings=settings(min_insync_replicas="1"), pool=NotingExecutor(events))
        bench.lead((1, 2))
        for value in ("a", "b"):
            data = batch(value)
            bench.runner.append(
                data, decode_header(data), acks=Acks.ALL, timeout_ms=500, at_once=True
            )
        await settle()
        bench.ack(2)
        assert events == ["sync"]
        assert bench.log.flushing.synced_end == 2


class TestQuietSyncs:
    """The end of a leader's own sync need not wake the loop while its writers wait for followers, too."""

    @virtual
    async def test_its_end_is_taken_in_when_a_follower_has_the_record(self) -> None:
        bench = leading((1, 2))
        task = bench.send(batch("a"))
        await settle()
        assert bench.counts.syncs == 0, "nobody waits for its end alone"
        bench.ack(2)
        assert (bench.counts.syncs, bench.runner.high_watermark) == (1, 1)
        await settle()
        assert task.result().base_offset == 0

    @virtual
    async def test_its_end_wakes_the_loop_if_all_followers_were_quicker(self) -> None:
        bench = leading((1, 2))
        bench.pool.hold()
        task = bench.send(batch("a"))
        await settle()
        bench.ack(2)
        await settle()
        assert not task.done()
        bench.pool.release()
        await settle()
        assert task.result().base_offset == 0

    @virtual
    async def test_its_end_counts_once_the_other_members_of_the_isr_are_gone(self) -> None:
        for is_late in (False, True):
            bench = leading((1, 2))
            bench.pool.hold()
            task = bench.send(batch("a"))
            await settle()
            if not is_late:
                bench.pool.release()
                await settle()
            assert not task.done()
            bench.lead((1,), version=8)
            bench.pool.release()
            await settle()
            assert task.result().base_offset == 0

    @virtual
    async def test_a_writer_that_waits_for_it_alone_hears_of_its_end(self) -> None:
        bench = leading((1, 2))
        bench.pool.hold()
        bench.send(batch("a"))
        await settle()
        task = bench.send(batch("b"), Acks.LEADER)
        await settle()
        bench.pool.release()
        await settle()
        assert task.result().base_offset == 1

    @virtual
    async def test_a_duplicate_that_waits_for_it_alone_hears_of_its_end(self) -> None:
        bench = leading((1, 2))
        bench.pool.hold()
        data = batch("a", key=KEY)
        bench.send(data)
        await settle()
        task = bench.send(data, Acks.LEADER)
        await settle()
        assert not task.done()
        bench.pool.release()
        await settle()
        assert (task.result().base_offset, task.result().is_duplicate) == (0, True)

    @virtual
    async def test_a_duplicate_that_waits_before_it_begins_hears_of_its_end(self) -> None:
        bench = leading((1, 2))
        data = batch("a", key=KEY)
        header = decode_header(data)
        for acks in (Acks.ALL, Acks.LEADER):
            # Both in one turn of the loop. The sync begins in the next one.
            found = bench.runner.append(data, header, acks=acks, timeout_ms=500, at_once=True)
        await settle()
        assert (found.result().base_offset, found.result().is_duplicate) == (0, True)

    @virtual
    async def test_a_write_during_it_is_synced_as_soon_as_it_ends(self) -> None:
        bench = leading((1, 2))
        bench.pool.hold()
        bench.send(batch("a"))
        await settle()
        bench.send(batch("b"))
        await settle()
        bench.pool.release()
        await settle()
        assert bench.log.flushing.synced_end == 2

    @virtual
    async def test_without_any_event_the_next_tick_takes_its_end_in(self) -> None:
        bench = leading((1, 2))
        bench.send(batch("a"))
        await settle()
        assert not bench.runner.is_resting
        bench.runner.tick(bench.clock.now_ms(), bench.brokers)
        assert bench.log.flushing.synced_end == 1

    @virtual
    async def test_its_failure_stops_the_node_at_once(self) -> None:
        bench = leading((1, 2))
        bench.files.fail_next_sync(DIRECTORY)
        bench.send(batch("a"))
        await settle()
        assert [type(error) for error in bench.fatal] == [DiskFailedError]

    @virtual
    async def test_a_replica_that_is_closed_takes_its_end_in(self) -> None:
        bench = leading((1, 2))
        task = bench.send(batch("a"))
        await settle()
        await bench.runner.close(is_clean=False)
        assert bench.counts.syncs == 1
        with pytest.raises(FateUnknownError):
            await task


class TestAppendAtOnce:
    """``append`` of what has waited for others: the same promises, in this turn and without a task."""

    @staticmethod
    def begin(
        bench: Bench, value: str, acks: Acks = Acks.ALL, timeout_ms: int = 500
    ) -> list[BatchReceipt | MilenaError]:
        outcomes: list[BatchReceipt | MilenaError] = []
        data = batch(value)
        pending = bench.runner.append(
            data, decode_header(data), acks=acks, timeout_ms=timeout_ms, at_once=True
        )

        def on_done(done: Pending[BatchReceipt]) -> None:
            error = done.exception()
            assert error is None or isinstance(error, MilenaError)
            outcomes.append(done.result() if error is None else error)

        pending.add_done_callback(on_done)
        return outcomes

    @virtual
    async def test_all_in_sync_replicas_have_it_before_the_call_back(self) -> None:
        bench = leading((1, 2, 3))
        outcomes = self.begin(bench, "a")
        assert bench.content() == ["a"]
        await settle()
        bench.ack(2)
        assert outcomes == []
        bench.ack(3)
        assert [outcome.base_offset for outcome in outcomes] == [0]  # type: ignore[union-attr]
        await after(501)
        assert len(outcomes) == 1
        assert bench.counts.fate_unknown == 0

    @virtual
    async def test_our_own_sync_comes_before_it_too(self) -> None:
        bench = leading((1,))
        for acks in (Acks.ALL, Acks.LEADER):
            outcomes = self.begin(bench, "a", acks)
            assert outcomes == [], "not synced yet"
            await settle()
            assert len(outcomes) == 1

    @virtual
    async def test_it_goes_behind_what_was_queued_before(self) -> None:
        bench = leading((1,))
        queued = bench.runner.append(
            batch("a"), decode_header(batch("a")), acks=Acks.NONE, timeout_ms=1
        )
        self.begin(bench, "b")
        assert bench.content() == ["a", "b"]
        await queued

    @virtual
    async def test_no_commit_in_time_is_reported_as_unknown(self) -> None:
        bench = leading((1, 2))
        outcomes = self.begin(bench, "a")
        await after(501)
        assert [type(outcome) for outcome in outcomes] == [FateUnknownError]
        assert bench.counts.fate_unknown == 1
        bench.ack(2)
        assert len(outcomes) == 1

    @virtual
    async def test_each_waits_as_long_as_it_asked(self) -> None:
        bench = leading((1, 2))
        patient = self.begin(bench, "a", timeout_ms=900)
        hasty = self.begin(bench, "b", timeout_ms=100)
        late = self.begin(bench, "c", timeout_ms=400)
        await after(101)
        assert [len(outcomes) for outcomes in (patient, hasty, late)] == [0, 1, 0]
        await after(300)
        assert [len(outcomes) for outcomes in (patient, hasty, late)] == [0, 1, 1]
        bench.ack(2, 1)
        assert isinstance(patient[0], BatchReceipt)
        await after(600)
        assert [len(outcomes) for outcomes in (patient, hasty, late)] == [1, 1, 1]
        assert bench.counts.fate_unknown == 2

    @virtual
    async def test_a_cut_and_a_lost_lease_are_reported_as_unknown(self) -> None:
        bench = leading((1, 2))
        outcomes = self.begin(bench, "a")
        await settle()
        bench.runner.on_lease_lost()
        assert [type(outcome) for outcome in outcomes] == [FateUnknownError]

    @virtual
    async def test_what_is_known_to_be_refused_is_not_begun(self) -> None:
        bench = leading((1,), min_insync_replicas="2")
        assert not bench.runner.may_append(Acks.ALL)
        assert bench.runner.may_append(Acks.LEADER)
        assert [type(o) for o in self.begin(bench, "a")] == [NotEnoughReplicasError]
        bench.follow(2)
        assert not bench.runner.may_append(Acks.LEADER)
        assert [type(o) for o in self.begin(bench, "a")] == [NotLeaderError]
        assert bench.content() == []

    @virtual
    async def test_a_full_disk_refuses_it_and_keeps_nothing(self) -> None:
        bench = leading((1,))
        bench.files.capacity = bench.files.used_bytes()
        assert [type(o) for o in self.begin(bench, "a")] == [DiskFullError]
        assert bench.runner.is_disk_full
