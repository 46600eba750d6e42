"""What is done to one partition log, and what it has promised by then; see ``search``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from milena.model.batch.decode import check_batch
from milena.model.batch.header import IdempotencyExtension, ProducerStamp, decode_header
from milena.model.types import ReplicaHealth
from storage.log.partition_log import PartitionLog
from storage.segments.log_config import LogConfig
from tests.crash.search import Promise, Scenario, Verdict
from tests.support.disk.log_model import (
    NOW_MS,
    SMALL,
    Expected,
    LogModel,
    make_batch,
    open_log,
    read_all,
    stamped,
)
from tests.support.disk.memory_files import MemoryFiles

RELAXED = replace(SMALL, flush_messages=1000)

Announce = Callable[[Promise], None]


class Batches(tuple[bytes, ...]):
    """Stored batches, whose bytes no message of a failure should print."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"batches at {[decode_header(batch).base_offset for batch in self]}"


def verdict_of(log: PartitionLog) -> Verdict:
    """Everything that a user of the log sees."""
    assert log.health is not ReplicaHealth.DAMAGED, f"a crash is no damage: {log.recovery}"
    batches = read_all(log)
    offset = None
    for batch in batches:
        header = check_batch(batch)
        assert offset is None or header.base_offset == offset, "offsets are dense"
        offset = header.next_offset
    assert offset in (None, log.log_end_offset)
    writers = log.state.writers.freeze(log.log_end_offset)
    seen = blake2b(repr((writers.producers, writers.idempotency)).encode()).hexdigest()
    epochs = tuple(log.state.epoch_end(epoch) for epoch in range(log.state.epochs.last_epoch + 1))
    return Verdict(
        (
            log.log_start_offset,
            log.log_end_offset,
            Batches(batches),
            log.state.epochs.last_epoch,
            epochs,
            seen,
        ),
        is_trusted=log.health is ReplicaHealth.SOUND,
        has_cut=log.recovery.cut_bytes > 0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPromise:
    """One of ``candidates``, or a prefix of it that holds what was durable.

    Attributes:
        candidates: after and before the change that is under way.
        written_end: where the log ended, synced or not, whichever candidate it is.
        is_quiet: nothing is under way or unsynced: no crash can make the log suspect.
        is_listed: the replica is in the manifest.
        high_watermark: is on the disk; a log that ends below it must not be trusted.
        config: of the log.
    """

    candidates: tuple[Expected, ...]
    written_end: int
    is_quiet: bool
    is_listed: bool
    high_watermark: int
    config: LogConfig

    @property
    def key(self) -> object:
        return (self.candidates, self.is_quiet, self.is_listed, self.high_watermark)

    def open(self, files: MemoryFiles, *, is_listed: bool | None = None) -> PartitionLog:
        is_listed = self.is_listed if is_listed is None else is_listed
        return open_log(files, config=self.config, is_listed=is_listed)

    def recover(self, files: MemoryFiles) -> Verdict:
        return verdict_of(self.open(files))

    def judge(self, verdict: Verdict) -> None:
        self._judge(verdict, self.candidates)
        end = verdict.state[1]
        assert verdict.is_trusted or not self.is_quiet, "nothing was unsynced, yet it is suspect"
        assert not (verdict.has_cut and verdict.is_trusted), "trusted, though something was cut"
        assert end >= self.high_watermark or not verdict.is_trusted, (
            f"trusted, though it ends at {end}, below its high watermark {self.high_watermark}"
        )

    def judge_killed(self, verdict: Verdict) -> None:
        # The bytes are all there; only a change of several steps may have come half-way.
        ends = [min(candidate.log_end, self.written_end) for candidate in self.candidates]
        candidates = [replace(candidate, durable_end=min(ends)) for candidate in self.candidates]
        self._judge(verdict, candidates)
        assert verdict.is_trusted, "only the process died, yet the replica is suspect"

    def _judge(self, verdict: Verdict, candidates: Sequence[Expected]) -> None:
        start, end, batches, *_ = verdict.state
        fits = any(
            start == candidate.log_start
            and end >= candidate.durable_end
            and list(batches) == candidate.kept[: len(batches)]
            for candidate in candidates
        )
        found = [decode_header(batch).base_offset for batch in batches]
        assert fits, f"found {start} to {end} with batches at {found}, expected one of {candidates}"

    def live_on(self, files: MemoryFiles) -> None:
        log = self.open(files)
        if log.health is not ReplicaHealth.SOUND:
            log.cutting.mark_sound()
        before = read_all(log)
        end = log.log_end_offset
        batch = make_batch(2, value_bytes=7)
        epoch = log.state.epochs.last_epoch + 1
        log.append_as_leader([batch], leader_epoch=epoch, now_ms=NOW_MS + 10_000)
        log.flushing.sync_all()
        log.checkpointing.run(log.log_end_offset)
        added = stamped(batch, base_offset=end, leader_epoch=epoch, append_time_ms=NOW_MS + 10_000)
        files.crash()
        log = self.open(files, is_listed=True)
        assert log.health is ReplicaHealth.SOUND, log.recovery
        is_kept = read_all(log) == [*before, added]
        assert is_kept, "what was appended after recovery is not what is there"
        log.cutting.truncate_to(end)
        files.crash()
        log = self.open(files, is_listed=True)
        assert log.health is ReplicaHealth.SOUND, log.recovery
        is_back = read_all(log) == before and log.log_end_offset == end
        assert is_back, "cut back to where it was, it is not what it was"


class Announcing(LogModel):
    """The model, telling the search what each change promises before, while and after it runs."""

    def __init__(
        self, files: MemoryFiles, announce: Announce, *, config: LogConfig = SMALL
    ) -> None:
        self._announce = announce
        self._stored_high_watermark = 0
        self._is_listed = False
        empty = Expected()
        announce(self._promise((empty,), empty.log_end, is_quiet=False, config=config))
        super().__init__(config=config, files=files)
        self._is_listed = True
        self.announce()

    def announce(self) -> None:
        """Nothing is under way."""
        expected = self.expected
        is_quiet = expected.durable_end == expected.log_end
        self._announce(self._promise((expected,), expected.log_end, is_quiet=is_quiet))

    def change(self, planned: Expected, run: Callable[[], object]) -> None:
        before = self.expected
        durable_end = min(before.durable_end, planned.durable_end)
        candidates = (
            replace(planned, durable_end=durable_end),
            replace(before, durable_end=durable_end),
        )
        stored = self._stored_high_watermark
        self._stored_high_watermark = min(stored, planned.log_end)
        end = min(before.log_end, planned.log_end)
        self._announce(self._promise(candidates, end, is_quiet=False))
        super().change(planned, run)
        self._stored_high_watermark = self.log.replica.checkpoint.high_watermark
        self.announce()

    def _promise(
        self,
        candidates: tuple[Expected, ...],
        written_end: int,
        *,
        is_quiet: bool,
        config: LogConfig | None = None,
    ) -> LogPromise:
        return LogPromise(
            candidates=candidates,
            written_end=written_end,
            is_quiet=is_quiet,
            is_listed=self._is_listed,
            high_watermark=self._stored_high_watermark,
            config=config or self.config,
        )

    # What scenarios are made of.

    def write(self, *sizes: int, producer_id: int | None = 1, as_follower: bool = False) -> None:
        """Append batches of two records with values of these sizes, in one append."""
        batches = []
        sequence = 0 if producer_id is None else self.next_sequence(producer_id)
        for number, size in enumerate(sizes):
            producer = None
            if producer_id is not None:
                producer = ProducerStamp(producer_id, 0, sequence + 2 * number)
            key = IdempotencyExtension(bytes([size % 251]) * 16, bytes([number]) * 8, 6)
            batches.append(
                make_batch(
                    2,
                    value_bytes=size,
                    timestamp_ms=self.now_ms,
                    producer=producer,
                    key=key if size % 2 else None,
                )
            )
        self.append(batches, as_follower=as_follower)

    def note_synced(self) -> None:
        """A ticket was finished."""
        self.expected = replace(self.expected, durable_end=self.log.flushing.synced_end)
        self._stored_high_watermark = self.log.replica.checkpoint.high_watermark
        self.announce()

    def fill(self, rounds: int = 3) -> None:
        """Several synced segments, epochs and producers, and a checkpoint in the middle."""
        for number in range(rounds):
            self.write(300, 101, producer_id=1 + number % 2)
            self.write(400, 33, 500, producer_id=3)
            self.sync()
            if number == 1:
                self.checkpoint()
            self.leader_epoch += 1


def append(model: Announcing) -> None:
    """Single batches, groups, several appends under one sync, batches of many sectors."""
    model.write(10)
    model.sync()
    model.write(101, 30, 700)
    model.write(5, producer_id=2)
    model.leader_epoch += 2
    model.write(11, producer_id=None)
    model.sync()
    model.write(900, 51, as_follower=True)
    model.sync()


def roll(model: Announcing) -> None:
    """Segments that are rolled between appends, and several times in one."""
    model.write(900)
    model.write(301)
    model.sync()
    model.write(901)
    model.write(400, 401, 700, 900, 31)
    model.sync()
    model.write(900, 900, as_follower=True)
    model.sync()


def checkpoint(model: Announcing) -> None:
    """The recovery point moves within a segment and across segments; old snapshots go."""
    model.fill(2)
    model.checkpoint()
    model.write(900, 700)
    model.sync()
    model.checkpoint()
    model.write(20)
    model.sync()
    model.checkpoint()


def checkpoint_unsynced(model: Announcing) -> None:
    """A checkpoint of a log that was not synced, and appends while its ticket is under way."""
    model.write(600, 33)
    model.write(900)
    ticket = model.log.checkpointing.begin(0, is_forced=True)
    assert ticket is not None
    model.write(500, 700)
    ticket.run()
    model.log.checkpointing.finish(ticket)
    model.note_synced()
    model.sync()


def group_commit(model: Announcing) -> None:
    """Appends while a sync is under way, across a roll."""
    model.write(700)
    ticket = model.log.flushing.begin()
    assert ticket is not None
    model.write(900, 11)
    model.write(400)
    ticket.run()
    model.log.flushing.finish(ticket)
    model.note_synced()
    model.write(33)
    ticket = model.log.flushing.begin()
    assert ticket is not None
    ticket.run()
    model.log.flushing.finish(ticket)
    model.note_synced()


def truncate_within(model: Announcing) -> None:
    """Cut inside the last segment, and write other batches there."""
    model.write(300, 201, 150)
    model.sync()
    model.write(33, 77)
    model.truncate_to(4)
    model.leader_epoch += 1
    model.write(55, producer_id=2)
    model.sync()
    model.truncate_to(2)
    model.sync()
    model.leader_epoch += 1
    model.write(301, 200, 151, producer_id=3)
    model.sync()


def truncate_across(model: Announcing) -> None:
    """Cut several segments, epochs and a recovery point; twice; then write anew."""
    model.fill()
    model.truncate_to(9)
    model.leader_epoch += 1
    model.write(700, 501, 33)
    model.sync()
    model.checkpoint()
    model.write(900)
    model.truncate_to(3)
    model.sync()
    model.write(44)
    model.sync()


def truncate_unsynced(model: Announcing) -> None:
    """Cut what was never synced, with segments that were rolled in between."""
    model.write(800)
    model.sync()
    model.write(900, 901, 902)
    model.truncate_to(4)
    model.write(903)
    model.truncate_to(2)
    model.write(31, 33)
    model.sync()


def truncate_all(model: Announcing) -> None:
    """Cut the log down to nothing, and below its start."""
    model.fill(2)
    model.advance_log_start(5)
    model.truncate_to(5)
    model.write(100)
    model.sync()


def log_start(model: Announcing) -> None:
    """The log start moves within a segment, past segments, to the end."""
    model.fill()
    model.advance_log_start(3)
    model.advance_log_start(12)
    model.write(300)
    model.sync()
    model.advance_log_start(model.log.log_end_offset)
    model.write(33)
    model.sync()


def retention(model: Announcing) -> None:
    """Segments go by size and by age, sealed and unsealed ones."""
    model.fill()
    _retain(model, retention_bytes=2500)
    model.write(900, 900)
    model.sync()
    _retain(model, retention_bytes=1000)
    model.now_ms += 100_000
    _retain(model, retention_ms=50_000)
    model.write(44)
    model.sync()


def _retain(model: Announcing, **bounds: int) -> None:
    """As much as a log without crashes forgets: the steps are those of an advanced log start."""
    log = model.log
    log.config = replace(model.config, **bounds)
    ends = [segment.next_offset for segment in log.state.table.segments if segment.size_bytes]
    # Where it will start is read off a copy, whose retention does not touch the disk that is searched.
    copy = open_log(
        MemoryFiles.developed(model.files.photograph()), config=log.config, now_ms=model.now_ms
    )
    start = copy.start.apply_retention(model.now_ms, log.log_end_offset)
    assert start in ends, (start, ends)
    model.change(
        replace(model.expected, log_start=start),
        lambda: log.start.apply_retention(model.now_ms, log.log_end_offset),
    )


def restart(model: Announcing) -> None:
    """Drop everything and begin elsewhere, with another leader's writers."""
    model.fill(2)
    snapshot = model.log.producer_snapshot(model.log.log_end_offset)
    model.high_watermark = 40
    planned = Expected(log_start=40, log_end=40, durable_end=40)
    model.change(planned, lambda: model.log.cutting.restart_at(40, snapshot))
    model.is_state_exact = False
    model.write(300, as_follower=True)
    model.sync()
    model.restart_at(50)
    model.write(33)
    model.sync()


def straddling(model: Announcing) -> None:
    """An empty log that starts in the middle of the first batch that its leader sends."""
    model.write(100)
    model.sync()
    model.restart_at(11)
    model.leader_epoch += 1
    batch = stamped(
        make_batch(5, value_bytes=300),
        base_offset=9,
        leader_epoch=model.leader_epoch,
        append_time_ms=model.now_ms,
    )
    planned = Expected(batches=(batch,), log_start=11, log_end=14, durable_end=11)
    model.change(planned, lambda: model.log.append_as_follower(batch))
    model.sync()
    model.write(44, as_follower=True)
    model.sync()


def relaxed(model: Announcing) -> None:
    """A relaxed log acknowledges what is not synced: it may lose that, and then must say so."""
    model.write(300, 33)
    model.write(900)
    model.checkpoint_at_end()
    model.write(700, 100)
    model.checkpoint_at_end()
    model.sync()
    model.write(51)


class Relaxed(Announcing):
    """The high watermark of a relaxed log runs ahead of its synced end."""

    def checkpoint_at_end(self) -> None:
        """Store the log end as high watermark, though it is not durable."""
        log = self.log
        self.change(self.expected, lambda: log.checkpointing.run(log.log_end_offset))


def made_sound(model: Announcing) -> None:
    """A replica that lost its tail is restored and trusted again."""
    model.write(300, 200, 900)
    model.sync()
    log = model.log
    model._announce(SuspectPromise(inner=model._promise((model.expected,), 6, is_quiet=False)))
    active = log.state.table.active
    log.close(is_clean=False)
    # A tail that was torn by an earlier crash.
    model.files.overwrite(active.path(".log"), active.size_bytes, b"half a batch")
    model.files.kill()
    model.log = open_log(model.files)
    assert model.log.health is ReplicaHealth.SUSPECT
    model.log.cutting.mark_sound()
    model.announce()
    model.write(33)
    model.sync()


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectPromise:
    """A log that is suspect or, once ``mark_sound`` is through, sound; complete in any case."""

    inner: LogPromise

    @property
    def key(self) -> object:
        return ("suspect", self.inner.key)

    def recover(self, files: MemoryFiles) -> Verdict:
        return self.inner.recover(files)

    def judge(self, verdict: Verdict) -> None:
        self.inner.judge(verdict)

    def judge_killed(self, verdict: Verdict) -> None:
        self.inner.judge(verdict)

    def live_on(self, files: MemoryFiles) -> None:
        self.inner.live_on(files)


def _scenario(
    steps: Callable[[Announcing], None],
    *,
    model: type[Announcing] = Announcing,
    config: LogConfig = SMALL,
) -> Scenario:
    def run(files: MemoryFiles, announce: Announce) -> None:
        steps(model(files, announce, config=config))

    return Scenario(steps.__name__.replace("_", "-"), run)


LOG_SCENARIOS = (
    _scenario(append),
    _scenario(roll),
    _scenario(checkpoint),
    _scenario(checkpoint_unsynced),
    _scenario(group_commit),
    _scenario(truncate_within),
    _scenario(truncate_across),
    _scenario(truncate_unsynced),
    _scenario(truncate_all),
    _scenario(log_start),
    _scenario(retention),
    _scenario(restart),
    _scenario(straddling),
    _scenario(relaxed, model=Relaxed, config=RELAXED),
    _scenario(made_sound),
)
