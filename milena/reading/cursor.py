"""The position of one reader in one partition, and how each response changes it (pure).

``milena.reading.reader`` drives the cursor. It fetches from ``position`` and passes every response to ``take``. The
cursor trusts no response: before it moves, it checks checksums, the order of batches and every offset. So each record
is given out once and in order, or an error is raised.

Some readers first need the end of the partition: those that start relative to it (``LATEST``, ``LastN``), and those
that stop at the end that the partition has at the start. For these, ``must_pin`` is True: the reader first fetches from
``pin_at``, which only the leader answers, and passes the response to ``pin``. All others begin with the first fetch.

If the start is no number, the reader requests it again until a response has its offset. From then on it requests
exactly the next offset, from any node.
"""

from dataclasses import dataclass
from enum import Enum, unique

from milena.cluster.transport import FetchAnswer
from milena.errors import UnexpectedAnswerError, UnreadableOffsetError
from milena.model.batch.decode import iterate_batches
from milena.records import FetchedChunk, LastN, Position, StartAt, check_position


@unique
class OnOutOfRange(Enum):
    """The policy if the next offset does not exist, because retention deleted it or it is above the end.

    ``FAIL`` raises. ``EARLIEST`` and ``LATEST`` continue at the start or the end, and count the skipped offsets.
    """

    FAIL = "fail"
    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """The range to read: [start, end).

    Unless ``is_following``, reading also ends at the last stable offset that the partition has when reading starts.
    ``topic_tag``: the first digits of the id of the topic that ``start`` belongs to; empty: the topic that exists now.
    """

    topic: str
    partition: int
    start: Position = StartAt.EARLIEST
    end: int | None = None
    is_following: bool = False
    on_out_of_range: OnOutOfRange = OnOutOfRange.FAIL
    topic_tag: str = ""

    def __post_init__(self) -> None:
        check_position(self.start)
        if self.end is not None and self.end < 0:
            raise ValueError(f"end={self.end} must be 0 or above")


class ReadCursor:
    """The state of one reader.

    Invariants:
        - ``position`` is a number from the first response on, and only grows, except if ``on_out_of_range`` moves it;
        - a chunk that ``take`` returns starts where the one before it ended;
        - ``end`` is None if the reader does not end.
    """

    def __init__(self, plan: ReadPlan) -> None:
        self.plan = plan
        self.position: Position = plan.start
        self.end = plan.end
        self.high_watermark = -1
        self.readable_end = -1
        self.log_start_offset = -1
        self.skipped = 0
        """The number of offsets that were skipped, because their records were deleted before they were read."""
        self._is_pinned = False
        self.topic_tag = plan.topic_tag
        """The first digits of the id of the topic that ``position`` belongs to; empty if it is not known."""
        self._former_tags: set[str] = set()
        """The tags (see ``topic_tag``) of deleted topics with this name."""

    @property
    def name(self) -> str:
        """The topic and partition, for messages."""
        return f"{self.plan.topic}-{self.plan.partition}"

    @property
    def must_pin(self) -> bool:
        """True if the reader must call ``pin``, with a response to a fetch from ``pin_at``, before it reads."""
        is_relative = self.plan.start is StartAt.LATEST or isinstance(self.plan.start, LastN)
        return not self._is_pinned and (is_relative or not self.plan.is_following)

    @property
    def pin_at(self) -> Position:
        """The position to fetch from for ``pin``; only the leader responds to such a fetch."""
        return self.plan.start if isinstance(self.plan.start, LastN) else StartAt.LATEST

    @property
    def is_done(self) -> bool:
        """True if everything up to the end has been given out."""
        return self.end is not None and isinstance(self.position, int) and self.position >= self.end

    def pin(self, answer: FetchAnswer) -> None:
        """Set the start or the end of reading by the partition's current end, from the response to ``pin_at``.

        Raises:
            UnreadableOffsetError: the plan starts above the end, and its policy is to fail.
        """
        self._check_bounds(answer)
        self._is_of_another(answer)
        start = self.plan.start
        # The response to ``LastN`` starts at the first of these records, so its start is not the partition's end.
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

    def locate(self, answer: FetchAnswer) -> None:
        """Set the position to the start of the response, and ignore its records.

        Raises:
            UnexpectedAnswerError: the response contradicts itself.
        """
        self._check_bounds(answer)
        self._is_of_another(answer)
        self.position = answer.start_offset

    def take(self, answer: FetchAnswer) -> FetchedChunk | None:
        """Return the readable part of a response to a fetch from ``position``, and move behind it.

        Return None if the response has no readable records.

        Raises:
            UnexpectedAnswerError: the response contradicts itself or the request.
            CorruptBatchError: a checksum does not match.
            UnreadableOffsetError: records at the position were deleted, and the policy is to fail.
        """
        self._check_bounds(answer)
        if self._is_of_another(answer):
            self._begin_again(answer)
            return None
        start = self._start_of(answer)
        limit = answer.readable_end
        if self.end is not None:
            limit = min(limit, self.end)
        span = self._span(answer.data, start, limit)
        if limit <= start:
            # No committed record is new. A follower that lags may send records before it knows that they are committed.
            self.position = start
            return None
        if answer.log_start_offset > start and (span is None or span.base_offset > start):
            # The log start has moved above the position while the node read. So retention deleted the records; this is
            # no gap that compaction left.
            self.position = start
            self.go_into_range(answer.log_start_offset, answer.high_watermark)
            return None
        if span is None or span.base_offset >= limit:
            # Compaction left a gap here, which ends at the offset that the node reports, or above the end of reading.
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
            topic_tag=self.topic_tag,
        )

    def recover(self, answer: FetchAnswer) -> None:
        """Apply the plan's policy after a node refused the position; ``answer`` is for ``StartAt.LATEST``.

        Raises:
            UnreadableOffsetError: the position is outside the readable range, or one of an earlier topic, and the
                policy is to fail.
        """
        if self._is_of_another(answer):
            self._begin_again(answer)
        else:
            self.go_into_range(answer.log_start_offset, answer.start_offset)

    def go_into_range(self, log_start_offset: int, high_watermark: int) -> None:
        """Apply the plan's policy if the position is not in [log_start_offset, high_watermark].

        Raises:
            UnreadableOffsetError: the position is outside, and the policy is to fail.
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

    def _is_of_another(self, answer: FetchAnswer) -> bool:
        """Return whether the position is one of a deleted topic, and the response comes from a new one of that name.

        Raises:
            UnexpectedAnswerError: the response comes from a topic that is known to be deleted. Its node does not know
                of the deletion yet.
        """
        tag = answer.topic_tag
        if not tag or tag == self.topic_tag:
            return False
        if tag in self._former_tags:
            raise UnexpectedAnswerError(f"{self.name}: a node answers for a topic that was deleted")
        if self.topic_tag and isinstance(self.position, int):
            return True
        self._adopt(tag)
        return False

    def _adopt(self, topic_tag: str) -> None:
        if self.topic_tag:
            self._former_tags.add(self.topic_tag)
        self.topic_tag = topic_tag

    def _begin_again(self, answer: FetchAnswer) -> None:
        """Continue in the new topic at the start or end, by the policy, because the position was one of the old topic.

        Raises:
            UnreadableOffsetError: the policy is to fail.
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
        self._adopt(answer.topic_tag)
        is_earliest = policy is OnOutOfRange.EARLIEST
        self.position = answer.log_start_offset if is_earliest else answer.readable_end
        self.high_watermark, self.readable_end = answer.high_watermark, answer.readable_end

    def _check_bounds(self, answer: FetchAnswer) -> None:
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

    def _start_of(self, answer: FetchAnswer) -> int:
        """Return the response's start offset; if the reader requested a number, the offset must be the same."""
        if isinstance(self.position, int) and answer.start_offset != self.position:
            raise UnexpectedAnswerError(
                f"{self.name}: asked for offset {self.position}, answered {answer.start_offset}"
            )
        return answer.start_offset

    def _span(self, data: bytes, start: int, limit: int) -> "_Span | None":
        """Check all batches, and return where those with offsets in [start, limit) are in ``data``, or None."""
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

    def _past_hole(self, answer: FetchAnswer, start: int, limit: int) -> int:
        """Return the offset at which to continue after a response without batches, because compaction left a gap."""
        if answer.next_offset < start:
            raise UnexpectedAnswerError(
                f"{self.name}: asked for offset {start}, told to go on at {answer.next_offset}"
            )
        return max(start, min(answer.next_offset, limit))


@dataclass(frozen=True, slots=True)
class _Span:
    """The bytes [first, last) of a response, and the offsets of their batches: [base_offset, next_offset)."""

    first: int
    last: int
    base_offset: int
    next_offset: int
