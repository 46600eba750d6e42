"""The calls of the data path: append a batch, fetch batches, take a producer id.

One attempt each: the preferred node, and after it the others if nothing was sent. What a failure means for a retry is
``milena.producing.retry``'s business, and retrying that of the callers.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from milena.cluster.first_of import first_of
from milena.cluster.http import HttpCall, HttpSession, RawAnswer, json_of, read_answer
from milena.cluster.metadata import MetadataCache
from milena.errors import TargetNotFoundError, UnexpectedAnswerError, UnreachableError
from milena.fields import AnswerFields, Json
from milena.records import (
    Acks,
    LastN,
    Position,
    ProducerIdentity,
    StartAt,
    TimestampMs,
    TopicPartition,
)

BATCH_TYPE = "application/vnd.milena.batch"

FETCH_MARGIN_S = 5.0
"""What a fetch may take beyond the time that the node was asked to wait for records."""

APPEND_MARGIN_S = 1.0
"""What an append may take beyond the node's own time limit, so that the node's answer is what ends it."""

LOOK_MS = 2_000
"""A fetch that waits for this long looks whether the partition has another leader by now, and so on. All fetches of a
client share one look, so that waiting for records costs a call each two seconds, however many partitions."""

FETCH_ANSWER_TIMES = 2
FETCH_ANSWER_BYTES_MIN = 64 << 20
"""An answer holds at least one whole batch, however large, and the node bounds that."""

_STABLE = "Milena-Last-Stable-Offset"
"""Nodes of earlier releases do not send it: what they call the high watermark is it."""

_SMALL_ANSWER_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchAnswer:
    """Stored batches as a node sent them, not yet checked, and where the partition stands."""

    data: bytes
    start_offset: int
    next_offset: int
    high_watermark: int
    log_start_offset: int
    topic_tag: str = ""
    """First digits of the topic's id; empty: the node does not say."""
    last_stable_offset: int | None = None
    """Where reading of committed records ends; None: at the high watermark, or at what an earlier release calls so."""

    @property
    def readable_end(self) -> int:
        """Exclusive end of what may be read."""
        return self.high_watermark if self.last_stable_offset is None else self.last_stable_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPart:
    """What a transaction has acknowledged of one partition: so many records, all below ``end_offset``."""

    end_offset: int
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberOffsets:
    """Offsets that a transaction commits for a group; each that of the next record to read.

    ``member_id`` None: for a group without members.
    """

    group: str
    member_id: str | None
    member_epoch: int | None
    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendAnswer:
    """Where a batch went, both inclusive; None under ``acks=0``."""

    base_offset: int | None
    last_offset: int | None
    is_duplicate: bool


class ClusterTransport:
    """Calls to the nodes of one cluster; raises the errors of ``milena.errors``."""

    def __init__(self, http: HttpSession, metadata: MetadataCache) -> None:
        self._http = http
        self._metadata = metadata

    async def fetch(
        self,
        topic: str,
        partition: int,
        *,
        offset: Position,
        max_bytes: int,
        wait_ms: int,
        is_verified: bool = False,
    ) -> FetchAnswer:
        """Committed batches from a position on; waits up to ``wait_ms`` for the first.

        ``is_verified``: the node checks what it sends, and has its copy looked at where that is damaged; a node of an
        earlier release sends it as it is.

        Raises:
            OutOfRangeError: the partition has no such offset.
            TargetNotFoundError: there is no such partition.
            UnreachableError, NotNowError: no answer, or not now.
        """
        query = f"{_position(offset)}&max_bytes={max_bytes}&timeout={wait_ms}"
        if is_verified:
            query += "&verify=true"
        path = f"{_partition_path(topic, partition)}/records?{query}"
        call = HttpCall(
            method="GET",
            path=path,
            accept=BATCH_TYPE,
            answer_bytes_max=max(FETCH_ANSWER_TIMES * max_bytes, FETCH_ANSWER_BYTES_MIN),
            timeout_s=wait_ms / 1000 + FETCH_MARGIN_S,
            is_repeatable=True,
        )
        answer = await self._ask_leader(topic, partition, call)
        what = f"fetch {topic}-{partition}"
        if answer.status != 200:
            json_of(answer, what)
            raise UnexpectedAnswerError(f"{what}: HTTP {answer.status}")
        if answer.headers.get("Content-Type") != BATCH_TYPE:
            raise UnexpectedAnswerError(
                f"{what}: {answer.url} sent {answer.headers.get('Content-Type')} in place of {BATCH_TYPE}"
            )
        if "Milena-Leader-Epoch" in answer.headers:
            leader_epoch = _offset_header(answer.headers, "Milena-Leader-Epoch", what)
            self._notice_epoch(topic, partition, leader_epoch)
        return FetchAnswer(
            data=answer.body,
            start_offset=_offset_header(answer.headers, "Milena-Start-Offset", what),
            next_offset=_offset_header(answer.headers, "Milena-Next-Offset", what),
            high_watermark=_offset_header(answer.headers, "Milena-High-Watermark", what),
            log_start_offset=_offset_header(answer.headers, "Milena-Log-Start-Offset", what),
            last_stable_offset=_offset_header(answer.headers, _STABLE, what)
            if _STABLE in answer.headers
            else None,
            topic_tag=_topic_tag(answer.headers),
        )

    async def append(
        self,
        topic: str,
        partition: int,
        batch: bytes,
        *,
        acks: Acks,
        timeout_ms: int,
        if_match: int | None,
        transaction: str | None = None,
        key: str | None = None,
    ) -> AppendAnswer:
        """Append one encoded batch, whose record count the answer must match; with ``if_match`` if that is its offset.

        ``transaction``: which it belongs to, as its beginning said. ``key``: where the batch names no producer, what it
        is recognised by; it is written once however often it comes under this.

        Raises:
            ConditionFailedError: it is not; nothing was written by this attempt.
            NotNowError, TooLargeError, UnreachableError: nothing was written.
            SequenceRefusedError, ProducerFencedError: nothing was written by this attempt.
            UnknownResultError, ServerFailedError, UnexpectedAnswerError: it may have been written.
            AnswerError: nothing was written, and nothing will be.
        """
        query = f"acks={acks}&timeout_ms={timeout_ms}"
        call = HttpCall(
            method="POST",
            path=f"{_partition_path(topic, partition)}/records?{query}",
            body=batch,
            content_type=BATCH_TYPE,
            answer_bytes_max=_SMALL_ANSWER_BYTES_MAX,
            timeout_s=timeout_ms / 1000 + APPEND_MARGIN_S,
            if_match=if_match,
            transaction=transaction,
            idempotency_key=key,
            is_repeatable=key is not None,
        )
        what = f"append to {topic}-{partition}"
        leader = await self._metadata.leader_url(topic, partition)
        fields = AnswerFields(json_of(await self._http.send(call, preferred=leader), what), what)
        self._notice_epoch(topic, partition, fields.integer("leader_epoch", default=-1))
        return AppendAnswer(
            base_offset=fields.optional_integer("base_offset"),
            last_offset=fields.optional_integer("last_offset"),
            is_duplicate=fields.boolean("is_duplicate", default=False),
        )

    async def _ask_leader(self, topic: str, partition: int, call: HttpCall) -> RawAnswer:
        """The answer, unless the partition gets another leader meanwhile: a node that stands still may still be asked.

        Raises:
            UnreachableError: another node leads by now; and as ``HttpSession.send``.
        """
        leader = await self._metadata.leader_url(topic, partition)
        epoch = self._metadata.leader_epoch(topic, partition)
        task = asyncio.ensure_future(self._http.send(call, preferred=leader))
        try:
            while not (await asyncio.wait({task}, timeout=LOOK_MS / 1000))[0]:
                await first_of(self._metadata.look_again(LOOK_MS), _end_of(task))
                later = self._metadata.leader_epoch(topic, partition)
                if not task.done() and later is not None and later != epoch and epoch is not None:
                    raise UnreachableError(
                        f"{topic}-{partition} has another leader, and {leader} has not answered"
                    )
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    def _notice_epoch(self, topic: str, partition: int, leader_epoch: int) -> None:
        """Another node leads by now. The one that was asked forwards, until it stops: better to know before."""
        known = self._metadata.leader_epoch(topic, partition)
        if known is not None and leader_epoch > known:
            self._metadata.mark_stale(topic)

    async def allocate_producer(self, name: str | None = None) -> ProducerIdentity:
        """A new id, or the next epoch of a name, which fences the name's former holder.

        Raises:
            UnreachableError, NotNowError, ServerFailedError: no answer, or not now.
            UnknownResultError: an id may have been taken; asking again takes another.
        """
        body: dict[str, Json] = {} if name is None else {"name": name}
        fields = AnswerFields(await self._http.post("/producers", body), "producers")
        return ProducerIdentity(fields.integer("producer_id"), fields.integer("producer_epoch"))

    async def begin_transaction(
        self, transactional_id: str, *, timeout_ms: int
    ) -> ProducerIdentity:
        """The next transaction under an id, which aborts what its former holder left open.

        Raises:
            UnreachableError, NotNowError, ServerFailedError, UnknownResultError: not now; ask again.
        """
        body: dict[str, Json] = {"transactional_id": transactional_id, "timeout_ms": timeout_ms}
        fields = AnswerFields(await self._http.post("/transactions:begin", body), "transaction")
        return ProducerIdentity(fields.integer("producer_id"), fields.integer("producer_epoch"))

    async def commit_transaction(
        self,
        identity: ProducerIdentity,
        parts: Mapping[TopicPartition, WrittenPart],
        offsets: Sequence[MemberOffsets],
        *,
        until_visible: bool = True,
    ) -> int:
        """Commit what was written and acknowledged, and offsets; returns the epoch of the id's next transaction.

        ``until_visible``: once readers see it, or the node has waited for that long enough; else once it is decided.

        Raises:
            TransactionAbortedError: nothing of it counts.
            ProducerFencedError, TargetNotFoundError: nor does it, unless a call before has had no answer.
            MemberFencedError, MemberUnknownError, StaleMemberError, GroupNotEmptyError: likewise; the offsets are not
                the member's.
            UnreachableError, NotNowError, ServerFailedError, UnknownResultError: not known; ask again.
        """
        writes: list[Json] = [
            {
                "topic": where.topic,
                "partition": where.partition,
                "end_offset": part.end_offset,
                "records": part.records,
            }
            for where, part in sorted(parts.items())
        ]
        body: dict[str, Json] = {"writes": writes, "offsets": list(_offset_rows(offsets))}
        query = "" if until_visible else "?until=committed"
        return await self._end_transaction(identity, "commit", body, query)

    async def abort_transaction(self, identity: ProducerIdentity) -> int:
        """Let nothing count of it; returns the epoch of the id's next transaction.

        Raises:
            ProducerFencedError: another one is open under the id.
            UnreachableError, NotNowError, ServerFailedError, UnknownResultError: not known; ask again.
        """
        return await self._end_transaction(identity, "abort", {})

    async def _end_transaction(
        self, identity: ProducerIdentity, verb: str, body: dict[str, Json], query: str = ""
    ) -> int:
        path = f"/transactions/{identity.producer_id}/{identity.producer_epoch}:{verb}{query}"
        return AnswerFields(await self._http.post(path, body), verb).integer("next_epoch")

    async def can_make_topic(self, topic: str) -> bool:
        """Whether a topic is there now, made by this very question where nodes make topics on their first write.

        The question is a write of an empty batch, which every node refuses, but not before it looked for the topic.
        """
        call = HttpCall(
            method="POST",
            path=f"{_partition_path(topic, 0)}/records",
            body=b"",
            content_type=BATCH_TYPE,
            answer_bytes_max=_SMALL_ANSWER_BYTES_MAX,
        )
        answer = await self._http.send(call)
        if answer.status == 422:
            return True
        try:
            read_answer(answer.status, answer.body, f"topic {topic}")
        except TargetNotFoundError:
            return False
        raise UnexpectedAnswerError(f"topic {topic}: a node took an empty batch")


def _offset_rows(offsets: Sequence[MemberOffsets]) -> Iterator[Json]:
    for commit in offsets:
        for where, offset in sorted(commit.offsets.items()):
            row: dict[str, Json] = {
                "group": commit.group,
                "topic": where.topic,
                "partition": where.partition,
                "next_offset": offset,
            }
            if commit.member_id is not None:
                row["member_id"] = commit.member_id
                row["member_epoch"] = commit.member_epoch
            yield row


async def _end_of(task: "asyncio.Future[RawAnswer]") -> None:
    """Return when it is done, whatever it came to."""
    await asyncio.wait({task})


def _partition_path(topic: str, partition: int) -> str:
    return f"/topics/{quote(topic, safe='')}/partitions/{partition}"


def _position(position: Position) -> str:
    match position:
        case StartAt():
            return f"offset={position.value}"
        case TimestampMs(value):
            return f"timestamp={value}"
        case LastN(value):
            # "The last 0" would read as offset 0.
            return f"offset=-{value}" if value > 0 else "offset=latest"
        case int():
            return f"offset={position}"


def _topic_tag(headers: Mapping[str, str]) -> str:
    """The topic of an ``ETag``, which is ``"9f3a12bc44de.42"``; a node of an earlier release names the offset alone."""
    tag, point, _ = headers.get("ETag", "").strip('"').rpartition(".")
    return tag if point else ""


def _offset_header(headers: Mapping[str, str], name: str, what: str) -> int:
    text = headers.get(name, "")
    # More digits than 64 bits hold are no offset.
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise UnexpectedAnswerError(f"{what}: {name} is {text[:40]!r} in place of an offset")
    return int(text)
