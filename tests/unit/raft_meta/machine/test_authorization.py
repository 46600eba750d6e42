"""The judge of what entries allow, beside a naive one."""

from random import Random

import pytest

from milena.model.access import ALLOWED_BY, Operation, ResourceType
from raft_meta.machine import commands as c
from raft_meta.machine.access.authorization import permissions_of
from raft_meta.machine.copies import replace
from raft_meta.machine.image import Acl, Grant, Image
from tests.support.machine.access_commands import USERS, random_acl, random_grant
from tests.unit.raft_meta.machine.test_access import cluster_with

TOPIC = ResourceType.TOPIC


def may(image: Image, principal: str, operation: str, name: str, *, host: str = "10.0.0.9") -> bool:
    permissions = permissions_of(image, principal, is_superuser=False, host=host)
    return permissions.may(Operation(operation), TOPIC, name)


def test_nothing_is_allowed_that_no_entry_allows() -> None:
    image = cluster_with("User:ann:TOPIC:orders:READ").image
    assert may(image, "User:ann", "READ", "orders")
    assert may(image, "User:ann", "DESCRIBE", "orders")
    assert not may(image, "User:ann", "WRITE", "orders")
    assert not may(image, "User:ann", "READ", "orders2")
    assert not may(image, "User:bob", "READ", "orders")
    assert not permissions_of(image, "User:ann", is_superuser=False, host="::1").may(
        Operation.READ, ResourceType.GROUP, "orders"
    )


def test_a_prefix_covers_what_begins_with_it_and_a_star_all_names() -> None:
    image = cluster_with("User:ann:TOPIC:pay*:READ", "User:bob:TOPIC:*:WRITE").image
    assert may(image, "User:ann", "READ", "pay")
    assert may(image, "User:ann", "READ", "payments")
    assert not may(image, "User:ann", "READ", "pa")
    assert not may(image, "User:ann", "READ", "*")
    assert may(image, "User:bob", "WRITE", "anything")


def test_what_denies_wins_whatever_its_pattern_and_host() -> None:
    image = cluster_with(
        "User:ann:TOPIC:orders:ALL",
        "User:*:TOPIC:ord*:READ:DENY:10.0.0.1",
        "User:ann:TOPIC:orders:ALTER:DENY",
    ).image
    assert not may(image, "User:ann", "READ", "orders", host="10.0.0.1")
    assert may(image, "User:ann", "READ", "orders", host="10.0.0.2")
    assert may(image, "User:ann", "WRITE", "orders", host="10.0.0.1")
    assert not may(image, "User:ann", "ALTER", "orders")
    # As in Kafka: who may not read may still see that it is there, where something else allows it.
    assert may(image, "User:ann", "DESCRIBE", "orders", host="10.0.0.1")


def test_a_token_may_what_its_user_and_its_grants_both_do() -> None:
    image = cluster_with("User:ann:TOPIC:orders:READ").image
    grant = Grant(resource_type="TOPIC", pattern_type="LITERAL", name="orders", operations=("ALL",))
    other = replace(grant, name="bills")
    for is_superuser, grants, allowed in [
        (False, (grant,), {"orders READ"}),
        (False, (other,), set()),
        (True, (other,), {"bills READ", "bills WRITE"}),
        (True, (), {"orders READ", "orders WRITE", "bills READ", "bills WRITE"}),
    ]:
        permissions = permissions_of(
            image, "User:ann", is_superuser=is_superuser, host="10.0.0.1", grants=grants
        )
        found = {
            f"{name} {operation}"
            for name in ("orders", "bills")
            for operation in (Operation.READ, Operation.WRITE)
            if permissions.may(operation, TOPIC, name)
        }
        assert found == allowed


def naive(
    acls: list[Acl], grants: list[Grant], principal: str, host: str, operation: Operation, name: str
) -> bool:
    def covers(pattern: str, of: str) -> bool:
        return name.startswith(of) if pattern == "PREFIXED" else of in (name, "*")

    mine = [
        acl
        for acl in acls
        if acl.principal in (principal, "User:*")
        and acl.host in ("*", host)
        and covers(acl.pattern_type, acl.name)
    ]
    denied = any(a.permission == "DENY" and a.operation in (operation, "ALL") for a in mine)
    allowed = any(a.permission == "ALLOW" and a.operation in ALLOWED_BY[operation] for a in mine)
    granted = not grants or any(
        covers(g.pattern_type, g.name) and not ALLOWED_BY[operation].isdisjoint(g.operations)
        for g in grants
    )
    return allowed and not denied and granted


@pytest.mark.parametrize("seed", range(30))
def test_the_judge_agrees_with_a_naive_one(seed: int) -> None:
    rng = Random(seed)
    acls = sorted({random_acl(rng) for _ in range(rng.randint(0, 12))})
    grants = [random_grant(rng) for _ in range(rng.choice([0, 0, 1, 3]))]
    cluster = cluster_with()
    cluster.do(c.AlterAcls(added=tuple(acls), removed=()))
    for user in USERS:
        for host in ("10.0.0.1", "10.0.0.2"):
            permissions = permissions_of(
                cluster.image, f"User:{user}", is_superuser=False, host=host, grants=grants
            )
            for operation in Operation:
                for name in ("a", "a.b", "ab", "b", "c", ""):
                    expected = naive(acls, grants, f"User:{user}", host, operation, name)
                    assert permissions.may(operation, TOPIC, name) == expected


def test_entries_of_groups_count_and_denials_win() -> None:
    image = cluster_with("Group:ops:TOPIC:orders:READ").image

    def may_read(*groups: str) -> bool:
        found = permissions_of(image, "User:ann", is_superuser=False, host="", groups=groups)
        return found.may(Operation.READ, ResourceType.TOPIC, "orders")

    assert (may_read("Group:ops"), may_read("Group:dev", "Group:ops")) == (True, True)
    assert not may_read()
    assert not may_read("User:ops", "ops")
    denied = Acl(
        principal="Group:dev",
        resource_type="TOPIC",
        pattern_type="LITERAL",
        name="orders",
        operation="ALL",
        permission="DENY",
        host="*",
    )
    image = replace(image, acls=image.acls.set(denied.principal, (denied,)))
    assert may_read("Group:ops")
    assert not may_read("Group:ops", "Group:dev")
