"""Compaction of a log, cut short: whatever is there afterwards is a log that stands for the same values."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b

from milena.model.types import ReplicaHealth
from storage.log.partition_log import PartitionLog
from tests.crash.search import Promise, Scenario, Verdict
from tests.support.disk.compacted_log import (
    COMPACTED,
    Pair,
    append,
    compact,
    filled_log,
    keyed_batch,
    records_of,
    roll,
    values_of,
)
from tests.support.disk.log_model import NOW_MS, open_log
from tests.support.disk.memory_files import MemoryFiles

SMALL_SEGMENTS = replace(COMPACTED, segment_bytes=900)

Announce = Callable[[Promise], None]
Values = dict[bytes | None, bytes]


def writers_of(log: PartitionLog) -> str:
    """What the log remembers of its writers."""
    writers = log.state.writers.freeze(log.log_end_offset)
    return blake2b(repr((writers.producers, writers.idempotency)).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedPromise:
    """Nothing is lost, and nothing is there that was not there before.

    ``before``: the records at the beginning, by offset. ``wanted``: the last value of each key. ``writers``: what is
    remembered of writers.
    """

    before: tuple[tuple[int, Pair], ...]
    wanted: tuple[tuple[bytes | None, bytes], ...]
    end_offset: int
    epoch_ends: tuple[tuple[int, int], ...]
    writers: str

    @property
    def key(self) -> object:
        return (self.before, self.end_offset)

    def recover(self, files: MemoryFiles) -> Verdict:
        log = open_log(files, config=COMPACTED)
        assert log.health is ReplicaHealth.SOUND, log.recovery
        assert log.log_end_offset == self.end_offset
        assert tuple(log.state.epoch_end(epoch) for epoch in range(5)) == self.epoch_ends
        assert writers_of(log) == self.writers
        assert tuple(sorted(values_of(log).items(), key=str)) == self.wanted
        leftovers = [path for path in files.paths() if path.endswith((".cleaned", ".swap"))]
        assert not leftovers
        return Verdict(tuple(sorted(records_of(log).items())), has_cut=log.recovery.cut_bytes > 0)

    def judge(self, verdict: Verdict) -> None:
        assert not verdict.has_cut
        assert isinstance(verdict.state, tuple)
        assert set(verdict.state) <= set(self.before)

    def judge_killed(self, verdict: Verdict) -> None:
        self.judge(verdict)

    def live_on(self, files: MemoryFiles) -> None:
        log = open_log(files, config=COMPACTED)
        append(log, keyed_batch([(b"key-1", b"later")]), epoch=9)
        roll(log)
        assert compact(log, now_ms=NOW_MS + 5000)
        compact(log, now_ms=NOW_MS + 10_000)
        files.crash()
        log = open_log(files, config=COMPACTED)
        assert log.health is ReplicaHealth.SOUND, log.recovery
        found = values_of(log)
        assert found == {**dict(self.wanted), b"key-1": b"later"}
        assert len(records_of(log)) == len(found), "each key once, and no tombstone"


def promise_of(log: PartitionLog, wanted: Values) -> CompactedPromise:
    """What holds from now on, while the log is compacted."""
    return CompactedPromise(
        before=tuple(sorted(records_of(log).items())),
        wanted=tuple(sorted(wanted.items(), key=str)),
        end_offset=log.log_end_offset,
        epoch_ends=tuple(log.state.epoch_end(epoch) for epoch in range(5)),
        writers=writers_of(log),
    )


def compact_segments(files: MemoryFiles, announce: Announce) -> None:
    """Each segment on its own, then once more when the tombstones may go."""
    log, wanted = filled_log(files, batches=24, config=SMALL_SEGMENTS)
    announce(promise_of(log, wanted))
    assert compact(log)
    assert compact(log, now_ms=NOW_MS + 5000)


def compact_into_one(files: MemoryFiles, announce: Announce) -> None:
    """Several segments become one."""
    log, wanted = filled_log(files, batches=24, config=SMALL_SEGMENTS)
    assert compact(log)
    append(log, keyed_batch([(b"key-1", b"new")]), epoch=4)
    wanted[b"key-1"] = b"new"
    roll(log)
    log.config = COMPACTED
    announce(promise_of(log, wanted))
    assert compact(log)
    assert len(log.state.table.segments) == 2


COMPACTION_SCENARIOS = (
    Scenario("compact-segments", compact_segments),
    Scenario("compact-into-one", compact_into_one),
)
