"""Milena as a contender: a cluster of real nodes, its topics, and the requests that clients send."""

import ssl
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from loadtest.bench.clients.http_load import Ask, HttpLoad, encode_request
from loadtest.bench.measuring.rounds import Turn
from loadtest.cluster.local_cluster import LocalCluster, LocalNode
from milena.cluster.admin import AdminClient
from milena.cluster.credentials import ANONYMOUS, Credentials
from milena.cluster.http import HttpSession
from milena.model.batch.encode import encode_batch
from milena.model.columns import RecordColumns

JSON_TYPE = "application/vnd.kafka.json.v2+json"
BATCH_TYPE = "application/vnd.milena.batch"
_NEVER = str((1 << 63) - 1)
_ACKNOWLEDGED = b'"error_code":null'
_APPENDED = b'"base_offset":'
_KEPT_BYTES = 300 << 20
"""The most bytes that a topic keeps on each node, so that a run does not fill the disk."""
_RETENTION_CHECK_MS = 1_000
_ADMIN_S = 30.0


class Subject(LocalCluster):
    """The nodes under test. Entering the asynchronous context starts them, and leaving it kills them."""

    def __init__(
        self,
        directory: Path,
        *,
        node_count: int = 3,
        settings: Mapping[str, str] | None = None,
        credentials: Credentials = ANONYMOUS,
    ) -> None:
        """``settings`` are more environment variables of the nodes; ``credentials`` are for readiness checks."""
        environment = {"MILENA_RETENTION_CHECK_MS": str(_RETENTION_CHECK_MS), **(settings or {})}
        super().__init__(
            directory, node_count=node_count, environment=environment, credentials=credentials
        )

    @property
    def pids(self) -> tuple[int, ...]:
        """Return the process ids of the running nodes."""
        return tuple(
            node.process.pid
            for node in self.nodes
            if node.process.is_running and node.process.pid is not None
        )

    async def create_topic(
        self,
        name: str,
        *,
        is_durable: bool,
        is_bounded: bool = True,
        partitions: int = 1,
        replicas: int | None = None,
    ) -> str:
        """Create a topic; return the URL of its first partition's leader. ``replicas`` None means one on every node."""
        configs = {} if is_durable else {"flush.messages": _NEVER}
        if is_bounded:
            configs["retention.bytes"] = str(_KEPT_BYTES)
        async with AdminClient(self.nodes[0].url, credentials=self._credentials) as admin:
            await admin.create_topic(
                name,
                partitions=partitions,
                replication_factor=replicas or len(self.nodes),
                configs=configs,
            )
            topic = await admin.topic(name)
        leader = topic.partitions[0].leader
        assert leader is not None, "a new topic has leaders"
        return self.node(leader).url

    async def leader_urls(self, name: str) -> list[str]:
        """Return the URL of the leader of each partition of a topic."""
        async with AdminClient(self.nodes[0].url, credentials=self._credentials) as admin:
            topic = await admin.topic(name)
        leaders = [partition.leader for partition in topic.partitions]
        return [self.node(leader).url for leader in leaders if leader is not None]

    async def cluster_id(self) -> str:
        """Return the cluster's id, with which v3's paths start."""
        async with AdminClient(self.nodes[0].url, credentials=self._credentials) as admin:
            return await admin.cluster_id()

    async def place_topic(self, name: str, *nodes: LocalNode) -> Path:
        """Create a topic of one partition on these nodes, led by the first; return the partition's folder on it."""
        async with HttpSession(self.nodes[0].url, timeout_s=_ADMIN_S) as http:
            admin = AdminClient.over(http)
            await http.post(
                f"/v3/clusters/{await admin.cluster_id()}/topics",
                {
                    "topic_name": name,
                    "replicas_assignments": {"0": [node.node_id for node in nodes]},
                },
            )
            view = await admin.cluster()
        (topic_id,) = (topic.topic_id for topic in view.topics if topic.name == name)
        assert topic_id is not None, "a node tells the ids of its topics"
        return Path("topics") / topic_id / "0"

    async def controller_url(self) -> str:
        """Return the URL of the node that leads the metadata quorum."""
        async with AdminClient(self.nodes[0].url, credentials=self._credentials) as admin:
            view = await admin.cluster()
        assert view.controller_id is not None, "the cluster is ready"
        return self.node(view.controller_id).url


def json_ask(url: str, topic: str, *, records: int, size: int, acks: str) -> Ask:
    """Return requests with JSON strings, each of ``size`` bytes including its quotes."""
    record = b'{"value":"' + b"x" * (size - 2) + b'"}'
    body = b'{"records":[' + b",".join([record] * records) + b"]}"
    request = encode_request(
        url, "POST", f"/topics/{topic}?acks={acks}", body, Content_Type=JSON_TYPE
    )
    return Ask(requests=[request], units=records, proof=_ACKNOWLEDGED, proof_count=records)


def batch_of(records: int, size: int) -> bytes:
    """Return an encoded batch of equal records."""
    columns = RecordColumns(
        offset_deltas=None,
        timestamp_deltas=None,
        keys=None,
        values=[b"x" * size] * records,
        headers=None,
    )
    return encode_batch(columns, base_timestamp_ms=int(time.time() * 1000))


def batch_ask(
    url: str, topic: str, *, records: int, size: int, acks: str, partition: int = 0
) -> Ask:
    """Return requests with one encoded batch of equal records each."""
    batch = batch_of(records, size)
    return encoded_ask(url, topic, batch, records=records, acks=acks, partition=partition)


def encoded_ask(
    url: str, topic: str, batch: bytes, *, records: int, acks: str, partition: int
) -> Ask:
    """Return requests with this batch, which has ``records`` records."""
    path = f"/topics/{topic}/partitions/{partition}/records?acks={acks}"
    request = encode_request(url, "POST", path, batch, Content_Type=BATCH_TYPE)
    return Ask(requests=[request], units=records, proof=_APPENDED)


def fetch_ask(url: str, topic: str, offsets: Sequence[int], *, max_bytes: int) -> Ask:
    """Return fetches of stored batches, each from the next of these offsets."""
    return Ask(
        requests=[
            encode_request(
                url,
                "GET",
                f"/topics/{topic}/partitions/0/records?offset={offset}&max_bytes={max_bytes}",
                Accept=BATCH_TYPE,
            )
            for offset in offsets
        ],
        units=1,
    )


async def http_turn(
    url: str, ask: Ask, *, connections: int, seconds: float, tls: ssl.SSLContext | None = None
) -> Turn:
    """Load a server for ``seconds``; return the turn.

    Raises:
        HttpLoadError: the server did not do the work.
    """
    load = HttpLoad(url, ask, connections=connections, tls=tls)
    await load.open()
    try:
        took_s = await load.run(seconds)
    finally:
        load.close()
    return Turn(
        latencies_s=load.latencies_s,
        units=ask.units * len(load.latencies_s),
        seconds=took_s,
    )
