"""Every endpoint there is: one row each, from which the application and its OpenAPI description are made."""

from http_api.native import cluster_metadata, health, producers
from http_api.routing import Handler, Param, ParamPlace, Route
from http_api.v2 import fetch, metadata, produce
from http_api.v3 import clusters, configs, partitions, topics

_TOPIC_MISSING_V2_TOPIC = 40403
_TOPIC_MISSING_FETCH = 40402
_TOPIC_MISSING_V3 = 40403

_PATH_DOCS = {
    "cluster": "id of the cluster",
    "topic": "name of the topic",
    "partition": "number of the partition, from 0",
    "broker": "id of the broker",
    "config": "name of the config",
}


def _query(name: str, description: str, kind: str = "string") -> Param:
    return Param(name=name, place=ParamPlace.QUERY, description=description, kind=kind)


_PRODUCE_PARAMS = (
    _query("acks", "0 (answered before the append), 1 (stored by the leader) or all (default)"),
    _query("timeout_ms", "how long to wait for the acknowledgement", "integer"),
    Param(
        name="Idempotency-Key",
        place=ParamPlace.HEADER,
        description="1 to 255 visible characters; a repeat with the same body gets the first answer",
    ),
)
_FETCH_PARAMS = (
    _query("offset", "first offset, earliest (default), latest, or -N for the last N records"),
    _query("timestamp", "first record at or after this time: ms since 1970, or ISO-8601"),
    _query("count", "at most this many records", "integer"),
    _query("max_bytes", "at most this many stored bytes, but at least one batch", "integer"),
    _query("timeout", "ms to wait for records when there are none", "integer"),
    _query("replica", "local: this node's own copy, never forwarded"),
)


def _route(
    line: str,
    handler: Handler,
    summary: str,
    *params: Param,
    missing: int = 40401,
    is_exempt: bool = False,
) -> Route:
    """A row from ``METHOD /path``; parameters of the path describe themselves."""
    method, path = line.split()
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    in_path = [
        Param(name=name, place=ParamPlace.PATH, description=_PATH_DOCS[name]) for name in names
    ]
    return Route(
        method=method,
        path=path,
        handler=handler,
        summary=summary,
        params=(*in_path, *params),
        topic_missing_code=missing,
        is_exempt=is_exempt,
    )


_V2 = (
    _route("GET /", metadata.root, "Who answers: version, cluster and node"),
    _route("GET /topics", metadata.list_topics, "Names of all topics"),
    _route(
        "GET /topics/{topic}",
        metadata.get_topic,
        "A topic: its configs and partitions",
        missing=_TOPIC_MISSING_V2_TOPIC,
    ),
    _route("POST /topics/{topic}", produce.produce_to_topic, "Append records", *_PRODUCE_PARAMS),
    _route("GET /topics/{topic}/partitions", metadata.list_partitions, "Partitions of a topic"),
    _route(
        "GET /topics/{topic}/partitions/{partition}",
        metadata.get_partition,
        "A partition: its leader and replicas",
    ),
    _route(
        "POST /topics/{topic}/partitions/{partition}",
        produce.produce_to_partition,
        "Append records to a partition",
        *_PRODUCE_PARAMS,
    ),
    _route(
        "GET /topics/{topic}/partitions/{partition}/offsets",
        metadata.get_offsets,
        "Readable offsets of a partition",
    ),
    _route(
        "GET /topics/{topic}/partitions/{partition}/records",
        fetch.fetch_records,
        "Read records",
        *_FETCH_PARAMS,
        missing=_TOPIC_MISSING_FETCH,
    ),
    _route(
        "POST /topics/{topic}/partitions/{partition}/records",
        produce.produce_to_partition,
        "Append records or one encoded batch to a partition",
        *_PRODUCE_PARAMS,
    ),
    _route("GET /brokers", metadata.list_brokers, "Ids of live brokers"),
    _route("POST /admin/topics", metadata.create_topic, "Create a topic"),
)

_CLUSTER = "/v3/clusters/{cluster}"
_TOPIC = f"{_CLUSTER}/topics/{{topic}}"
_PARTITION = f"{_TOPIC}/partitions/{{partition}}"


def _v3(line: str, handler: Handler, summary: str, *params: Param) -> Route:
    return _route(line, handler, summary, *params, missing=_TOPIC_MISSING_V3)


_V3 = (
    _v3("GET /v3", clusters.root, "Where to begin"),
    _v3("GET /v3/clusters", clusters.list_clusters, "The cluster, as a list"),
    _v3(f"GET {_CLUSTER}", clusters.get_cluster, "The cluster"),
    _v3(f"GET {_CLUSTER}/brokers", clusters.list_brokers, "All brokers"),
    _v3(f"GET {_CLUSTER}/brokers/{{broker}}", clusters.get_broker, "A broker"),
    _v3(
        f"GET {_CLUSTER}/brokers/{{broker}}/partition-replicas",
        partitions.list_broker_replicas,
        "Replicas that a broker holds",
    ),
    _v3(f"GET {_CLUSTER}/topics", topics.list_topics, "All topics"),
    _v3(f"POST {_CLUSTER}/topics", topics.create_topic, "Create a topic"),
    _v3(f"GET {_TOPIC}", topics.get_topic, "A topic"),
    _v3(f"DELETE {_TOPIC}", topics.delete_topic, "Delete a topic"),
    _v3(f"GET {_TOPIC}/configs", configs.list_configs, "Configs of a topic"),
    _v3(f"POST {_TOPIC}/configs:alter", configs.alter_configs, "Change several configs"),
    _v3(f"GET {_TOPIC}/configs/{{config}}", configs.get_config, "A config of a topic"),
    _v3(f"PUT {_TOPIC}/configs/{{config}}", configs.put_config, "Set a config"),
    _v3(f"DELETE {_TOPIC}/configs/{{config}}", configs.delete_config, "Reset a config"),
    _v3(f"GET {_TOPIC}/partitions", partitions.list_partitions, "Partitions of a topic"),
    _v3(f"GET {_PARTITION}", partitions.get_partition, "A partition"),
    _v3(
        f"GET {_PARTITION}/offset",
        partitions.get_offset,
        "A partition with its readable offsets",
        _query("offset_type", "earliest_and_latest, which is the only one"),
    ),
    _v3(f"GET {_PARTITION}/replicas", partitions.list_replicas, "Replicas of a partition"),
    _v3(f"GET {_PARTITION}/replicas/{{broker}}", partitions.get_replica, "A replica"),
)

_NATIVE = (
    _route("POST /producers", producers.allocate_producer, "A producer id for idempotent writes"),
    _route(
        "GET /metadata",
        cluster_metadata.get_metadata,
        "Brokers, topics and leaders in one answer",
        _query("since", "wait for a version above this one", "integer"),
        _query("timeout", "longest wait in ms", "integer"),
    ),
    _route("GET /livez", health.live, "The process is alive", is_exempt=True),
    _route("GET /startupz", health.started, "The node has started", is_exempt=True),
    _route("GET /readyz", health.ready, "The node should get traffic", is_exempt=True),
    _route("GET /metrics", health.metrics, "Metrics in Prometheus' text format", is_exempt=True),
)

ROUTES: tuple[Route, ...] = (*_V2, *_V3, *_NATIVE)
