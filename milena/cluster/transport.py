"""The calls of the data path: append a batch, fetch batches, get a producer id, begin and end transactions.

Each call is one attempt: at the preferred node, and then at other nodes if nothing was sent to it. The callers retry;
``milena.producing.retry`` decides which failures may be retried.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from milena.cluster.first_of import first_of
from milena.cluster.http import HttpCall, HttpSession, RawAnswer, json_of, read_answer, segment
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
"""How long a fetch may take beyond the time that the node may wait for records."""

APPEND_MARGIN_S = 1.0
"""How long an append may take beyond the node's own timeout, so that the node's response ends it."""

LOOK_MS = 2_000
"""Interval in which a waiting call checks whether the partition has another leader, in ms.

All waiting calls of a client share one check. So waiting costs one request every two seconds, however many partitions.
"""

FETCH_ANSWER_TIMES = 2
FETCH_ANSWER_BYTES_MIN = 64 << 20
"""The smallest limit of a response in bytes. A response has at least one whole batch, even above ``max_bytes``."""

_STABLE = "Milena-Last-Stable-Offset"
"""The header of the last stable offset. Nodes of earlier releases send the last stable offset as high watermark."""

_SMALL_ANSWER_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchAnswer:
    """Stored batches as a node sent them, not yet checked, and the offsets of the partition."""

    data: bytes
    start_offset: int
    next_offset: int
    high_watermark: int
    log_start_offset: int
    topic_tag: str = ""
    """The first digits of the topic's id; empty if the node does not report them."""
    last_stable_offset: int | None = None
    """The end (exclusive) of committed records; None: the node sent only ``high_watermark``, which then is this end."""

    @property
    def readable_end(self) -> int:
        """The exclusive end of what may be read."""
        return self.high_watermark if self.last_stable_offset is None else self.last_stable_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPart:
    """The acknowledged records of a transaction in one partition: their number, and the offset after the last one."""

    end_offset: int
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberOffsets:
    """Offsets that a transaction commits for a group; each is that of the next record to read.

    ``member_id`` is None for a group without members. ``topic_tags`` has the first digits of the ids of the topics that
    were read, as far as they are known.
    """

    group: str
    member_id: str | None
    member_epoch: int | None
    offsets: Mapping[TopicPartition, int]
    topic_tags: Mapping[TopicPartition, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendAnswer:
    """The first and last offset of an appended batch, both inclusive; None under ``acks=0``."""

    base_offset: int | None
    last_offset: int | None
    is_duplicate: bool


class ClusterTransport:
    """Calls to the nodes of one cluster. They raise the errors of ``milena.errors``."""

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
        """Fetch committed batches from a position on; wait up to ``wait_ms`` for the first one.

        ``is_verified``: the node verifies the checksums before it sends batches. If one fails, the node checks its
        replica. A node of an earlier release ignores this.

        Raises:
            OutOfRangeError: the partition has no such offset.
            TargetNotFoundError: there is no such partition.
            UnreachableError: no response.
            NotNowError: the node cannot serve the partition now.
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
                f"{what}: {answer.url} sent {answer.headers.get('Content-Type')} in place of {BATCH_TYPE}; "
                "is this a Milena node?"
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
        """Append one encoded batch; with ``if_match``, only if this is the partition's next offset.

        ``transaction`` is the value of the transaction header. ``key`` is an idempotency key for a batch without a
        producer: a batch that is sent several times with one key is written once.

        Raises:
            ConditionFailedError: ``if_match`` is not the next offset; this attempt wrote nothing.
            NotNowError, TooLargeError, UnreachableError: nothing was written.
            SequenceRefusedError, ProducerFencedError: this attempt wrote nothing.
            UnknownResultError, ServerFailedError, UnexpectedAnswerError: the batch may have been written. The last one
                is also raised if the offsets in the response do not fit the batch's number of records.
            AnswerError: nothing was written, and a retry would fail in the same way.
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
        """Send a call to the partition's leader; stop waiting if another node becomes the leader first.

        A node that hangs keeps its connections open, so without this check the call would wait for its full timeout.

        Raises:
            UnreachableError: another node leads now.
            ClientError: the errors of ``HttpSession.send``.
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
        """Mark the view stale if a response has a later leader epoch: another node leads, and this one forwards."""
        known = self._metadata.leader_epoch(topic, partition)
        if known is not None and leader_epoch > known:
            self._metadata.mark_stale(topic)

    async def allocate_producer(self, name: str | None = None) -> ProducerIdentity:
        """Allocate a producer id, or for a ``name`` the next epoch of its producer id.

        The new epoch fences the program that used the name before: its writes are refused.

        Raises:
            UnreachableError, NotNowError, ServerFailedError: nothing was allocated; ask again.
            UnknownResultError: an id may have been allocated; another call allocates another one.
        """
        body: dict[str, Json] = {} if name is None else {"name": name}
        fields = AnswerFields(await self._http.post("/producers", body), "producers")
        return ProducerIdentity(fields.integer("producer_id"), fields.integer("producer_epoch"))

    async def begin_transaction(
        self, transactional_id: str, *, timeout_ms: int
    ) -> ProducerIdentity:
        """Begin the next transaction of a transactional id; if the former one is still open, this aborts it.

        Raises:
            UnreachableError, NotNowError, ServerFailedError, UnknownResultError: not now; ask again.
        """
        body: dict[str, Json] = {"transactional_id": transactional_id, "timeout_ms": timeout_ms}
        call = HttpCall(
            method="POST",
            path="/transactions:begin",
            body=json.dumps(body).encode(),
            # A repeat is harmless: each begin ends the transaction of the one before.
            is_repeatable=True,
        )
        answer = json_of(await self._http.send(call), "POST /transactions:begin")
        fields = AnswerFields(answer, "transaction")
        return ProducerIdentity(fields.integer("producer_id"), fields.integer("producer_epoch"))

    async def commit_transaction(
        self,
        identity: ProducerIdentity,
        parts: Mapping[TopicPartition, WrittenPart],
        offsets: Sequence[MemberOffsets],
        *,
        until_visible: bool = True,
    ) -> int:
        """Commit acknowledged records and offsets; return the producer epoch of the next transaction.

        ``until_visible``: return when readers see the records, or after the node's limit for this wait. Otherwise
        return when the commit is decided.

        Raises:
            TransactionAbortedError: the transaction was aborted; none of its writes takes effect.
            ProducerFencedError, TargetNotFoundError: this call did not commit the transaction. An earlier call without
                a response may have.
            MemberFencedError, MemberUnknownError, StaleMemberError, GroupNotEmptyError: the member may not commit the
                offsets; otherwise as ``ProducerFencedError``.
            UnreachableError, NotNowError, ServerFailedError, UnknownResultError: the result is unknown; ask again.
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
        """Abort a transaction, so that none of its writes takes effect; return the epoch of the next transaction.

        Raises:
            ProducerFencedError: another transaction is open under the id.
            UnreachableError, NotNowError, ServerFailedError, UnknownResultError: the result is unknown; ask again.
        """
        return await self._end_transaction(identity, "abort", {})

    async def _end_transaction(
        self, identity: ProducerIdentity, verb: str, body: dict[str, Json], query: str = ""
    ) -> int:
        path = f"/transactions/{identity.producer_id}/{identity.producer_epoch}:{verb}{query}"
        return AnswerFields(await self._http.post(path, body), verb).integer("next_epoch")

    async def can_make_topic(self, topic: str) -> bool:
        """Return whether a topic exists, after creating it if nodes create missing topics on a write.

        The call sends an empty batch. A node looks for the topic, creates it if it may, and then refuses the batch.
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
            if tag := commit.topic_tags.get(where):
                row["topic_id"] = tag
            yield row


async def _end_of(task: "asyncio.Future[RawAnswer]") -> None:
    """Wait until the task is done, and ignore its result."""
    await asyncio.wait({task})


def _partition_path(topic: str, partition: int) -> str:
    return f"/topics/{segment(topic)}/partitions/{partition}"


def _position(position: Position) -> str:
    match position:
        case StartAt():
            return f"offset={position.value}"
        case TimestampMs(value):
            return f"timestamp={value}"
        case LastN(value):
            # ``offset=-0`` would mean offset 0, the first record.
            return f"offset=-{value}" if value > 0 else "offset=latest"
        case int():
            return f"offset={position}"


def _topic_tag(headers: Mapping[str, str]) -> str:
    """Return the topic's part of an ``ETag`` such as ``"9f3a12bc44de.42"``.

    Nodes of earlier releases send only the offset (``"42"``); return an empty text then.
    """
    tag, point, _ = headers.get("ETag", "").strip('"').rpartition(".")
    return tag if point else ""


def _offset_header(headers: Mapping[str, str], name: str, what: str) -> int:
    text = headers.get(name, "")
    # An offset has 64 bits, so at most 19 digits.
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise UnexpectedAnswerError(f"{what}: {name} is {text[:40]!r} in place of an offset")
    return int(text)
