"""Which broker a request means, as a node without its partitions and groups sees it."""

from typing import Any

import pytest

from node.kafka.apis.api import KafkaAddress, KafkaCall, KafkaServices
from node.kafka.apis.owners import OWNERS
from node.kafka.apis.registry import APIS
from node.kafka.identity import ConnectionIdentity
from node.kafka.wire import cold
from node.kafka.wire.primitives import MalformedFrameError, WireReader
from tests.support.clusters.kafka_clients import services_of
from tests.support.clusters.nodes import cluster_of
from tests.support.time.virtual_time import virtual


def call_of(services: KafkaServices, key: int, version: int, body: bytes) -> KafkaCall:
    api = APIS[key]
    reader = WireReader(body, 0, is_flexible=version >= api.flexible_from)
    return KafkaCall(
        api,
        version,
        "",
        reader,
        address=KafkaAddress("127.0.0.1", 9092),
        identity=ConnectionIdentity(services.access, "", None),
    )


def listed(*names: str) -> dict[str, Any]:
    return {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [
            {
                "name": name,
                "partitions": [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}],
            }
            for name in names
        ],
    }


@virtual
async def test_the_first_partition_with_a_leader_decides() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (2, 3))
        await cluster.create("u", (3, 2))
        services = services_of(cluster.nodes[1])
        for names, leader in (
            (("t", "u"), 2),
            (("u", "t"), 3),
            (("missing", "t"), 2),
            (("missing",), None),
            ((), None),
        ):
            body = cold.encode_request(2, 6, listed(*names))
            assert OWNERS[2](services, call_of(services, 2, 6, body)) == leader


@virtual
async def test_a_request_without_a_group_or_with_an_invalid_one_belongs_nowhere() -> None:
    async with cluster_of() as cluster:
        services = services_of(cluster.nodes[1])
        for key, version, fields, is_known in (
            (15, 4, {"groups": []}, False),
            (15, 4, {"groups": ["g"]}, True),
            (42, 2, {"groups_names": []}, False),
            (42, 2, {"groups_names": ["g"]}, True),
            (69, 1, {"group_ids": [], "include_authorized_operations": False}, False),
            (69, 1, {"group_ids": ["g"], "include_authorized_operations": False}, True),
            (9, 8, {"groups": [], "require_stable": False}, False),
            (9, 5, {"group_id": "", "topics": None}, False),
            (9, 5, {"group_id": "g", "topics": None}, True),
        ):
            body = cold.encode_request(key, version, fields)
            found = OWNERS[key](services, call_of(services, key, version, body))
            assert found == (services.groups.find_coordinator("g") if is_known else None)


@virtual
async def test_configs_belong_to_the_broker_that_they_name() -> None:
    async with cluster_of() as cluster:
        services = services_of(cluster.nodes[1])
        for kind, name, owner in ((4, "2", 2), (4, "9", None), (4, "x", None), (2, "2", None)):
            resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
            body = cold.encode_request(32, 4, {"resources": [resource]})
            assert OWNERS[32](services, call_of(services, 32, 4, body)) == owner


@pytest.mark.parametrize("key", sorted(OWNERS))
@virtual
async def test_a_malformed_request_is_refused_before_it_goes_anywhere(key: int) -> None:
    async with cluster_of() as cluster:
        services = services_of(cluster.nodes[1])
        call = call_of(services, key, APIS[key].last, b"")
        with pytest.raises(MalformedFrameError):
            OWNERS[key](services, call)
