"""DescribeClientQuotas and AlterClientQuotas on the quotas of the cluster."""

from typing import Any

import pytest

from tests.support.clusters.kafka_clients import KafkaClient, client_of
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.clusters.overtaken import deaf
from tests.support.time.virtual_time import virtual

EXACT, DEFAULT, ANY = 0, 1, 2
INVALID_REQUEST = 42


def entry(names: dict[str, str | None], **values: float | None) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in names.items()],
        "ops": [
            {"key": key, "value": value or 0.0, "remove": value is None}
            for key, value in values.items()
        ],
    }


async def alter(client: KafkaClient, *entries: dict[str, Any], **more: Any) -> list[int]:
    fields = {"entries": list(entries), "validate_only": False} | more
    return [row.error_code for row in (await client.call(49, 1, **fields)).entries]


async def described(
    client: KafkaClient, *components: tuple[str, int, str | None], strict: bool = False,
    version: int = 1,
) -> list[Any]:  # fmt: skip
    rows = [{"entity_type": k, "match_type": how, "match": m} for k, how, m in components]
    found = await client.call(48, version, components=rows, strict=strict)
    assert found.error_code == 0
    return [
        (
            {part.entity_type: part.entity_name for part in row.entity},
            {value.key: value.value for value in row.values},
        )
        for row in found.entries
    ]


@pytest.mark.parametrize("version", [0, 1])
@virtual
async def test_quotas_are_set_found_and_removed(version: int) -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        client = client_of(cluster.nodes[1])
        user: dict[str, str | None] = {"user": "ann"}
        pair: dict[str, str | None] = {"user": "ann", "client-id": "shop"}
        default: dict[str, str | None] = {"user": None}
        codes = await alter(
            client,
            entry(user, request_rate=10, producer_byte_rate=1_000),
            entry(pair, request_rate=5),
            entry(default, consumer_byte_rate=7),
        )
        assert codes == [0, 0, 0]
        own = (user, {"producer_byte_rate": 1_000.0, "request_rate": 10.0})
        both, every = (pair, {"request_rate": 5.0}), (default, {"consumer_byte_rate": 7.0})
        assert await described(client, version=version) == [every, own, both]
        assert await described(client, ("user", EXACT, "ann"), version=version) == [own, both]
        strict = await described(client, ("user", EXACT, "ann"), strict=True, version=version)
        assert strict == [own]
        assert await described(client, ("user", DEFAULT, None)) == [every]
        assert await described(client, ("client-id", ANY, None)) == [both]
        assert await alter(client, entry(user, request_rate=None, producer_byte_rate=None)) == [0]
        assert await described(client, ("user", EXACT, "ann")) == [both]


@virtual
async def test_what_means_nothing_is_refused_and_a_trial_changes_nothing() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        client = client_of(cluster.nodes[1])
        odd = [
            entry({"ip": "10.0.0.1"}, request_rate=1),
            entry({"user": ""}, request_rate=1),
            entry({}, request_rate=1),
            entry({"user": "ann"}, request_percentage=1),
            entry({"user": "bob"}, request_rate=1.5),
            entry({"user": "cay"}, request_rate=-1),
            entry({"user": "dan"}, request_rate=float("nan")),
            entry({"user": "eve"}, request_rate=float("inf")),
            entry({"user": "fay"}, request_rate=2.0**63),
        ]
        assert await alter(client, *odd) == [INVALID_REQUEST] * len(odd)
        told = await client.call(49, 1, entries=odd[-1:], validate_only=False)
        assert "use a whole number from 1 to" in told.entries[0].error_message
        assert await alter(client, entry({"user": "b"}, request_rate=1), validate_only=True) == [0]
        assert await described(client) == []
        found = await client.call(
            48, 1, strict=False,
            components=[{"entity_type": "ip", "match_type": ANY, "match": None}],
        )  # fmt: skip
        assert (found.error_code, found.entries) == (INVALID_REQUEST, None)


@virtual
async def test_a_quota_that_another_node_has_set_is_described() -> None:
    async with cluster_of() as cluster:
        with deaf(cluster, 3):
            assert await alter(
                client_of(cluster.nodes[1]), entry({"user": "a"}, request_rate=1)
            ) == [0]
        found = await described(client_of(cluster.nodes[3]))
        assert found == [({"user": "a"}, {"request_rate": 1.0})]
