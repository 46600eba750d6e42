"""The cluster and the disks of its nodes.

DescribeCluster (60), DescribeQuorum (55), DescribeLogDirs (35), AlterReplicaLogDirs (34).

A node has one log directory, so no replica moves between directories.
Source: KIP-700 (DescribeCluster), KIP-919 (endpoint types), KIP-113 and KIP-827 (log directories), KIP-595 (the
quorum), KIP-1073 (fenced brokers).
"""

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter

from http_api.protocol.kafka_codes import KafkaCode
from milena.model.access import CLUSTER_NAME, Operation, ResourceType
from node.kafka.apis.api import Body, KafkaCall, KafkaServices, serves
from node.kafka.apis.items import by_topic
from node.kafka.apis.metadata import brokers_of
from node.kafka.rights import KNOWN, needs
from node.kafka.wire.metadata import BrokerRow
from node.replica.runner import PartitionRunner

BROKERS = 1
CONTROLLERS = 2
"""The endpoints that DescribeCluster may be asked for."""
QUORUM_TOPIC = "__cluster_metadata"
"""Kafka's name of the quorum's log."""


@serves(60, "DescribeCluster", versions=(0, 2), access=KNOWN)
async def _describe_cluster(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    wanted = request.endpoint_type
    if wanted != BROKERS:
        is_known = wanted == CONTROLLERS
        code = (
            KafkaCode.MISMATCHED_ENDPOINT_TYPE if is_known else KafkaCode.UNSUPPORTED_ENDPOINT_TYPE
        )
        return call.answer(
            {
                "error_code": call.note(code),
                "error_message": f"This listener is for clients of brokers: ask for endpoints of type {BROKERS}, not "
                f"{wanted}.",
                "endpoint_type": wanted,
                "cluster_id": services.metadata.image.cluster_id,
                "brokers": [],
            }
        )
    wants_operations = request.include_cluster_authorized_operations
    return call.answer(
        {
            "endpoint_type": BROKERS,
            "cluster_id": services.metadata.image.cluster_id,
            "controller_id": services.metadata.node_id,
            "brokers": [
                {
                    "broker_id": row.broker_id,
                    "host": row.host,
                    "port": row.port,
                    "rack": row.rack,
                    "is_fenced": is_fenced,
                }
                for row, is_fenced in _brokers(
                    services, call, has_fenced=request.include_fenced_brokers
                )
            ],
            # kafka-python has another name for the field, and a set of the bits. None: the client did not ask.
            "authorized_operations": call.rights.operations(ResourceType.CLUSTER, CLUSTER_NAME)
            if wants_operations
            else None,
        }
    )


def _brokers(
    services: KafkaServices, call: KafkaCall, *, has_fenced: bool
) -> Iterable[tuple[BrokerRow, bool]]:
    """Yield the brokers that clients can reach, then, on request, those that have an address and are fenced."""
    for row in brokers_of(services, call):
        yield row, False
    for broker in services.metadata.image.brokers.values() if has_fenced else ():
        address = broker.kafka_address(call.address.listener)
        if (
            broker.is_fenced
            and address is not None
            and broker.broker_id != services.metadata.node_id
        ):
            yield BrokerRow(broker.broker_id, *address, broker.rack), True


# -- DescribeQuorum --------------------------------------------------------------------------------


@serves(55, "DescribeQuorum", versions=(0, 2), access=needs("DESCRIBE CLUSTER"))
async def _describe_quorum(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    asked = [
        (topic.topic_name, part.partition_index)
        for topic in request.topics
        for part in topic.partitions
    ]
    if not call.rights.permits_cluster(Operation.DESCRIBE):
        code = call.note(KafkaCode.CLUSTER_AUTHORIZATION_FAILED)
        return call.answer({"error_code": code, "topics": [], "nodes": []})
    # As in Kafka, nothing is told of the quorum if a request names it more than once.
    is_named_once = asked.count((QUORUM_TOPIC, 0)) == 1
    rows = by_topic(
        (
            topic,
            _quorum_row(
                services,
                call,
                number,
                is_quorum=is_named_once and (topic, number) == (QUORUM_TOPIC, 0),
            ),
        )
        for topic, number in asked
    )
    image = services.metadata.image
    nodes = [
        {
            "node_id": voter,
            "listeners": [
                {"name": call.address.listener.upper(), "host": address[0], "port": address[1]}
            ],
        }
        for voter in image.voters
        if (broker := image.brokers.get(voter)) is not None
        and (address := broker.kafka_address(call.address.listener)) is not None
    ]
    topics = [{"topic_name": topic, "partitions": parts} for topic, parts in rows.items()]
    return call.answer({"topics": topics, "nodes": nodes})


def _quorum_row(
    services: KafkaServices, call: KafkaCall, number: int, *, is_quorum: bool
) -> dict[str, object]:
    """Return the state of the quorum, as far as this node knows. Only its own end of the log is known to it."""
    if not is_quorum:
        code = call.note(KafkaCode.UNKNOWN_TOPIC_OR_PARTITION)
        message = f"The quorum has partition 0 of {QUORUM_TOPIC}, and no other one: name it once."
        return {"partition_index": number, "error_code": code, "error_message": message}
    status, image = services.metadata.quorum.status(), services.metadata.image
    own = services.metadata.node_id

    def state(node_id: int) -> dict[str, object]:
        return {
            "replica_id": node_id,
            "log_end_offset": status.applied_index if node_id == own else -1,
        }

    return {
        "partition_index": number,
        "leader_id": -1 if status.leader_id is None else status.leader_id,
        "leader_epoch": status.term,
        "high_watermark": status.commit_index,
        "current_voters": [state(voter) for voter in image.voters],
        "observers": [
            state(broker) for broker in sorted(image.brokers) if broker not in image.voters
        ],
    }


@serves(35, "DescribeLogDirs", versions=(1, 5), access=needs("DESCRIBE CLUSTER"))
async def _describe_log_dirs(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    if not call.rights.permits_cluster(Operation.DESCRIBE):
        # Before version 3 there is no place for the code.
        code = call.note(KafkaCode.CLUSTER_AUTHORIZATION_FAILED)
        return call.answer({"error_code": code, "results": []})
    if request.topics is None:
        runners = list(services.replicas)
    else:
        wanted = {(topic.topic, n) for topic in request.topics for n in topic.partitions}
        runners = [
            runner for runner in services.replicas if (runner.topic, runner.partition) in wanted
        ]
    directory = services.directory
    return call.answer(
        {
            "results": [
                {
                    "error_code": KafkaCode.NONE,
                    "log_dir": str(directory.root),
                    "topics": list(_log_rows(runners)),
                    "total_bytes": directory.total_bytes(),
                    "usable_bytes": directory.free_bytes(),
                }
            ]
        }
    )


def _log_rows(runners: Iterable[PartitionRunner]) -> Iterable[dict[str, object]]:
    by_topic = sorted(runners, key=attrgetter("topic", "partition"))
    for topic, of_topic in groupby(by_topic, key=attrgetter("topic")):
        rows = [
            {
                "partition_index": runner.partition,
                "partition_size": runner.log.size_bytes,
                "offset_lag": max(0, runner.high_watermark - runner.log.log_end_offset),
                "is_future_key": False,
            }
            for runner in of_topic
        ]
        yield {"name": topic, "partitions": rows}


@serves(34, "AlterReplicaLogDirs", versions=(1, 2), access=needs("ALTER CLUSTER"))
async def _alter_replica_log_dirs(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    image, root = services.metadata.image, str(services.directory.root)
    may = call.rights.permits_cluster(Operation.ALTER)
    paths = {
        (topic.name, number): directory.path
        for directory in request.dirs
        for topic in directory.topics
        for number in topic.partitions
    }

    def row(name: str, number: int, path: str) -> dict[str, object]:
        code = KafkaCode.NONE
        if not may:
            code = KafkaCode.CLUSTER_AUTHORIZATION_FAILED
        elif path != root:
            code = KafkaCode.LOG_DIR_NOT_FOUND
        elif services.replicas.find(image.topic_ids.get(name, ""), number) is None:
            code = KafkaCode.REPLICA_NOT_AVAILABLE
        return {"partition_index": number, "error_code": call.note(code)}

    found = by_topic((name, row(name, number, path)) for (name, number), path in paths.items())
    rows = [{"topic_name": name, "partitions": parts} for name, parts in found.items()]
    return call.answer({"results": rows})


APIS = (_alter_replica_log_dirs, _describe_log_dirs, _describe_quorum, _describe_cluster)
