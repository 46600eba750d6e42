"""ApiVersions: what is advertised is what is served, and a client of any version learns it."""

import pytest

from node.kafka.apis.registry import APIS
from node.kafka.wire import cold, configs, fetch, metadata, produce
from tests.support.clusters.kafka_clients import client_of, decoded
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.time.virtual_time import virtual

SOFTWARE = {"client_software_name": "test", "client_software_version": "1"}


@pytest.mark.parametrize("version", range(5))
@virtual
async def test_the_list_is_the_table(version: int) -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        fields = SOFTWARE if version >= 3 else {}
        found = await client_of(cluster.nodes[1]).call(18, version, **fields)
    assert found.error_code == 0
    assert {row.api_key: (row.min_version, row.max_version) for row in found.api_keys} == {
        key: (api.first, api.last) for key, api in APIS.items()
    }
    least = 0 if version >= 4 else 1
    told = [(one.name, one.min_version, one.max_version) for one in found.supported_features or ()]
    features = [("group.version", 1), ("transaction.version", 2)] if version >= 3 else []
    assert told == [(name, least, level) for name, level in features]
    levels = [(one.name, one.max_version_level) for one in found.finalized_features or ()]
    assert levels == features


@pytest.mark.parametrize("version", [5, 99, 32_767, -1, -32_768])
@virtual
async def test_a_version_that_is_not_served_is_answered_with_the_list(version: int) -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        client = client_of(cluster.nodes[1])
        client.ask(18, version, b"\0whatever another version has")
        await client.connection.idle()
        ((_, body),) = client.answers()
        found = decoded(18, 0, body)
        assert found.error_code == 35
        assert {row.api_key for row in found.api_keys} == APIS.keys()
        again = await client.call(18, 3, **SOFTWARE)
        assert again.error_code == 0


OWN_CODECS = {0: produce, 1: fetch, 3: metadata, 32: configs}


@pytest.mark.parametrize("key", OWN_CODECS)
def test_own_codecs_know_where_flexible_versions_begin(key: int) -> None:
    assert cold.flexible_from(key) == OWN_CODECS[key].FLEXIBLE_FROM


def test_every_version_that_is_advertised_is_known_to_clients() -> None:
    for key, api in APIS.items():
        assert 0 <= api.first <= api.last, api.name
        assert cold.encode(key, api.last, {}), api.name
