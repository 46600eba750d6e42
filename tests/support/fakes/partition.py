"""One partition as a reader sees it, without a network: stored batches, bounds, and planned failures."""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from milena.errors import NotNowError, OutOfRangeError
from milena.model.batch.encode import encode_batch, rewrite_batch, stamp_batch
from milena.model.batch.header import STAMP_BYTES, decode_header
from milena.model.columns import Headers, RecordColumns
from milena.model.types import Codec, MonotonicMs, TimestampType, WallMs
from milena.records import LastN, Position, StartAt, TimestampMs

APPEND_TIME_MS = 1_800_000_000_000
BASE_TIMESTAMP_MS = 1_700_000_000_000


def columns(
    values: Iterable[bytes | None],
    *,
    keys: list[bytes | None] | None = None,
    headers: list[Headers | None] | None = None,
    timestamp_deltas: list[int] | None = None,
) -> RecordColumns:
    return RecordColumns(
        offset_deltas=None,
        timestamp_deltas=timestamp_deltas,
        keys=keys,
        values=list(values),
        headers=headers,
    )


def stored(
    base_offset: int,
    *values: bytes | None,
    keep: Iterable[int] | None = None,
    keys: list[bytes | None] | None = None,
    headers: list[Headers | None] | None = None,
    timestamp_deltas: list[int] | None = None,
    base_timestamp_ms: int = BASE_TIMESTAMP_MS,
    codec: Codec = Codec.NONE,
    timestamp_type: TimestampType = TimestampType.CREATE,
    is_control: bool = False,
) -> bytes:
    """Return a batch as a log stores it; ``keep`` has the offset deltas that compaction left."""
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
    """A stand-in for ``milena.cluster.transport.FetchAnswer``."""

    data: bytes = b""
    start_offset: int = 0
    next_offset: int = 0
    high_watermark: int = 0
    log_start_offset: int = 0
    topic_tag: str = ""
    last_stable_offset: int | None = None

    @property
    def readable_end(self) -> int:
        return self.high_watermark if self.last_stable_offset is None else self.last_stable_offset


class FakePartition:
    """A leader that always knows its end offset. ``failures`` are raised first, one per request."""

    def __init__(
        self,
        *batches: bytes,
        log_start_offset: int = 0,
        per_answer: int = 1,
        topic_tag: str = "",
    ) -> None:
        self.batches = list(batches)
        self.topic_tag = topic_tag
        self.log_start_offset = log_start_offset
        self.per_answer = per_answer
        self.failures: deque[Exception | Answer] = deque()
        self.requests: list[tuple[Position, int]] = []
        self.verified: list[bool] = []
        self.stale = 0
        self._grown = asyncio.Event()

    @property
    def end(self) -> int:
        return (
            decode_header(self.batches[-1]).next_offset if self.batches else self.log_start_offset
        )

    def append(self, *values: bytes | None) -> None:
        self.batches.append(stored(self.end, *values))
        self._grown.set()

    def wake(self) -> None:
        """Let the fetches that wait for records respond without any."""
        self._grown.set()

    def delete_below(self, offset: int) -> None:
        self.log_start_offset = offset
        self.batches = [b for b in self.batches if decode_header(b).last_offset >= offset]

    def mark_stale(self, topic: str | None = None) -> None:
        self.stale += 1

    async def fetch(
        self,
        topic: str,
        partition: int,
        *,
        offset: Position,
        max_bytes: int,
        wait_ms: int,
        is_verified: bool = False,
    ) -> Answer:
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
            topic_tag=self.topic_tag,
        )

    def _resolve(self, offset: Position) -> int:
        match offset:
            case StartAt.EARLIEST:
                return self.log_start_offset
            case StartAt.LATEST:
                return self.end
            case LastN(count):
                return max(self.log_start_offset, self.end - count)
            case TimestampMs():
                return self.log_start_offset
            case int():
                pass
        if not self.log_start_offset <= offset <= self.end:
            raise OutOfRangeError(f"offset {offset}", status=400, error_code=40002)
        return offset


def no_leader() -> NotNowError:
    return NotNowError("no leader", status=503, error_code=50302)


class InstantClock:
    """A clock that only sleeping moves; a sleep takes no real time."""

    def __init__(self) -> None:
        self.ms = 0.0
        self.sleeps: list[float] = []

    def now_ms(self) -> MonotonicMs:
        return MonotonicMs(int(self.ms))

    def wall_ms(self) -> WallMs:
        return WallMs(int(self.ms))

    def expiry_ms(self) -> WallMs:
        return WallMs(int(self.ms))

    async def sleep(self, ms: float) -> None:
        self.sleeps.append(ms)
        self.ms += ms
        await asyncio.sleep(0)
