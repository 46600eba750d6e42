"""The partition log against a plain list: whatever is done to it, in any order, with power cuts in between and in
the middle of every change, it holds what was synced, and nothing that was not appended."""

from dataclasses import replace
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from milena.model.batch.header import IdempotencyExtension, ProducerStamp
from storage.segments.log_config import LogConfig
from tests.support.disk.log_model import NOW_MS, SMALL, LogModel, make_batch

keeps = st.sampled_from(["none", "some", "all"])
seeds = st.integers(0, 1 << 32)
fractions = st.floats(0, 1)


@st.composite
def shapes(draw):
    """The arguments of an append: (records, value bytes, timestamp shift, producer, key, codec of Kafka) each."""
    shape = st.tuples(
        st.integers(1, 5),
        st.sampled_from([0, 20, 200, 900]),
        st.integers(-500, 500),
        st.none() | st.integers(1, 3),
        st.none() | st.integers(1, 6),
        st.none() | st.integers(0, 4),
    )
    return draw(st.lists(shape, min_size=1, max_size=6))


class PartitionLogMachine(RuleBasedStateMachine):
    @initialize(
        segment_bytes=st.sampled_from([600, 2500, 20_000]),
        preallocate_bytes=st.sampled_from([0, 1000, 1 << 20]),
        checkpoint_bytes=st.sampled_from([1, 1500, 1 << 20]),
    )
    def start(self, segment_bytes, preallocate_bytes, checkpoint_bytes):
        config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=SMALL.index_interval_bytes,
            preallocate_bytes=preallocate_bytes,
            checkpoint_bytes=checkpoint_bytes,
        )
        self.model = LogModel(config=config)
        self.sync_ticket = None
        self.checkpoint_ticket = None

    def batches(self, shape):
        model = self.model
        batches = []
        sequences = {}
        for records, value_bytes, shift, producer_id, key, kafka in shape:
            producer = None
            if producer_id is not None:
                base = sequences.get(producer_id, model.next_sequence(producer_id))
                producer = ProducerStamp(producer_id, 0, base)
                sequences[producer_id] = base + records
            extension = None
            if key is not None and kafka is None:
                extension = IdempotencyExtension(bytes([key]) * 16, bytes([key]) * 8, 6)
            batches.append(
                make_batch(
                    records,
                    value_bytes=value_bytes,
                    timestamp_ms=model.now_ms + shift,
                    producer=producer,
                    key=extension,
                    kafka=kafka,
                )
            )
        return batches

    # Changes.

    @rule(shape=shapes(), as_follower=st.booleans())
    def append(self, shape, as_follower):
        self.model.append(self.batches(shape), as_follower=as_follower)

    @rule()
    def next_epoch(self):
        self.model.leader_epoch += 1

    @rule()
    def sync(self):
        self.finish_tickets()
        self.model.sync()

    @rule()
    def checkpoint(self):
        self.model.checkpoint()

    @rule(fraction=fractions)
    def truncate(self, fraction):
        """A follower never truncates below its high watermark."""
        model = self.model
        low = max(model.log.log_start_offset, model.log.replica.checkpoint.high_watermark)
        offset = low + round(fraction * (model.log.log_end_offset - low))
        model.truncate_to(offset)

    @rule(fraction=fractions)
    def advance_log_start(self, fraction):
        model = self.model
        start, end = model.log.log_start_offset, model.log.flushing.synced_end
        model.advance_log_start(start + round(fraction * max(end - start, 0)))

    @rule(distance=st.integers(0, 50))
    def restart(self, distance):
        self.model.restart_at(self.model.log.log_end_offset + distance)

    # Disk work that overlaps with changes.

    @precondition(lambda self: self.sync_ticket is None)
    @rule()
    def begin_sync(self):
        self.sync_ticket = self.model.log.flushing.begin()

    @precondition(lambda self: self.sync_ticket is not None)
    @rule()
    def finish_sync(self):
        ticket, self.sync_ticket = self.sync_ticket, None
        ticket.run()
        self.model.log.flushing.finish(ticket)
        self.note_synced()

    @precondition(lambda self: self.checkpoint_ticket is None)
    @rule()
    def begin_checkpoint(self):
        model = self.model
        self.checkpoint_ticket = model.log.checkpointing.begin(model.high_watermark, is_forced=True)

    @precondition(lambda self: self.checkpoint_ticket is not None)
    @rule()
    def finish_checkpoint(self):
        ticket, self.checkpoint_ticket = self.checkpoint_ticket, None
        ticket.run()
        self.model.log.checkpointing.finish(ticket)
        self.note_synced()

    def note_synced(self):
        model = self.model
        end = model.log.flushing.synced_end
        assert end >= model.expected.durable_end
        model.expected = replace(model.expected, durable_end=end)

    def finish_tickets(self):
        if self.sync_ticket is not None:
            self.finish_sync()
        if self.checkpoint_ticket is not None:
            self.finish_checkpoint()

    # Crashes.

    @rule()
    def reopen_cleanly(self):
        self.finish_tickets()
        self.model.reopen_cleanly()

    @rule()
    def kill(self):
        self.sync_ticket = self.checkpoint_ticket = None
        self.model.kill()

    @rule(seed=seeds, keep=keeps)
    def crash(self, seed, keep):
        self.sync_ticket = self.checkpoint_ticket = None
        self.model.crash(Random(seed), keep)

    @rule(
        seed=seeds,
        keep=keeps,
        number=st.integers(0, 40),
        kind=st.sampled_from(["append", "sync", "checkpoint", "truncate", "start", "restart"]),
        shape=shapes(),
        fraction=fractions,
    )
    def crash_in_the_middle(self, seed, keep, number, kind, shape, fraction):
        self.sync_ticket = self.checkpoint_ticket = None
        model = self.model
        changes = {
            "append": lambda: model.append(self.batches(shape)),
            "sync": model.sync,
            "checkpoint": model.checkpoint,
            "truncate": lambda: self.truncate(fraction),
            "start": lambda: self.advance_log_start(fraction),
            "restart": lambda: self.restart(10),
        }
        # A synced log is cut at most by the change itself, so a false alarm would be seen.
        if seed % 2:
            model.sync()
        model.crash_in(number, changes[kind], Random(seed), keep)

    # Reading.

    @rule(where=fractions, max_bytes=st.integers(0, 3000), until=fractions)
    def read(self, where, max_bytes, until):
        model = self.model
        start, end = model.expected.log_start, model.expected.log_end
        offset = start + round(where * (end - start))
        model.check_read(offset, max_bytes, offset + round(until * (end - offset)))

    @rule(shift=st.integers(-600, 3000))
    def search(self, shift):
        self.model.check_search(NOW_MS + shift)

    @invariant()
    def holds_what_it_must(self):
        if hasattr(self, "model"):
            self.model.check()


PartitionLogMachine.TestCase.settings = settings(
    max_examples=120, stateful_step_count=30, deadline=None
)
TestPartitionLog = PartitionLogMachine.TestCase
