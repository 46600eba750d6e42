"""A consumer's deliveries against plain logs: whatever is written, compacted, cut short, sought, lost on the way, taken
away and given back, each record comes once in a life, in order and below the high watermark, and commits say what was
delivered last."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from node.consumers.answer_cutting import AnswerRoom, cut
from node.consumers.cursor import Cursor
from raft_meta.machine.image import PartitionKey
from tests.support.disk.stored_batches import filler, offsets_in, stored

KEYS: list[PartitionKey] = [("a" * 32, 0), ("a" * 32, 1), ("b" * 32, 0)]
keys = st.sampled_from(KEYS)
values = st.none() | st.binary(max_size=12)


@dataclass
class Log:
    """``records``: offset → size of those that compaction has left."""

    batches: list[tuple[int, int, bytes]] = field(default_factory=list)
    records: dict[int, int] = field(default_factory=dict)
    end: int = 0
    high_watermark: int = 0

    def read(self, offset: int) -> bytes:
        return b"".join(data for _, end, data in self.batches if end > offset)

    def add(self, count: int, data: bytes) -> None:
        self.batches.append((self.end, self.end + count, data))
        self.end += count


@dataclass
class Life:
    """What the client has been given of a partition since it has stood in it, oldest first."""

    start: int
    given: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    """By the last call, which may have to be taken back."""


class DeliveryMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.logs = {key: Log() for key in KEYS}
        self.commits: dict[PartitionKey, int] = {}
        self.cursor = Cursor(is_auto_commit=True, now_ms=0)
        self.lives: dict[PartitionKey, Life] = {}
        self.calls = 0
        self.assigned: list[PartitionKey] = []

    @rule(key=keys, batch=st.lists(values, min_size=1, max_size=4))
    def write(self, key: PartitionKey, batch: list[bytes | None]) -> None:
        log = self.logs[key]
        log.records |= {log.end + i: len(v or b"") for i, v in enumerate(batch)}
        log.add(len(batch), stored(log.end, batch))

    @rule(key=keys, count=st.integers(1, 5))
    def compact_away(self, key: PartitionKey, count: int) -> None:
        log = self.logs[key]
        log.add(count, filler(log.end, count))

    @rule(key=keys, part=st.floats(0, 1))
    def replicate(self, key: PartitionKey, part: float) -> None:
        log = self.logs[key]
        log.high_watermark += int((log.end - log.high_watermark) * part + 0.999)

    @rule(wanted=st.sets(keys))
    def assign(self, wanted: set[PartitionKey]) -> None:
        self.assigned = sorted(wanted)
        self.cursor.assign(self.assigned, self.commits.get, is_exclusive=True)
        for key in self.cursor.without_position():
            self.cursor.put(key, 0)
        for key in set(self.lives) - wanted:
            del self.lives[key]
        for key in wanted - set(self.lives):
            self.lives[key] = Life(self.commits.get(key, 0))

    @rule(payload=st.integers(0, 20), records=st.integers(1, 6), is_lost=st.booleans())
    def poll(self, payload: int, records: int, is_lost: bool) -> None:
        self.calls += 1
        call_id = str(self.calls)
        self._poll(call_id, payload, records)
        if is_lost:
            assert self.cursor.take_back(call_id)
            for life in self.lives.values():
                life.last = []

    @rule(payload=st.integers(0, 20))
    @precondition(lambda self: self.calls)
    def repeat_the_call(self, payload: int) -> None:
        for life in self.lives.values():
            life.last = []
        self._poll(str(self.calls), payload, 5, is_repeated=True)

    def _poll(self, call_id: str, payload: int, records: int, *, is_repeated: bool = False) -> None:
        if not is_repeated:
            for life in self.lives.values():
                life.given += life.last
                life.last = []
        self.cursor.begin(call_id)
        room = first = AnswerRoom(payload_bytes=payload, records=records, needs_one=True)
        taken = size = 0
        has_any = False
        for key in list(self.cursor):
            if room.is_over:
                break
            log, position = self.logs[key], self.cursor.position(key)
            assert position is not None
            has_any |= any(position <= o < log.high_watermark for o in log.records)
            made = cut(log.read(position), position, log.high_watermark, room)
            offsets = offsets_in(made)
            assert len(offsets) == made.record_count
            assert self.cursor.deliver(key, made)
            self.lives[key].last += offsets
            taken += len(offsets)
            size += sum(log.records[offset] for offset in offsets)
            room = room.less(made)
        assert taken <= 1 or (size <= first.payload_bytes and taken <= first.records)
        assert taken or not has_any

    @rule(key=keys, offset=st.integers(0, 30))
    def seek(self, key: PartitionKey, offset: int) -> None:
        log = self.logs[key]
        if key in self.lives and offset <= log.high_watermark:
            self.cursor.seek(key, offset)
            self.lives[key] = Life(offset)

    @rule(arrived_only=st.booleans())
    def commit(self, arrived_only: bool) -> None:
        marks = self.cursor.arrived() if arrived_only else self.cursor.delivered()
        for key, mark in marks.items():
            self.cursor.on_committing(key, mark.offset)
            self.cursor.on_committed(key, mark.offset)
            self.commits[key] = mark.offset
            life = self.lives[key]
            given = life.given if arrived_only else life.given + life.last
            least = given[-1] + 1 if given else life.start
            # Behind the last record it may have passed what no reader sees.
            log = self.logs[key]
            assert least <= mark.offset <= log.high_watermark
            assert not any(least <= offset < mark.offset for offset in log.records)

    @rule(key=keys, ahead=st.integers(1, 5))
    def another_member_has_it_for_a_while(self, key: PartitionKey, ahead: int) -> None:
        log = self.logs[key]
        offset = min(self.commits.get(key, 0) + ahead, log.high_watermark)
        if offset != self.commits.get(key, 0):
            self.commits[key] = offset
            self.lives.pop(key, None)
            self.assign(set(self.assigned))

    @invariant()
    def each_record_once_in_order_below_the_high_watermark(self) -> None:
        for key, life in getattr(self, "lives", {}).items():
            log, given = self.logs[key], life.given + life.last
            position = self.cursor.position(key)
            assert position is not None
            assert position <= log.high_watermark
            assert given == [o for o in sorted(log.records) if life.start <= o < position]


TestDelivery = DeliveryMachine.TestCase
TestDelivery.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
