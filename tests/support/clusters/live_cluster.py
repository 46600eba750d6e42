"""Real nodes for tests, used like a client uses them: plain HTTP, one call at a time, without the node's code.

Tests wait only with ``eventually``, which repeats a question until the answer is right or the deadline has passed.
Deadlines are long, because they take time only if something is broken.
"""

import asyncio
import http.client
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlencode, urlsplit

from loadtest.cluster.local_cluster import LocalCluster, LocalNode
from loadtest.cluster.node_process import NodeProcess
from milena.cluster.credentials import ANONYMOUS, Credentials
from milena.model.batch.encode import encode_batch
from milena.model.batch.header import ProducerStamp
from milena.model.columns import RecordColumns
from milena.model.types import Codec

DEADLINE_S = 60.0
READY_S = 180.0
POLL_S = 0.05
ANSWER_S = 60.0
SESSION_MS = 8_000
"""The session timeout of brokers, longer than the stall of a busy machine.

A session that ends refuses writes until the next heartbeat, and its leaders are replaced. A killed node is noticed at
once in any case, a paused node when its session ends.
"""
JSON = "application/json"
NO_QUORUM = b'"error_code":50305'
"""The error code of a refusal because there is no Raft leader or no majority. Nothing was done."""
UNREACHED = b'"error_code":50302'
"""The error code of a refusal because the leader did not respond. A node waits two seconds for another node's reads."""
ELECTION_S_MAX = 20.0
SECRET = "local-cluster"
BATCH = "application/vnd.milena.batch"
BASE_TIMESTAMP_MS = (int(time.time()) - 3600) * 1000
"""The base timestamp of encoded batches: an hour ago. Retention would delete much older records."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, repr=False)
class Answer:
    """An HTTP response of a node."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def __repr__(self) -> str:
        return f"Answer({self.status} {self.body[:300]!r})"

    @property
    def json(self) -> Any:
        """Return the body, which must be JSON."""
        return json.loads(self.body)

    @property
    def refusal(self) -> tuple[int, int]:
        """Return the status and the error code of an error response."""
        assert self.status >= 400, self
        return self.status, self.json["error_code"]


class HasUrl(Protocol):
    """A node that can be called."""

    @property
    def url(self) -> str: ...


def call(
    node: HasUrl,
    line: str,
    body: object = None,
    *,
    content_type: str = JSON,
    headers: Mapping[str, str] | None = None,
    is_patient: bool = True,
    **query: object,
) -> Answer:
    """Send a request: ``call(node, "GET /topics/t", offset=3)``. See ``call_with``."""
    return call_with(
        node, line, body, query, content_type=content_type, headers=headers, is_patient=is_patient
    )


def call_with(
    node: HasUrl,
    line: str,
    body: object,
    query: Mapping[str, object],
    *,
    content_type: str = JSON,
    headers: Mapping[str, str] | None = None,
    is_patient: bool = True,
) -> Answer:
    """Send a request. A body that is not bytes is sent as JSON.

    A patient call repeats a request that was refused because there is no Raft leader. A machine that stalls may cause
    an election, and a node waits only three seconds for its end. A patient call also repeats a read that did not reach
    the leader.
    """
    method, path = line.split(" ")
    if query:
        path += "?" + urlencode(query)
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    sent = {**({} if body is None else {"Content-Type": content_type}), **(headers or {})}
    end = time.monotonic() + ELECTION_S_MAX
    while True:
        answer = _ask(node, method, path, body, sent)
        is_passing = answer.status == 503 and (
            NO_QUORUM in answer.body or (method == "GET" and UNREACHED in answer.body)
        )
        if not (is_patient and is_passing) or time.monotonic() > end:
            return answer
        time.sleep(POLL_S)


def _ask(
    node: HasUrl, method: str, path: str, body: bytes | None, sent: Mapping[str, str]
) -> Answer:
    where = urlsplit(node.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=ANSWER_S)
    try:
        connection.request(method, path, body=body, headers=dict(sent))
        response = connection.getresponse()
        return Answer(response.status, dict(response.headers), response.read())
    except OSError as error:
        raise ConnectionError(f"{method} {node.url}{path}: {error}") from None
    finally:
        connection.close()


def ok(answer: Answer) -> Any:
    """Return the JSON of a response, which must be a success."""
    assert 200 <= answer.status < 300, answer
    return json.loads(answer.body) if answer.body else None


def eventually(check: Callable[[], T], *, deadline_s: float = DEADLINE_S) -> T:
    """Repeat ``check`` until it returns a true value without a failed assertion or connection; return that value."""
    end = time.monotonic() + deadline_s
    while True:
        try:
            found = check()
            assert found, f"still {found!r}"
        except (AssertionError, OSError, http.client.HTTPException):
            if time.monotonic() > end:
                raise
        else:
            return found
        time.sleep(POLL_S)


@contextmanager
def in_background(work: Callable[[], T]) -> Iterator["Future[T]"]:
    """Run ``work`` on its own thread; leaving the block waits for its end."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(work)


@contextmanager
def running_cluster(
    directory: Path,
    *,
    node_count: int = 3,
    credentials: Credentials = ANONYMOUS,
    own_options: Sequence[Mapping[str, str]] = (),
    **options: object,
) -> Iterator[LocalCluster]:
    """Start nodes and wait until they are ready. ``credentials`` are for waiting.

    ``options`` are settings of all nodes, ``own_options`` those of each node alone.
    """
    environment = {f"MILENA_{name.upper()}": str(value) for name, value in options.items()}
    environment.setdefault("MILENA_CLUSTER_SECRET", SECRET)
    environment.setdefault("MILENA_BROKER_SESSION_MS", str(SESSION_MS))
    # Disable leader balancing: it could move a leader between the moment a test finds it and the moment it acts on it.
    environment.setdefault("MILENA_LEADER_BALANCE_INTERVAL_MS", "0")
    cluster = LocalCluster(
        directory,
        node_count=node_count,
        environment=environment,
        credentials=credentials,
        own_options=own_options,
    )
    try:
        cluster.start()
        wait_ready(cluster)
        yield cluster
    finally:
        cluster.kill()


def start_command(*options: str, log_path: Path, **settings: object) -> NodeProcess:
    """Return a process for ``milena start``, not yet started, with the cluster secret of ``running_cluster``."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("MILENA_")}
    given = {f"MILENA_{name.upper()}": str(value) for name, value in settings.items()}
    return NodeProcess(
        (sys.executable, "-m", "milena", "start", *options),
        environment={**inherited, "MILENA_CLUSTER_SECRET": SECRET, **given},
        log_path=log_path,
    )


def wait_ready(cluster: LocalCluster, *nodes: LocalNode) -> None:
    """Wait until these nodes (default: all) are ready."""
    asyncio.run(cluster.wait_ready(*nodes, timeout_s=READY_S))


def restart(cluster: LocalCluster, *nodes: LocalNode) -> None:
    """Start the nodes that do not run, and wait until all are ready."""
    for node in nodes:
        node.process.start()
    wait_ready(cluster, *nodes)


# -- topics ----------------------------------------------------------------------------------------


def create_topic(
    node: LocalNode,
    topic: str,
    *,
    partitions: int = 1,
    replicas: int = 3,
    **configs: object,
) -> str:
    """Create a topic and return its name; ``min_insync_replicas=1`` is ``min.insync.replicas``."""
    body = {
        "topic_name": topic,
        "partitions_count": partitions,
        "replication_factor": replicas,
        "configs": [
            {"name": name.replace("_", "."), "value": str(value)} for name, value in configs.items()
        ],
    }
    ok(call(node, "POST /admin/topics", body))
    return topic


def cluster_id(node: LocalNode) -> str:
    """Return the cluster's id, which v3's paths contain."""
    return str(ok(call(node, "GET /v3/clusters"))["data"][0]["cluster_id"])


def delete_topic(node: LocalNode, topic: str) -> None:
    """Delete a topic."""
    ok(call(node, f"DELETE /v3/clusters/{cluster_id(node)}/topics/{topic}"))


def metadata(node: LocalNode, **query: object) -> Any:
    """Return the node's view of the cluster."""
    return ok(call_with(node, "GET /metadata", None, query))


def partition_state(node: LocalNode, topic: str, partition: int = 0) -> Any:
    """Return the leader, leader epoch, replicas and in-sync replicas, as this node knows them."""
    topics = {t["name"]: t for t in metadata(node)["topics"]}
    assert topic in topics, sorted(topics)
    return topics[topic]["partitions"][partition]


def leader_of(cluster: LocalCluster, topic: str, partition: int = 0) -> LocalNode:
    """Return the node that leads a partition, as a running node reports it."""
    asked = next(node for node in cluster.nodes if node.process.is_running)
    leader = eventually(lambda: partition_state(asked, topic, partition)["leader"])
    return cluster.node(leader)


def others(cluster: LocalCluster, *nodes: LocalNode) -> list[LocalNode]:
    """Return all nodes except these."""
    return [node for node in cluster.nodes if node not in nodes]


def wait_in_sync(cluster: LocalCluster, topic: str, partition: int = 0) -> None:
    """Wait until all nodes report every replica as in sync."""

    def is_whole() -> bool:
        states = [partition_state(node, topic, partition) for node in cluster.nodes]
        return all(sorted(s["isr"]) == sorted(s["replicas"]) and s["leader"] for s in states)

    eventually(is_whole)


# -- records ---------------------------------------------------------------------------------------


def write(
    node: LocalNode,
    topic: str,
    *values: object,
    partition: int | None = None,
    key: str | None = None,
    **query: object,
) -> Answer:
    """Produce JSON values; ``key`` is the Idempotency-Key header."""
    path = f"/topics/{topic}" + ("" if partition is None else f"/partitions/{partition}")
    headers = {} if key is None else {"Idempotency-Key": key}
    body = {"records": [{"value": value} for value in values]}
    return call_with(node, f"POST {path}", body, query, headers=headers)


def offsets_of(answer: Answer) -> list[tuple[int, int]]:
    """Return the partition and offset of each written record."""
    receipts = ok(answer)["offsets"]
    assert all(receipt["error_code"] is None for receipt in receipts), receipts
    return [(receipt["partition"], receipt["offset"]) for receipt in receipts]


def read(node: LocalNode, topic: str, partition: int = 0, **query: object) -> Answer:
    """Fetch records, by default from the first one."""
    return call_with(node, f"GET /topics/{topic}/partitions/{partition}/records", None, query)


def values(node: LocalNode, topic: str, partition: int = 0, **query: object) -> list[Any]:
    """Return the values of a fetch."""
    return [record["value"] for record in ok(read(node, topic, partition, **query))]


def end_offset(node: LocalNode, topic: str, partition: int = 0) -> int:
    """Return the high watermark, as the leader knows it."""
    return int(ok(call(node, f"GET /topics/{topic}/partitions/{partition}/offsets"))["end_offset"])


def last_stable_offset(node: LocalNode, topic: str, partition: int = 0) -> int:
    """Return the end of the committed records, as the leader knows it."""
    told = ok(call(node, f"GET /topics/{topic}/partitions/{partition}/offsets"))
    return int(told["last_stable_offset"])


def encoded(
    *texts: bytes,
    producer: tuple[int, int, int] | None = None,
    keys: Sequence[bytes | None] | None = None,
    codec: Codec = Codec.NONE,
) -> bytes:
    """Return a record batch as a client encodes it; ``producer`` is id, epoch and first sequence."""
    columns = RecordColumns(
        offset_deltas=None,
        timestamp_deltas=None,
        keys=None if keys is None else list(keys),
        values=list(texts),
        headers=None,
    )
    stamp = None if producer is None else ProducerStamp(*producer)
    return encode_batch(columns, base_timestamp_ms=BASE_TIMESTAMP_MS, codec=codec, producer=stamp)


def write_batch(
    node: LocalNode, topic: str, batch: bytes, partition: int = 0, **query: object
) -> Answer:
    """Produce one encoded batch."""
    path = f"/topics/{topic}/partitions/{partition}/records"
    return call_with(node, f"POST {path}", batch, query, content_type=BATCH)


def kafka_address(node: LocalNode, *, is_external: bool = False) -> str:
    """Return where Kafka clients reach the node."""
    return node.kafka_address(is_external=is_external)


def metric(node: LocalNode, name: str, **labels: object) -> float:
    """Return the value of one of the node's metrics; ``name`` has no prefix."""
    wanted = {f'{label}="{value}"' for label, value in labels.items()}
    for line in call(node, "GET /metrics").body.decode().splitlines():
        series, _, value = line.rpartition(" ")
        found, _, rest = series.partition("{")
        if found == f"milena_{name}" and wanted <= {*rest.rstrip("}").split(",")}:
            return float(value)
    raise AssertionError(f"no metric {name} {labels}")
