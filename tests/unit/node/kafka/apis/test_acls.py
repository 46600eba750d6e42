"""DescribeAcls, CreateAcls and DeleteAcls on the entries of the cluster."""

from typing import Any

import pytest

from http_api.access.port import AclSelection
from node.kafka.apis.items import ITEMS_MAX
from raft_meta.machine.image import Acl
from tests.support.clusters.kafka_clients import KafkaClient, client_of
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.clusters.overtaken import deaf
from tests.support.time.virtual_time import virtual

ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
TOPIC, GROUP = 2, 3
READ, WRITE = 3, 4
DENY, ALLOW = 2, 3
INVALID_REQUEST = 42


def entry(name: str, operation: int = READ, **more: Any) -> dict[str, Any]:
    return {
        "resource_type": TOPIC,
        "resource_name": name,
        "resource_pattern_type": LITERAL,
        "principal": "User:ann",
        "host": "*",
        "operation": operation,
        "permission_type": ALLOW,
    } | more


def wanted(**more: Any) -> dict[str, Any]:
    return {
        "resource_type_filter": ANY,
        "resource_name_filter": None,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
    } | more


async def create(client: KafkaClient, *entries: dict[str, Any], version: int = 3) -> list[int]:
    found = await client.call(30, version, creations=list(entries))
    return [row.error_code for row in found.results]


async def described(client: KafkaClient, version: int = 3, **more: Any) -> list[tuple[Any, ...]]:
    found = await client.call(29, version, **wanted(**more))
    assert found.error_code == 0
    return sorted(
        (row.resource_name, row.pattern_type, acl.principal, acl.operation, acl.permission_type)
        for row in found.resources
        for acl in row.acls
    )


@pytest.mark.parametrize("version", [1, 2, 3])
@virtual
async def test_entries_are_created_found_and_deleted(version: int) -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        client = client_of(cluster.nodes[1])
        entries = [
            entry("orders"),
            entry("orders", WRITE, permission_type=DENY),
            entry("ord", resource_pattern_type=PREFIXED, principal="User:bob"),
            entry("g", resource_type=GROUP),
        ]
        assert await create(client, *entries, version=version) == [0] * 4
        assert await create(client, entries[0], version=version) == [0]
        assert len(await described(client, version)) == 4
        orders = [
            ("orders", LITERAL, "User:ann", READ, ALLOW),
            ("orders", LITERAL, "User:ann", WRITE, DENY),
        ]
        named = {"resource_type_filter": TOPIC, "resource_name_filter": "orders"}
        assert await described(client, version, **named) == orders
        prefixed = ("ord", PREFIXED, "User:bob", READ, ALLOW)
        matching = named | {"pattern_type_filter": MATCH}
        assert await described(client, version, **matching) == [prefixed, *orders]
        found = await client.call(31, version, filters=[wanted(principal_filter="User:ann")])
        (row,) = found.filter_results
        assert (row.error_code, len(row.matching_acls)) == (0, 3)
        assert await described(client, version) == [prefixed]


@virtual
async def test_entries_that_mean_nothing_are_refused_one_by_one() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        client = client_of(cluster.nodes[1])
        odd = [
            entry("t", resource_type=ANY),
            entry("t", resource_type=6),
            entry("t", 1),
            entry("t", 99),
            entry("t", resource_pattern_type=MATCH),
            entry("t", permission_type=ANY),
            entry("t", principal="ann"),
            entry("t", host="nowhere"),
            entry("t"),
        ]
        codes = await create(client, *odd)
        assert codes == [INVALID_REQUEST] * 8 + [0]
        refused = await client.call(29, 3, **wanted(operation=99))
        assert (refused.error_code, refused.resources) == (INVALID_REQUEST, [])
        found = await client.call(31, 3, filters=[wanted(), wanted(pattern_type_filter=MATCH)])
        assert [row.error_code for row in found.filter_results] == [INVALID_REQUEST] * 2
        assert len(await described(client)) == 1


@virtual
async def test_many_entries_are_created_and_deleted_by_few_commands() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        client = client_of(cluster.nodes[1])
        entries = [entry(f"t{number}") for number in range(2_500)]
        entries[7] = entry("t7", principal="ann")
        before = len(cluster.log.commands)
        codes = await create(client, *entries)
        assert [place for place, code in enumerate(codes) if code] == [7]
        assert len(codes) == 2_500
        assert cluster.image.acl_count == 2_499
        filters = [
            wanted(resource_name_filter="t1"),
            wanted(),
            wanted(principal_filter="User:ann"),
            wanted(resource_name_filter="t2"),
        ]
        found = await client.call(31, 3, filters=filters)
        assert [(row.error_code, len(row.matching_acls)) for row in found.filter_results] == [
            (0, 1),
            (INVALID_REQUEST, 0),
            (0, 2_498),
            (0, 0),
        ]
        assert cluster.image.acl_count == 0
        # Three for the entries, and three to delete them; a few are the node's own.
        assert len(cluster.log.commands) - before < 20


@virtual
async def test_filters_that_name_a_resource_do_not_look_at_all_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at = 0
    fits = AclSelection.fits

    def counted(selection: AclSelection, acl: Acl) -> bool:
        nonlocal looked_at
        looked_at += 1
        return fits(selection, acl)

    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        client = client_of(cluster.nodes[1])
        assert await create(client, *[entry(f"t{number}") for number in range(500)]) == [0] * 500
        monkeypatch.setattr(AclSelection, "fits", counted)
        filters = [wanted(resource_name_filter=f"t{number}") for number in range(300)]
        found = await client.call(31, 3, filters=filters)
        assert {len(row.matching_acls) for row in found.filter_results} == {1}
        assert cluster.image.acl_count == 200
        assert looked_at <= 1_000


@virtual
async def test_more_entries_or_filters_than_a_request_may_have_change_nothing() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        client = client_of(cluster.nodes[1])
        codes = await create(client, *[entry("t")] * (ITEMS_MAX + 1))
        assert codes == [INVALID_REQUEST] * (ITEMS_MAX + 1)
        assert cluster.image.acl_count == 0
        assert await create(client, entry("t")) == [0]
        filters = [wanted(resource_name_filter="t")] * (ITEMS_MAX + 1)
        found = await client.call(31, 3, filters=filters)
        assert {row.error_code for row in found.filter_results} == {INVALID_REQUEST}
        assert len(found.filter_results) == ITEMS_MAX + 1
        assert cluster.image.acl_count == 1


@virtual
async def test_an_entry_that_another_node_has_created_is_described() -> None:
    async with cluster_of() as cluster:
        with deaf(cluster, 3):
            assert await create(client_of(cluster.nodes[1]), entry("orders")) == [0]
        found = await described(client_of(cluster.nodes[3]))
        assert found == [("orders", LITERAL, "User:ann", READ, ALLOW)]
