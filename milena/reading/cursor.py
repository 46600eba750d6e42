"""Where one reader of one partition stands, and what each answer means for it (pure).

``milena.reading.reader`` drives it: it asks for what ``request`` names and hands every answer to ``take``. The cursor
believes nothing: checksums, the order of batches and every offset of an answer are checked before it moves, so that a
record is given out once, in order, or the error says why not.

A reader that starts relative to the end (``LATEST``, ``LastN``), or that stops at the end seen at the start, needs that
end first: ``must_pin`` asks for one answer to ``pin_at``, which only the leader gives. Everything else begins with the
first fetch. A start that is no number is asked for again until an answer says which offset it came to; from
then on the cursor asks for exactly the next offset, whichever node answers.
"""

from dataclasses import dataclass
from enum import Enum, unique
from typing import Protocol

from milena.errors import UnexpectedAnswerError, UnreadableOffsetError
from milena.model.batch.decode import iterate_batches
from milena.records import FetchedChunk, LastN, Position, StartAt, check_position


@unique
class OnOutOfRange(Enum):
    """Policy where the offset to read is not there: deleted by retention, or above the end.

    ``FAIL`` raises; the others go on at that end of the partition and count what was skipped.
    """

    FAIL = "fail"
    EARLIEST = "earliest"
    LATEST = "latest"


class FetchedData(Protocol):
    """Answer of a fetch, as the cursor needs it."""

    @property
    def data(self) -> bytes:
        """Whole stored batches."""

    @property
    def start_offset(self) -> int:
        """Offset of the position that was asked for."""

    @property
    def next_offset(self) -> int:
        """Where the node says to go on."""

    @property
    def high_watermark(self) -> int:
        """The first offset that is not committed."""

    @property
    def readable_end(self) -> int:
        """Exclusive end of what may be read: the last stable offset."""

    @property
    def log_start_offset(self) -> int:
        """The first readable offset."""

    @property
    def topic_tag(self) -> str:
        """First digits of the topic's id; empty: the node does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """Range to read: [start, end), and without ``is_following`` nothing above the last stable offset at the start."""

    topic: str
    partition: int
    start: Position = StartAt.EARLIEST
    end: int | None = None
    is_following: bool = False
    on_out_of_range: OnOutOfRange = OnOutOfRange.FAIL

    def __post_init__(self) -> None:
        check_position(self.start)
        start = self.start.value if isinstance(self.start, LastN) else self.start
        if isinstance(start, int) and start < 0:
            raise ValueError(f"start={start} must be 0 or above; LastN counts from the end")
        if self.end is not None and self.end < 0:
            raise ValueError(f"end={self.end} must be 0 or above")


class ReadCursor:
    """The state of one reader.

    Invariants:
        - ``position`` is a number from the first answer on, and only grows (but for a reset);
        - chunks that ``take`` gives are adjacent: each starts where the one before it ended;
        - ``end`` is None while there is no end.
    """

    def __init__(self, plan: ReadPlan) -> None:
        self.plan = plan
        self.position: Position = plan.start
        self.end = plan.end
        self.high_watermark = -1
        self.readable_end = -1
        self.log_start_offset = -1
        self.skipped = 0
        """Offsets that were deleted before they could be read and that a reset left out."""
        self._is_pinned = False
        self._topic_tag = ""
        self._former_tags: set[str] = set()
        """Of topics that had the name before."""

    @property
    def name(self) -> str:
        """Topic and partition, for messages."""
        return f"{self.plan.topic}-{self.plan.partition}"

    @property
    def must_pin(self) -> bool:
        """``pin`` wants an answer to ``pin_at`` before anything is read."""
        is_relative = self.plan.start is StartAt.LATEST or isinstance(self.plan.start, LastN)
        return not self._is_pinned and (is_relative or not self.plan.is_following)

    @property
    def pin_at(self) -> Position:
        """The question whose answer ``pin`` wants: only the leader answers it."""
        return self.plan.start if isinstance(self.plan.start, LastN) else StartAt.LATEST

    @property
    def is_done(self) -> bool:
        """Everything up to the end has been given out."""
        return self.end is not None and isinstance(self.position, int) and self.position >= self.end

    def pin(self, answer: FetchedData) -> None:
        """Take the end of the partition as of now from an answer to ``pin_at``.

        Raises:
            UnreadableOffsetError: the plan starts above that end, and may not reset.
        """
        self._check_bounds(answer)
        self._is_of_another(answer)
        start = self.plan.start
        # An answer to the last N records begins at the first of them.
        end = answer.readable_end if isinstance(start, LastN) else answer.start_offset
        self._is_pinned = True
        if not self.plan.is_following:
            self.end = end if self.end is None else min(self.end, end)
        if start is StartAt.LATEST:
            self.position = end
        elif isinstance(start, LastN):
            self.position = answer.start_offset
        elif start is StartAt.EARLIEST and answer.log_start_offset >= end:
            self.position = end
        elif isinstance(start, int) and start > end and not self.plan.is_following:
            self.go_into_range(answer.log_start_offset, answer.high_watermark)

    def locate(self, answer: FetchedData) -> None:
        """The position is where the answer begins, whatever is in it.

        Raises:
            UnexpectedAnswerError: the answer contradicts itself.
        """
        self._check_bounds(answer)
        self._is_of_another(answer)
        self.position = answer.start_offset

    def take(self, answer: FetchedData) -> FetchedChunk | None:
        """The readable part of the answer to ``position``, or None when there is nothing yet.

        Raises:
            UnexpectedAnswerError: the answer contradicts itself or the request.
            CorruptBatchError: a checksum does not match.
            UnreadableOffsetError: records at the position were deleted, and the plan may not reset.
        """
        self._check_bounds(answer)
        if self._is_of_another(answer) and isinstance(self.position, int):
            self._begin_again(answer)
            return None
        start = self._start_of(answer)
        limit = answer.readable_end
        if self.end is not None:
            limit = min(limit, self.end)
        span = self._span(answer.data, start, limit)
        if limit <= start:
            # Nothing new; a follower that lags may send even what it knows not to be committed.
            self.position = start
            return None
        if answer.log_start_offset > start and (span is None or span.base_offset > start):
            # Not a hole: the records were deleted while the node read.
            self.position = start
            self.go_into_range(answer.log_start_offset, answer.high_watermark)
            return None
        if span is None or span.base_offset >= limit:
            # A hole that compaction left, up to where the node says, or beyond where reading ends.
            self.position = limit if span else self._past_hole(answer, start, limit)
            return None
        end = min(span.next_offset, limit)
        self.position = end
        is_whole = span.first == 0 and span.last == len(answer.data)
        return FetchedChunk(
            topic=self.plan.topic,
            partition=self.plan.partition,
            data=answer.data if is_whole else answer.data[span.first : span.last],
            start_offset=start,
            end_offset=end,
            next_offset=end,
            high_watermark=answer.high_watermark,
            log_start_offset=answer.log_start_offset,
        )

    def go_into_range(self, log_start_offset: int, high_watermark: int) -> None:
        """The position is not in [log_start_offset, high_watermark]: go on where the plan says.

        Raises:
            UnreadableOffsetError: the plan says to fail.
        """
        assert isinstance(self.position, int), self.position
        if log_start_offset <= self.position <= high_watermark:
            return
        policy = self.plan.on_out_of_range
        if policy is OnOutOfRange.FAIL:
            raise UnreadableOffsetError(
                topic=self.plan.topic,
                partition=self.plan.partition,
                offset=self.position,
                log_start_offset=log_start_offset,
                high_watermark=high_watermark,
            )
        target = log_start_offset if policy is OnOutOfRange.EARLIEST else high_watermark
        self.skipped += max(0, target - self.position)
        self.position = target

    def _is_of_another(self, answer: FetchedData) -> bool:
        """Whether the answer is of another topic than the ones before, made again under its name.

        Raises:
            UnexpectedAnswerError: it is of one that is gone: its node has not heard of that yet.
        """
        tag, before = answer.topic_tag, self._topic_tag
        if not tag or tag == before:
            return False
        if tag in self._former_tags:
            raise UnexpectedAnswerError(f"{self.name}: a node answers for a topic that was deleted")
        self._topic_tag = tag
        if not before:
            return False
        self._former_tags.add(before)
        return True

    def _begin_again(self, answer: FetchedData) -> None:
        """Go on in the new topic where the plan says: the position was in the former one.

        Raises:
            UnreadableOffsetError: the plan says to fail.
        """
        assert isinstance(self.position, int), self.position
        policy = self.plan.on_out_of_range
        if policy is OnOutOfRange.FAIL:
            raise UnreadableOffsetError(
                topic=self.plan.topic,
                partition=self.plan.partition,
                offset=self.position,
                log_start_offset=answer.log_start_offset,
                high_watermark=answer.high_watermark,
                is_made_again=True,
            )
        is_earliest = policy is OnOutOfRange.EARLIEST
        self.position = answer.log_start_offset if is_earliest else answer.readable_end
        self.high_watermark, self.readable_end = answer.high_watermark, answer.readable_end

    def _check_bounds(self, answer: FetchedData) -> None:
        start, end, high_watermark = (
            answer.log_start_offset,
            answer.readable_end,
            answer.high_watermark,
        )
        if not 0 <= start <= end <= high_watermark:
            raise UnexpectedAnswerError(
                f"{self.name}: log start {start}, last stable offset {end} and high watermark {high_watermark} "
                "contradict each other"
            )
        if answer.start_offset < 0:
            raise UnexpectedAnswerError(f"{self.name}: start offset {answer.start_offset}")
        self.log_start_offset = answer.log_start_offset
        self.high_watermark = max(self.high_watermark, high_watermark)
        self.readable_end = max(self.readable_end, end)

    def _start_of(self, answer: FetchedData) -> int:
        """The offset that was asked for: from now on the reader knows it."""
        if isinstance(self.position, int) and answer.start_offset != self.position:
            raise UnexpectedAnswerError(
                f"{self.name}: asked for offset {self.position}, answered {answer.start_offset}"
            )
        return answer.start_offset

    def _span(self, data: bytes, start: int, limit: int) -> "_Span | None":
        """Where in ``data`` the batches lie that reach into [start, limit); all are checked."""
        span: _Span | None = None
        expected = 0
        for position, header in iterate_batches(data):
            if header.base_offset < expected:
                raise UnexpectedAnswerError(
                    f"{self.name}: a batch at offset {header.base_offset} follows one that ends at {expected}"
                )
            expected = header.next_offset
            if expected <= start or (span is not None and header.base_offset >= limit):
                continue
            first, base = (
                (position, header.base_offset) if span is None else (span.first, span.base_offset)
            )
            span = _Span(first, position + header.batch_bytes, base, expected)
        if span is None and data:
            raise UnexpectedAnswerError(
                f"{self.name}: asked for offset {start}, got batches that end at {expected}"
            )
        return span

    def _past_hole(self, answer: FetchedData, start: int, limit: int) -> int:
        """Where to go on after an answer without batches: compaction may have left none up to some offset."""
        if answer.next_offset < start:
            raise UnexpectedAnswerError(
                f"{self.name}: asked for offset {start}, told to go on at {answer.next_offset}"
            )
        return max(start, min(answer.next_offset, limit))


@dataclass(frozen=True, slots=True)
class _Span:
    """Bytes [first, last) of an answer, and the offsets of the batches in them: [base_offset, next_offset)."""

    first: int
    last: int
    base_offset: int
    next_offset: int
