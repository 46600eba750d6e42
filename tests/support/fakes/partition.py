"""One partition as a reader meets it, without a network: stored batches, bounds, and failures by script."""

import asyncio
from collections import deque
from dataclasses import dataclass

from milena.errors import NotNowError, OutOfRangeError
from milena.model.batch.encode import encode_batch, rewrite_batch, stamp_batch
from milena.model.batch.header import STAMP_BYTES, decode_header
from milena.model.columns import RecordColumns
from milena.model.types import Codec, TimestampType
from milena.records import LastN, StartAt, TimestampMs

APPEND_TIME_MS = 1_800_000_000_000
BASE_TIMESTAMP_MS = 1_700_000_000_000


def columns(values, *, keys=None, headers=None, timestamp_deltas=None):
    return RecordColumns(
        offset_deltas=None,
        timestamp_deltas=timestamp_deltas,
        keys=keys,
        values=list(values),
        headers=headers,
    )


def stored(
    base_offset,
    *values,
    keep=None,
    keys=None,
    headers=None,
    timestamp_deltas=None,
    base_timestamp_ms=BASE_TIMESTAMP_MS,
    codec=Codec.NONE,
    timestamp_type=TimestampType.CREATE,
    is_control=False,
):
    """A batch as a log stores it; ``keep``: the deltas that compaction left."""
    found = columns(values, keys=keys, headers=headers, timestamp_deltas=timestamp_deltas)
    batch = encode_batch(
        found,
        base_timestamp_ms=base_timestamp_ms,
        codec=codec,
        timestamp_type=timestamp_type,
        is_control=is_control,
    )
    if keep is not None:
        left = columns([values[delta] for delta in keep])
        left.offset_deltas = list(keep)
        batch = rewrite_batch(decode_header(batch), left)
    stamp = stamp_batch(
        batch, base_offset=base_offset, leader_epoch=3, append_time_ms=APPEND_TIME_MS
    )
    return stamp + batch[STAMP_BYTES:]


@dataclass
class Answer:
    """What ``milena.cluster.transport.FetchAnswer`` looks like."""

    data: bytes = b""
    start_offset: int = 0
    next_offset: int = 0
    high_watermark: int = 0
    log_start_offset: int = 0
    topic_tag: str = ""
    last_stable_offset: int | None = None

    @property
    def readable_end(self):
        return self.high_watermark if self.last_stable_offset is None else self.last_stable_offset


class FakePartition:
    """A leader that always knows its end. ``failures`` are raised first, one a request."""

    def __init__(self, *batches, log_start_offset=0, per_answer=1):
        self.batches = list(batches)
        self.log_start_offset = log_start_offset
        self.per_answer = per_answer
        self.failures = deque()
        self.requests = []
        self.verified = []
        self.stale = 0
        self._grown = asyncio.Event()

    @property
    def end(self):
        return (
            decode_header(self.batches[-1]).next_offset if self.batches else self.log_start_offset
        )

    def append(self, *values):
        self.batches.append(stored(self.end, *values))
        self._grown.set()

    def delete_below(self, offset):
        self.log_start_offset = offset
        self.batches = [b for b in self.batches if decode_header(b).last_offset >= offset]

    def mark_stale(self, topic=None):
        self.stale += 1

    async def fetch(self, topic, partition, *, offset, max_bytes, wait_ms, is_verified=False):
        self.requests.append((offset, wait_ms))
        self.verified.append(is_verified)
        await asyncio.sleep(0)
        if self.failures:
            failure = self.failures.popleft()
            if isinstance(failure, Exception):
                raise failure
            return failure
        start = self._resolve(offset)
        if wait_ms and start == self.end:
            self._grown.clear()
            await self._grown.wait()
        found = [b for b in self.batches if decode_header(b).last_offset >= start]
        found = found[: self.per_answer]
        return Answer(
            data=b"".join(found),
            start_offset=start,
            next_offset=decode_header(found[-1]).next_offset if found else start,
            high_watermark=self.end,
            log_start_offset=self.log_start_offset,
        )

    def _resolve(self, offset):
        match offset:
            case StartAt.EARLIEST:
                return self.log_start_offset
            case StartAt.LATEST:
                return self.end
            case LastN(count):
                return max(self.log_start_offset, self.end - count)
            case TimestampMs():
                return self.log_start_offset
        if not self.log_start_offset <= offset <= self.end:
            raise OutOfRangeError(f"offset {offset}", status=400, error_code=40002)
        return offset


def no_leader():
    return NotNowError("no leader", status=503, error_code=50302)


class InstantClock:
    """Time passes by sleeping only, and at once."""

    def __init__(self):
        self.ms = 0.0
        self.sleeps = []

    def now_ms(self):
        return self.ms

    def wall_ms(self):
        return int(self.ms)

    def expiry_ms(self):
        return int(self.ms)

    async def sleep(self, ms):
        self.sleeps.append(ms)
        self.ms += ms
        await asyncio.sleep(0)
