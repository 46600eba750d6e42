"""Administration of a cluster over HTTP: topics, groups, transactions, nodes, and a view of the whole.

Any node responds to any request, so one URL is enough. Most methods are one or two HTTP calls. Only the cluster id is
cached, because it never changes.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from milena.cluster.access_admin import AccessAdmin
from milena.cluster.credentials import ANONYMOUS, Credentials
from milena.cluster.group_admin import PAGE_ROWS, GroupAdmin
from milena.cluster.http import HttpCall, HttpSession, json_of, segment
from milena.cluster.moves import Move, RequestedMove, planned_moves, running_moves
from milena.cluster.node_exam import NodeExam, examine, read_metrics
from milena.cluster.node_metrics import MetricsView
from milena.cluster.transactions import TransactionsView, open_transactions
from milena.cluster.view import ClusterView, NodeView, PartitionView, TopicSizes, TopicView
from milena.errors import NotNowError, UnexpectedAnswerError
from milena.fields import AnswerFields, Json, given
from milena.hints import Hinting, hinting
from milena.model.clock import Clock
from milena.records import TopicPartition

TIMEOUT_S = 15.0
"""The timeout of a call. It is longer than the longest election, so a call may succeed during one."""
_BATCH_TYPE = "application/vnd.milena.batch"
_START_OFFSET = "Milena-Start-Offset"
_NO_QUORUM = 50305
"""The error code with which a node reports that no majority of the metadata quorum responds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """The offsets of a partition. Committed records are read in [log_start_offset, last_stable_offset)."""

    partition: int
    log_start_offset: int
    high_watermark: int
    """The first offset that is not committed: every acknowledged record lies below it."""
    last_stable_offset: int
    """The high watermark, or the first offset of the earliest open transaction."""


class AdminClient(GroupAdmin, Hinting, hints="Admin"):
    """Administer the cluster that the node at ``url`` belongs to.

        async with AdminClient("http://127.0.0.1:8082") as admin:
            await admin.create_topic("orders", partitions=3)

    An asynchronous context manager, used from one event loop. Methods raise the errors of ``milena.errors``.
    """

    @hinting
    def __init__(
        self,
        url: str | Sequence[str],
        *,
        timeout_s: float = TIMEOUT_S,
        credentials: Credentials = ANONYMOUS,
    ) -> None:
        super().__init__(HttpSession(url, timeout_s=timeout_s, credentials=credentials))
        self._cluster_id: str | None = None

    @classmethod
    def over(cls, http: HttpSession) -> "AdminClient":
        """Return a client over a session that the caller opens and closes."""
        admin = cls(http.url)
        admin._http = http
        return admin

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.__aexit__()

    @property
    def url(self) -> str:
        """The URL of the first node that the client was given."""
        return self._http.url

    @property
    def access(self) -> AccessAdmin:
        """Administration of access: users, tokens, access control entries and the mode."""
        return AccessAdmin(self._http, self.cluster_id)

    async def cluster(self) -> ClusterView:
        """Return nodes, topics and leaders.

        Without a majority, they are as the responding node knows them (``is_current``).
        """
        return cluster_view(await self._http.get("/metadata"))

    async def has_majority(self) -> bool:
        """Return whether a majority of the metadata quorum responds, by the cheapest request that needs one.

        Raises:
            ClientError: the request failed for another reason.
        """
        try:
            await self._http.get("/brokers")
        except NotNowError as error:
            if error.error_code == _NO_QUORUM:
                return False
            raise
        return True

    async def node_metrics(self, url: str) -> MetricsView:
        """Return the metrics of the node at ``url``: its traffic, its replicas, its role in the quorum."""
        return await read_metrics(self._http, url)

    async def examine(self, node: NodeView, clock: Clock) -> NodeExam:
        """Return what the node reports about itself at its URL, or why it does not respond."""
        return await examine(self._http, node, clock)

    async def rebalance(
        self,
        *,
        drain: int | None = None,
        dry_run: bool = False,
        throttle: int | None = None,
        max_concurrent: int | None = None,
    ) -> list[RequestedMove]:
        """Balance the cluster, or empty one node (``drain``). The moves continue in the background.

        Args:
            drain: the id of the node to empty; None: balance all nodes.
            dry_run: return the moves, and make none.
            throttle: the most bytes per second that a node sends to new replicas; None: without limit.
            max_concurrent: the most partitions that move at a time; None: the cluster's default.

        Raises:
            TargetNotFoundError: there is no such node.
            AnswerError: the cluster cannot make these moves; the message says what to change.
        """
        body: dict[str, Json] = {"rebalance": True} if drain is None else {"drain": drain}
        body |= given(dry_run=dry_run, throttle_bytes_per_s=throttle, max_concurrent=max_concurrent)
        return planned_moves(await self._http.post("/reassignments", body))

    async def move_replicas(
        self,
        replicas: Mapping[TopicPartition, Sequence[int]],
        *,
        dry_run: bool = False,
        throttle: int | None = None,
        max_concurrent: int | None = None,
    ) -> list[RequestedMove]:
        """Move the replicas of partitions to other nodes. The moves continue in the background.

        Args:
            replicas: for each partition the ids of its new nodes, the preferred leader first.
            dry_run: return the moves, and make none.
            throttle: the most bytes per second that a node sends to new replicas; None: without limit.
            max_concurrent: the most partitions that move at a time; None: the cluster's default.

        Raises:
            TargetNotFoundError: no such topic, partition or node.
            AnswerError: the cluster cannot make these moves; the message says what to change.
        """
        moves: list[Json] = [
            {"topic": where.topic, "partition": where.partition, "replicas": list(nodes)}
            for where, nodes in replicas.items()
        ]
        body: dict[str, Json] = {"partitions": moves}
        body |= given(dry_run=dry_run, throttle_bytes_per_s=throttle, max_concurrent=max_concurrent)
        return planned_moves(await self._http.post("/reassignments", body))

    async def reassignments(self) -> list[Move]:
        """Return the partitions that are moving, and their progress."""
        return running_moves(await self._http.get("/reassignments"))

    async def cancel_reassignments(
        self, topic: str | None = None, partition: int | None = None
    ) -> list[RequestedMove]:
        """Cancel moves and return partitions to their former nodes: all, those of a topic, or one.

        Raises:
            TargetNotFoundError: there is no such topic or partition.
            AnswerError: too few of the former replicas are in sync.
        """
        params = given(topic=topic, partition=None if partition is None else str(partition))
        return planned_moves(await self._http.delete("/reassignments", params))

    async def cluster_id(self) -> str:
        """Return the cluster's id. Only the first call sends a request."""
        if self._cluster_id is None:
            answer = AnswerFields(await self._http.get("/v3/clusters"), "clusters")
            clusters = list(answer.objects("data"))
            if not clusters:
                raise UnexpectedAnswerError("the node knows of no cluster")
            self._cluster_id = clusters[0].text("cluster_id")
        return self._cluster_id

    async def topic_names(self) -> list[str]:
        """Return the names of all topics, sorted."""
        answer = await self._http.get("/topics")
        if not isinstance(answer, list):
            raise UnexpectedAnswerError("topics: expected a JSON list")
        return sorted(name for name in answer if isinstance(name, str))

    async def topic(self, name: str) -> TopicView:
        """Return one topic with its effective configs and partitions.

        Raises:
            TargetNotFoundError: there is no topic of this name.
        """
        return topic_view(await self._http.get(f"/topics/{segment(name)}"))

    async def offsets(self, topic: TopicView) -> list[OffsetRange]:
        """Return the readable range of every partition, requested in parallel."""
        return list(
            await asyncio.gather(
                *(self._offset_range(topic.name, p.partition) for p in topic.partitions)
            )
        )

    async def topic_sizes(self, name: str) -> TopicSizes:
        """Return the bytes that a topic stores on all nodes, and the configs that were set for it.

        Raises:
            TargetNotFoundError: there is no topic of this name.
        """
        path, found = f"/metadata/topics/{segment(name)}", dict[int, int | None]()
        while True:
            query = {"sizes": "all", "skip": str(len(found)), "limit": str(PAGE_ROWS)}
            answer = AnswerFields(await self._http.get(path, query), "topic")
            rows = list(answer.objects("partitions"))
            for row in rows:
                found[row.integer("partition")] = row.optional_integer("stored_bytes")
            if len(rows) < PAGE_ROWS:
                break
        return TopicSizes(
            topic_id=answer.text("topic_id"),
            stored_bytes=answer.optional_integer("stored_bytes"),
            silent_nodes=answer.integers("silent_nodes"),
            partition_bytes=found,
            set_configs=frozenset(answer.texts("configs")),
        )

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic. For a parameter that is None, the cluster uses its default.

        Args:
            name: 1 to 249 letters, digits, '.', '_' and '-'.
            partitions: the number of partitions.
            replication_factor: the number of copies of each partition.
            configs: the topic's configs by name, such as ``{"retention.ms": "86400000"}``; values are texts.

        Raises:
            TargetExistsError: the name is taken.
            AnswerError: a bad name, count or config; the message says what to change.
        """
        settings: list[Json] = [{"name": k, "value": v} for k, v in (configs or {}).items()]
        body: dict[str, Json] = {"topic_name": name, "configs": settings}
        body |= given(partitions_count=partitions, replication_factor=replication_factor)
        await self._http.post(f"/v3/clusters/{await self.cluster_id()}/topics", body)

    async def add_partitions(self, name: str, partitions: int) -> None:
        """Raise the number of a topic's partitions to ``partitions``; do nothing if it already has this number.

        Raises:
            TargetNotFoundError: there is no topic of this name.
            AnswerError: the topic already has more partitions, or the number is above the cluster's limit.
        """
        await self._http.patch(
            f"/v3/clusters/{await self.cluster_id()}/topics/{segment(name)}",
            {"partitions_count": partitions},
        )

    async def alter_configs(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Set (value) or reset (None) configs of a topic, all or none of them.

        Raises:
            TargetNotFoundError: there is no topic of this name.
            AnswerError: an unknown config or a bad value; the message names it.
        """
        data: list[Json] = [
            {"name": config, "operation": "DELETE"}
            if value is None
            else {"name": config, "value": value}
            for config, value in sorted(changes.items())
        ]
        await self._http.post(
            f"/v3/clusters/{await self.cluster_id()}/topics/{segment(name)}/configs:alter",
            {"data": data},
        )

    async def delete_records(self, topic: str, partition: int, before: int | None) -> int:
        """Delete the records below ``before`` permanently; None: all committed records. A repeat is harmless.

        Return the new first offset of the partition.

        Args:
            topic: the topic's name.
            partition: the partition's number, from 0.
            before: the first offset to keep.

        Raises:
            TargetNotFoundError: no such topic or partition.
            OutOfRangeError: ``before`` is above the high watermark; nothing was deleted.
        """
        body: dict[str, Json] = {"before_offset": "latest" if before is None else before}
        path = f"/topics/{segment(topic)}/partitions/{partition}/records:delete"
        answer = AnswerFields(await self._http.post(path, body), "records:delete")
        return answer.integer("log_start_offset")

    async def offset_at(self, topic: str, partition: int, time_ms: int) -> int:
        """Return the offset of the first record at or after a time; the high watermark if all are older.

        Args:
            topic: the topic's name.
            partition: the partition's number, from 0.
            time_ms: the time in ms since 1970.

        Raises:
            TargetNotFoundError: no such topic or partition.
        """
        path = f"/topics/{segment(topic)}/partitions/{partition}/records"
        answer = await self._http.send(
            HttpCall(
                method="GET",
                path=f"{path}?timestamp={time_ms}&count=1&max_bytes=1",
                accept=_BATCH_TYPE,
                is_repeatable=True,
            )
        )
        start = answer.headers.get(_START_OFFSET)
        if answer.status != 200 or start is None or not start.isdigit():
            json_of(answer, f"GET {path}")
            raise UnexpectedAnswerError(f"GET {path}: the answer names no offset")
        return int(start)

    async def remove_node(self, node_id: int) -> None:
        """Remove a node that is gone for good.

        Raises:
            TargetNotFoundError: there is no node of this id.
            AnswerError: the node is alive, holds replicas or is a voter; the message says what to do first.
        """
        await self._http.delete(f"/v3/clusters/{await self.cluster_id()}/brokers/{node_id}")

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records.

        Raises:
            TargetNotFoundError: there is no topic of this name.
        """
        await self._http.delete(f"/v3/clusters/{await self.cluster_id()}/topics/{segment(name)}")

    async def transactions(self, *, older_than_ms: int | None = None) -> TransactionsView:
        """Return the transactions that leaders hold open, the oldest first."""
        params = given(older_than_ms=None if older_than_ms is None else str(older_than_ms))
        return open_transactions(await self._http.get("/transactions", params))

    async def abort_transaction(self, producer_id: int, producer_epoch: int) -> None:
        """Abort a transaction, so that no reader of committed records sees its records. A repeat is harmless.

        Raises:
            TargetNotFoundError: there is no such producer.
            ProducerFencedError: the producer's current epoch is another one.
            AnswerError: the transaction is committed.
        """
        await self._http.post(f"/transactions/{producer_id}/{producer_epoch}:abort", {})

    async def node_id(self) -> int:
        """Return the id of the node at ``url``."""
        call = HttpCall(method="GET", path="/", is_repeatable=True)
        answer = json_of(await self._http.ask(self._http.url, call), "GET /")
        return AnswerFields(answer, "GET /").integer("node_id")

    async def drain(self, *, timeout_ms: int) -> bool:
        """Make the node at ``url`` hand its leaderships to other nodes; return True once it leads no partition.

        Return False if the time is over, or if no other node can lead some partition. The node stays draining
        until its process ends. The client's own timeout must be longer than ``timeout_ms``.
        """
        answer = await self._http.post("/drain", {"timeout_ms": timeout_ms}, only=self._http.url)
        return AnswerFields(answer, "drain").boolean("is_drained")

    async def _offset_range(self, topic: str, partition: int) -> OffsetRange:
        path = f"/topics/{segment(topic)}/partitions/{partition}/offsets"
        answer = AnswerFields(await self._http.get(path), "offsets")
        return OffsetRange(
            partition=partition,
            log_start_offset=answer.integer("beginning_offset"),
            high_watermark=answer.integer("end_offset"),
            # Nodes of earlier releases report only ``end_offset``, which then is the last stable offset.
            last_stable_offset=answer.integer(
                "last_stable_offset" if answer.has("last_stable_offset") else "end_offset"
            ),
        )


def cluster_view(answer: Json) -> ClusterView:
    """Return the body of ``GET /metadata`` as values."""
    fields = AnswerFields(answer, "metadata")
    return ClusterView(
        cluster_id=fields.text("cluster_id"),
        version=fields.integer("version"),
        controller_id=fields.optional_integer("controller_id"),
        nodes=tuple(sorted(map(_node_view, fields.objects("brokers")), key=lambda n: n.node_id)),
        topics=tuple(sorted(map(_metadata_topic, fields.objects("topics")), key=lambda t: t.name)),
        is_current=fields.boolean("is_current", False),
    )


def _node_view(fields: AnswerFields) -> NodeView:
    return NodeView(
        node_id=fields.integer("broker_id"),
        url=fields.text("url"),
        rack=fields.optional_text("rack"),
        is_live=not fields.boolean("is_fenced"),
        is_draining=fields.boolean("is_draining", default=False),
    )


def _metadata_topic(fields: AnswerFields) -> TopicView:
    # A cluster may have 100,000 partitions, so they are not read by ``AnswerFields.read``, which is slower.
    partitions = [
        PartitionView(
            partition=row.integer("partition"),
            leader=row.optional_integer("leader"),
            leader_epoch=row.integer("leader_epoch"),
            replicas=row.integers("replicas"),
            isr=row.integers("isr"),
        )
        for row in fields.objects("partitions")
    ]
    return fields.read(TopicView, partitions=tuple(sorted(partitions, key=lambda p: p.partition)))


def topic_view(answer: Json) -> TopicView:
    """Return the body of ``GET /topics/{name}`` as values. The body has no leader epochs, so they are -1."""
    fields = AnswerFields(answer, "topic")
    return fields.read(
        TopicView, partitions=tuple(map(_topic_partition, fields.objects("partitions")))
    )


def _topic_partition(fields: AnswerFields) -> PartitionView:
    replicas = list(fields.objects("replicas"))
    leader = fields.integer("leader", default=-1)
    return PartitionView(
        partition=fields.integer("partition"),
        leader=leader if leader >= 0 else None,
        leader_epoch=-1,
        replicas=tuple(r.integer("broker") for r in replicas),
        isr=tuple(r.integer("broker") for r in replicas if r.boolean("in_sync")),
    )
