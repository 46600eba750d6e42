"""A compacted log against a dict: whatever is appended, compacted, cut, crashed and opened again, in any order, a
reader of the whole log ends up with the last value of each key, and the log still knows its writers."""

from dataclasses import replace
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from milena.model.batch.header import IdempotencyExtension, ProducerStamp, decode_header
from milena.model.types import ReplicaHealth
from storage.state.producer_state import Duplicate
from tests.support.disk.compacted_log import COMPACTED, keyed_batch, records_of
from tests.support.disk.log_model import NOW_MS, open_log
from tests.support.disk.memory_files import MemoryFiles, SimulatedCrashError

keeps = st.sampled_from(["none", "some", "all"])
seeds = st.integers(0, 1 << 32)
fractions = st.floats(0, 1)
keys = st.sampled_from([b"a", b"b", b"c" * 20, b"d" * 40])
values = st.none() | st.binary(max_size=60)
batches = st.lists(
    st.tuples(
        st.lists(st.tuples(keys, values), min_size=1, max_size=4),
        st.none() | st.integers(1, 2),
        st.none() | st.integers(1, 3),
        st.none() | st.integers(0, 4),
    ),
    min_size=1,
    max_size=6,
)


class CompactedLogMachine(RuleBasedStateMachine):
    """``history`` is every record that was appended and not cut, whatever compaction did to it since."""

    @initialize(
        segment_bytes=st.sampled_from([300, 600, 1500]),
        lag_ms=st.sampled_from([0, 40]),
        keys_max=st.sampled_from([1, 2, 100]),
    )
    def start(self, segment_bytes, lag_ms, keys_max):
        self.config = replace(
            COMPACTED,
            segment_bytes=segment_bytes,
            min_compaction_lag_ms=lag_ms,
            delete_retention_ms=30,
        )
        self.keys_max = keys_max
        self.files = MemoryFiles()
        self.now_ms = NOW_MS
        self.epoch = 0
        self.history = {}
        self.epochs = {}
        self.sent = []
        self.durable_end = self.committed_end = 0
        self.run = None
        self.log = open_log(self.files, config=self.config, is_listed=False)

    # The log's owner.

    @rule(shape=batches)
    def append(self, shape):
        self.now_ms += 10
        for pairs, producer_id, key, kafka in shape:
            batch = self.batch(pairs, producer_id, key, kafka)
            (base,) = self.log.append_as_leader(
                [batch], leader_epoch=self.epoch, now_ms=self.now_ms
            )
            self.sent.append((base, batch))
            for number, pair in enumerate(pairs):
                self.history[base + number] = pair
                self.epochs[base + number] = self.epoch

    def batch(self, pairs, producer_id, key, kafka=None):
        producer = extension = None
        if producer_id is not None:
            last = self.log.writers.producers.last_sequence(producer_id)
            producer = ProducerStamp(producer_id, 0, 0 if last is None else last + 1)
        elif key is not None and kafka is None:
            extension = IdempotencyExtension(bytes([key]) * 16, bytes([key]) * 8, 6)
        return keyed_batch(
            pairs, timestamp_ms=self.now_ms, producer=producer, key=extension, kafka=kafka
        )

    @rule()
    def next_epoch(self):
        self.epoch += 1

    @rule()
    def roll(self):
        self.log.rolling.close_segment(self.log.log_end_offset)

    @rule(segment_bytes=st.sampled_from([300, 600, 1500, 20_000]))
    def resize(self, segment_bytes):
        self.config = replace(self.config, segment_bytes=segment_bytes)
        self.log.config = self.config

    @rule()
    def wait(self):
        self.now_ms += 40

    @rule()
    def commit(self):
        self.log.flushing.sync_all()
        self.committed_end = self.durable_end = self.log.log_end_offset
        self.log.checkpointing.run(self.committed_end)

    @rule(fraction=fractions)
    def truncate(self, fraction):
        low = max(self.committed_end, self.log.log_start_offset)
        self.log.cutting.truncate_to(low + round(fraction * (self.log.log_end_offset - low)))
        self.note_cut()

    @rule(fraction=fractions)
    def advance_log_start(self, fraction):
        start = self.log.log_start_offset
        self.log.start.advance(start + round(fraction * (self.committed_end - start)))

    # Compaction.

    @precondition(lambda self: self.run is None)
    @rule()
    def begin(self):
        self.run = self.log.compaction.begin(
            self.now_ms, self.committed_end, tombstone_end=self.committed_end
        )
        if self.run is not None:
            self.run._plan = replace(self.run._plan, slice_bytes=200, keys_max=self.keys_max)

    @precondition(lambda self: self.run is not None)
    @rule(count=st.integers(1, 20))
    def step(self, count):
        for _ in range(count):
            self.run.step()
            self.log.compaction.note(self.run)
        if self.run.is_done:
            self.run = None

    @rule()
    def compact(self):
        self.prepare()
        self.finish()

    def prepare(self):
        """Begin a run over all that there is."""
        self.finish()
        self.log.rolling.close_segment(self.log.log_end_offset)
        self.commit()
        self.begin()

    def finish(self):
        while self.run is not None:
            self.step(1)

    # Crashes.

    @rule()
    def reopen(self):
        self.run = None
        self.log.checkpointing.run(self.committed_end)
        self.log.close(is_clean=True)
        self.files.crash()
        self.log = open_log(self.files, config=self.config, was_clean=True, now_ms=self.now_ms)
        assert self.log.recovery.was_clean
        self.durable_end = self.log.log_end_offset

    @rule(seed=seeds, keep=keeps)
    def crash(self, seed, keep):
        self.run = None
        self.files.crash(Random(seed), keep)
        self.recover()

    @rule(
        seed=seeds,
        keep=keeps,
        number=st.integers(0, 40),
        kind=st.sampled_from(["compact", "step", "advance_log_start", "truncate", "commit"]),
        fraction=fractions,
    )
    def crash_in(self, seed, keep, number, kind, fraction):
        low = max(self.committed_end, self.log.log_start_offset)
        durable_end = min(self.durable_end, low)
        if kind == "step":
            self.prepare()
        changes = {
            "compact": self.compact,
            "step": self.finish,
            "advance_log_start": lambda: self.advance_log_start(fraction),
            "truncate": lambda: self.truncate(fraction),
            "commit": self.commit,
        }
        self.files.crash_before(number)
        try:
            changes[kind]()
        except SimulatedCrashError:
            if kind == "truncate":
                self.durable_end = durable_end
        self.run = None
        self.files.crash(Random(seed), keep)
        self.recover()

    def recover(self):
        self.log = open_log(self.files, config=self.config, now_ms=self.now_ms)
        assert self.log.health is not ReplicaHealth.DAMAGED, self.log.recovery
        assert self.log.log_end_offset >= self.durable_end
        if self.log.health is not ReplicaHealth.SOUND:
            self.log.cutting.mark_sound()
        self.epoch = max(self.epoch, self.log.state.epochs.last_epoch)
        assert not any(path.endswith((".cleaned", ".swap")) for path in self.files.paths())
        self.note_cut()
        self.durable_end = self.log.log_end_offset

    def note_cut(self):
        end = self.log.log_end_offset
        self.history = {o: pair for o, pair in self.history.items() if o < end}
        self.sent = [
            (base, batch)
            for base, batch in self.sent
            if base + decode_header(batch).last_offset_delta < end
        ]
        self.durable_end = min(self.durable_end, end)
        self.committed_end = min(self.committed_end, end)
        if self.run is not None and self.run.is_done:
            self.run = None

    # What must hold.

    @invariant()
    def every_key_has_its_last_value(self):
        if not hasattr(self, "log"):
            return
        found = records_of(self.log)
        start = self.log.log_start_offset
        assert all(self.history[offset] == pair for offset, pair in found.items())
        latest = {key: offset for offset, (key, _) in sorted(self.history.items())}
        for key, offset in latest.items():
            value = self.history[offset][1]
            if offset < start:
                continue
            if offset in found:
                continue
            # Only a tombstone may be gone, and with it everything that it deleted.
            assert value is None
            assert key not in [key for key, _ in found.values()]
        clean = self.log.compaction.clean_end
        below = [key for offset, (key, _) in found.items() if offset < clean]
        if self.run is None:
            assert len(below) == len(set(below)), "each key once where it was compacted"
        for offset in found:
            assert self.log.state.epochs.epoch_at(offset) == self.epochs[offset]

    @invariant()
    def retries_are_recognised(self):
        if not hasattr(self, "log"):
            return
        start = self.log.log_start_offset
        for producer_id in (1, 2):
            own = [(b, decode_header(batch)) for b, batch in self.sent]
            own = [(b, header) for b, header in own if header.producer_id == producer_id]
            for base, header in own[-5:]:
                if base >= start:
                    last = base + header.last_offset_delta
                    assert self.log.producer_check(header, self.now_ms) == Duplicate(base, last)
        for key in (1, 2, 3):
            own = [
                base
                for base, batch in self.sent
                if (sent := decode_header(batch).request_keys) and sent[0].key_hash[0] == key
            ]
            if own and own[-1] >= start:
                entry = self.log.idempotency_lookup(bytes([key]) * 16, self.now_ms)
                assert entry is not None
                assert entry.base_offset <= own[-1] <= entry.last_offset

    @rule()
    def forget_what_is_only_a_hint(self):
        """Snapshots are lost: the log alone tells of its writers."""
        self.compact()
        self.log.close(is_clean=False)
        for path in self.files.paths():
            if path.endswith((".producers", "/compaction", ".index", "/leader-epochs")):
                self.files.remove(path)
        self.log = open_log(self.files, config=self.config, now_ms=self.now_ms)
        assert self.log.health is ReplicaHealth.SOUND, self.log.recovery


CompactedLogMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None
)
TestCompactedLog = CompactedLogMachine.TestCase
