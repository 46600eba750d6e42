"""A compacted log that is written while it is compacted: the last value of each key survives any crash."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from milena.model.batch.decode import records_in
from milena.model.batch.header import IdempotencyExtension, ProducerStamp
from milena.model.types import ReplicaHealth
from tests.crash.log_scenarios import verdict_of
from tests.crash.search import Promise, Scenario, Verdict
from tests.support.disk.compacted_log import (
    COMPACTED,
    Pair,
    append,
    compact,
    finish,
    keyed_batch,
    records_of,
    roll,
    values_of,
)
from tests.support.disk.log_model import NOW_MS, open_log
from tests.support.disk.memory_files import MemoryFiles

Announce = Callable[[Promise], None]
Written = tuple[tuple[int, Pair], ...]

LATER_MS = NOW_MS + 10_000
"""When tombstones may go."""


@dataclass(frozen=True, slots=True)
class UpdatesPromise:
    """Every record that was ever written is one of ``written``, and what counts of them below ``durable_end`` is there.

    Attributes:
        written: offset, key and value, in order.
        durable_end: what was synced.
        log_end: what was written, or is being written.
        written_end: what was surely written: only a power cut takes it.
        log_start: the first readable offset.
    """

    written: Written = ()
    durable_end: int = 0
    log_end: int = 0
    written_end: int = 0
    log_start: int = 0
    is_quiet: bool = True

    @property
    def key(self) -> object:
        return self

    def recover(self, files: MemoryFiles) -> Verdict:
        return verdict_of(open_log(files, config=COMPACTED, is_listed=self.log_end > 0))

    def judge(self, verdict: Verdict) -> None:
        self._judge(verdict, self.durable_end)
        assert verdict.is_trusted or not self.is_quiet, "nothing was unsynced, yet it is suspect"
        assert not (verdict.has_cut and verdict.is_trusted), "trusted, though something was cut"

    def judge_killed(self, verdict: Verdict) -> None:
        self._judge(verdict, self.written_end)
        assert verdict.is_trusted, "only the process died, yet the replica is suspect"

    def _judge(self, verdict: Verdict, end_least: int) -> None:
        start, end, batches, *_ = verdict.state
        assert start == self.log_start
        assert end_least <= end <= self.log_end, f"it ends at {end}, {end_least} was synced"
        found = {
            offset: (key, value)
            for batch in batches
            for offset, _, key, value, _ in records_in(batch)
        }
        known = dict(self.written)
        assert all(known.get(offset) == pair for offset, pair in found.items()), "another record"
        wanted = _values(pair for offset, pair in self.written if start <= offset < end)
        seen = _values(pair for offset, pair in sorted(found.items()) if offset >= start)
        assert seen == wanted, f"a reader finds {seen}, and was to find {wanted}"

    def live_on(self, files: MemoryFiles) -> None:
        log = open_log(files, config=COMPACTED)
        if log.health is not ReplicaHealth.SOUND:
            log.cutting.mark_sound()
        wanted = values_of(log)
        epoch = log.state.epochs.last_epoch + 1
        append(log, keyed_batch([(b"alive", b"yes")]), epoch=epoch)
        roll(log)
        compact(log)
        files.crash()
        log = open_log(files, config=COMPACTED)
        assert log.health is ReplicaHealth.SOUND, log.recovery
        found = values_of(log)
        assert found == {**wanted, b"alive": b"yes"}, f"compacted again, a reader finds {found}"


def _values(pairs: object) -> dict[bytes | None, bytes]:
    values: dict[bytes | None, bytes] = {}
    for key, value in pairs:
        values.pop(key, None)
        if value is not None:
            values[key] = value
    return dict(sorted(values.items()))


class Compacting:
    """The log, and what it promises as it goes."""

    def __init__(self, files: MemoryFiles, announce: Announce) -> None:
        self._announce = announce
        self._written: list[tuple[int, Pair]] = []
        self._rng = Random(5)
        self._durable_end = 0
        self.say(is_quiet=False)
        self.log = open_log(files, config=COMPACTED, is_listed=False)

    def say(self, *, is_quiet: bool, written_end: int | None = None) -> None:
        end = self._written[-1][0] + 1 if self._written else 0
        self._announce(
            UpdatesPromise(
                written=tuple(self._written),
                durable_end=self._durable_end,
                log_end=end,
                written_end=end if written_end is None else written_end,
                is_quiet=is_quiet,
            )
        )

    def update(self, rounds: int, *, epoch: int = 0) -> None:
        """Few keys, often; some are deleted, some updates are idempotent."""
        for number in range(rounds):
            pairs: list[Pair] = [
                (
                    b"key-%d" % self._rng.randint(0, 4),
                    None if self._rng.random() < 0.25 else self._rng.randbytes(150).hex().encode(),
                )
                for _ in range(self._rng.randint(1, 3))
            ]
            offset = self.log.log_end_offset
            producer = ProducerStamp(epoch, 0, self._sequence(epoch)) if number % 2 else None
            key = IdempotencyExtension(bytes([number]) * 16, b"b" * 8, 3) if number % 3 else None
            batch = keyed_batch(pairs, producer=producer, key=key)
            self._written += [(offset + at, pair) for at, pair in enumerate(pairs)]
            # The promise to hold either way: what is being written may be there, in part.
            self.say(is_quiet=False, written_end=offset)
            self.log.append_as_leader([batch], leader_epoch=epoch, now_ms=NOW_MS)
            self.say(is_quiet=False)
        self.log.flushing.sync_all()
        self._durable_end = self.log.log_end_offset
        self.say(is_quiet=True)
        self.log.checkpointing.run(self._durable_end)

    def _sequence(self, producer_id: int) -> int:
        last = self.log.writers.producers.last_sequence(producer_id)
        return 0 if last is None else last + 1

    def seal(self) -> None:
        """Close the active segment, so that it may be compacted."""
        roll(self.log)

    def compact(self, *, now_ms: int = NOW_MS) -> None:
        """Run a compaction to its end."""
        assert compact(self.log, now_ms=now_ms)
        assert records_of(self.log)


def updates_compacted(node: Compacting) -> None:
    """Several segments become few, twice; tombstones go in the second round."""
    node.update(8)
    node.seal()
    node.compact()
    node.update(6, epoch=1)
    node.seal()
    node.compact(now_ms=LATER_MS)


def updates_between_slices(node: Compacting) -> None:
    """Appends, syncs and rolls between the slices of a compaction."""
    node.update(10)
    node.seal()
    end = node.log.log_end_offset
    run = node.log.compaction.begin(NOW_MS, end, tombstone_end=end)
    assert run is not None
    for epoch in (1, 2):
        if not run.is_done:
            run.step()
            node.log.compaction.note(run)
        node.update(3, epoch=epoch)
    finish(node.log, run)
    node.seal()
    node.compact(now_ms=LATER_MS)


def _scenario(steps: Callable[[Compacting], None]) -> Scenario:
    def run(files: MemoryFiles, announce: Announce) -> None:
        steps(Compacting(files, announce))

    return Scenario(steps.__name__.replace("_", "-"), run)


UPDATES_SCENARIOS = (_scenario(updates_compacted), _scenario(updates_between_slices))
