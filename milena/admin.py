"""Administration of a cluster over HTTP: topics, and a view of the whole.

Any node answers any request, so one URL is enough. Every method is one or two HTTP calls; nothing is cached but the
cluster id, which never changes.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import quote

from milena.cluster_view import ClusterView, NodeView, PartitionView, TopicView
from milena.errors import UnexpectedAnswerError
from milena.fields import Fields, Json
from milena.http import HttpSession

TIMEOUT_S = 15.0
"""Longer than the longest election, so that an answer that comes late is still seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Readable offsets of a partition: [log_start_offset, high_watermark)."""

    partition: int
    log_start_offset: int
    high_watermark: int


class AdminClient:
    """Administers the cluster that a node of it, at ``url``, belongs to.

    An asynchronous context manager, used from one event loop. Methods raise the errors of ``milena.errors``.
    """

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self._http = HttpSession(url, timeout_s=timeout_s)
        self._cluster_id: str | None = None

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._http.__aexit__(kind, error, trace)

    @property
    def url(self) -> str:
        """The node that is asked."""
        return self._http.url

    async def cluster(self) -> ClusterView:
        """Nodes, topics and leaders, as the node that is asked sees them."""
        return cluster_view(await self._http.get("/metadata"))

    async def cluster_id(self) -> str:
        """The cluster's id; asked once."""
        if self._cluster_id is None:
            answer = Fields(await self._http.get("/v3/clusters"), "clusters")
            clusters = list(answer.objects("data"))
            if not clusters:
                raise UnexpectedAnswerError("the node knows of no cluster")
            self._cluster_id = clusters[0].text("cluster_id")
        return self._cluster_id

    async def topic_names(self) -> list[str]:
        """Names of all topics, sorted."""
        answer = await self._http.get("/topics")
        if not isinstance(answer, list):
            raise UnexpectedAnswerError("topics: expected a JSON list")
        return sorted(name for name in answer if isinstance(name, str))

    async def topic(self, name: str) -> TopicView:
        """One topic with its effective configs and partitions.

        Raises:
            TargetNotFoundError: there is none of this name.
        """
        return topic_view(await self._http.get(f"/topics/{quote(name, safe='')}"))

    async def offsets(self, topic: TopicView) -> list[OffsetRange]:
        """The readable range of every partition, asked for at once."""
        return list(
            await asyncio.gather(
                *(self._offset_range(topic.name, p.partition) for p in topic.partitions)
            )
        )

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic; None leaves the choice to the cluster.

        Raises:
            TargetExistsError: the name is taken.
            AnswerError: a bad name, count or config; the message says what to change.
        """
        settings: list[Json] = [{"name": k, "value": v} for k, v in (configs or {}).items()]
        body: dict[str, Json] = {"topic_name": name, "configs": settings}
        if partitions is not None:
            body["partitions_count"] = partitions
        if replication_factor is not None:
            body["replication_factor"] = replication_factor
        await self._http.post(f"/v3/clusters/{await self.cluster_id()}/topics", body)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records.

        Raises:
            TargetNotFoundError: there is none of this name.
        """
        await self._http.delete(
            f"/v3/clusters/{await self.cluster_id()}/topics/{quote(name, safe='')}"
        )

    async def _offset_range(self, topic: str, partition: int) -> OffsetRange:
        path = f"/topics/{quote(topic, safe='')}/partitions/{partition}/offsets"
        answer = Fields(await self._http.get(path), "offsets")
        return OffsetRange(
            partition=partition,
            log_start_offset=answer.integer("beginning_offset"),
            high_watermark=answer.integer("end_offset"),
        )


def cluster_view(answer: Json) -> ClusterView:
    """The body of ``GET /metadata`` as values."""
    fields = Fields(answer, "metadata")
    return ClusterView(
        cluster_id=fields.text("cluster_id"),
        version=fields.integer("version"),
        controller_id=fields.optional_integer("controller_id"),
        nodes=tuple(sorted(map(_node_view, fields.objects("brokers")), key=lambda n: n.node_id)),
        topics=tuple(sorted(map(_metadata_topic, fields.objects("topics")), key=lambda t: t.name)),
    )


def _node_view(fields: Fields) -> NodeView:
    return NodeView(
        node_id=fields.integer("broker_id"),
        url=fields.text("url"),
        rack=fields.optional_text("rack"),
        is_live=not fields.boolean("is_fenced"),
        is_draining=fields.boolean("is_draining", default=False),
    )


def _metadata_topic(fields: Fields) -> TopicView:
    partitions = (
        PartitionView(
            partition=p.integer("partition"),
            leader=p.optional_integer("leader"),
            leader_epoch=p.integer("leader_epoch"),
            replicas=p.integers("replicas"),
            isr=p.integers("isr"),
        )
        for p in fields.objects("partitions")
    )
    return TopicView(
        name=fields.text("name"),
        partitions=tuple(sorted(partitions, key=lambda p: p.partition)),
        configs=fields.texts("configs"),
    )


def topic_view(answer: Json) -> TopicView:
    """The body of ``GET /topics/{name}`` as values. It has no leader epochs: they read as -1."""
    fields = Fields(answer, "topic")
    return TopicView(
        name=fields.text("name"),
        configs=fields.texts("configs"),
        partitions=tuple(map(_topic_partition, fields.objects("partitions"))),
    )


def _topic_partition(fields: Fields) -> PartitionView:
    replicas = list(fields.objects("replicas"))
    leader = fields.integer("leader", default=-1)
    return PartitionView(
        partition=fields.integer("partition"),
        leader=leader if leader >= 0 else None,
        leader_epoch=-1,
        replicas=tuple(r.integer("broker") for r in replicas),
        isr=tuple(r.integer("broker") for r in replicas if r.boolean("in_sync")),
    )
