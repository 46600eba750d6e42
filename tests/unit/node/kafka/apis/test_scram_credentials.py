"""DescribeUserScramCredentials and AlterUserScramCredentials on the users of the cluster."""

import hashlib
from typing import Any

from milena.model.access import AccessMode, Operation, ResourceType, ScramMechanism
from milena.model.secret import Secret
from node.kafka.apis import items
from raft_meta.machine.image import Image
from tests.support.clusters.kafka_clients import (
    ADMIN,
    ANN,
    KafkaClient,
    acl,
    client_of,
    close_cluster,
    plain,
    sign_in,
    sign_in_by_scram,
)
from tests.support.clusters.nodes import Cluster, SimNode, cluster_of
from tests.support.clusters.overtaken import deaf
from tests.support.time.virtual_time import virtual

SHA_256, SHA_512 = 1, 2
PASSWORD = "a good password"
UNSUPPORTED_MECHANISM, INVALID, NOT_FOUND, DUPLICATE, UNACCEPTABLE = 33, 42, 91, 92, 93
CLUSTER_REFUSED = 31
HASHES = {SHA_256: "sha256", SHA_512: "sha512"}


def upsert(name: str, mechanism: int = SHA_256, password: str = PASSWORD, **more: Any) -> Any:
    """A row as clients send it."""
    row = {"name": name, "mechanism": mechanism, "iterations": 4096, "salt": b"pepper"} | more
    hash_name = HASHES.get(mechanism, "sha256")
    salted = hashlib.pbkdf2_hmac(
        hash_name, password.encode(), row["salt"], max(1, row["iterations"])
    )
    return {"salted_password": salted} | row


def delete(name: str, mechanism: int = SHA_256) -> Any:
    return {"name": name, "mechanism": mechanism}


async def alter(client: KafkaClient, *rows: Any) -> dict[str, int]:
    fields = {
        "deletions": [row for row in rows if "salt" not in row],
        "upsertions": [row for row in rows if "salt" in row],
    }
    found = (await client.call(51, 0, **fields)).results
    assert all((row.error_code != 0) == bool(row.error_message) for row in found)
    return {row.user: row.error_code for row in found}


async def described(client: KafkaClient, *names: str) -> list[Any]:
    users = [{"name": name} for name in names] if names else None
    found = await client.call(50, 0, users=users)
    assert found.error_code == 0
    return [
        (
            row.user,
            row.error_code,
            [(one.mechanism, one.iterations) for one in row.credential_infos],
        )
        for row in found.results
    ]


async def admin_of(node: SimNode, *, mode: AccessMode = AccessMode.REQUIRED) -> KafkaClient:
    await close_cluster(node, mode=mode)
    client = client_of(node)
    assert (await sign_in(client, plain(*ADMIN))).error_code == 0
    return client


@virtual
async def test_credentials_are_put_described_and_removed() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        client = await admin_of(node)
        assert await described(client) == []
        rows = [upsert("ann"), upsert("ann", SHA_512, iterations=16_384), upsert("new")]
        assert await alter(client, *rows) == {"ann": 0, "new": 0}
        ann = ("ann", 0, [(SHA_256, 4096), (SHA_512, 16_384)])
        assert await described(client) == [ann, ("new", 0, [(SHA_256, 4096)])]
        assert await described(client, "ann") == [ann]
        # An upserted user that was not there has no password and no rights.
        new = node.metadata.image.users["new"]
        assert (new.verifiers, new.is_superuser) == ((), False)
        for user, mechanism in (
            ("ann", ScramMechanism.SHA_256),
            ("ann", ScramMechanism.SHA_512),
            ("new", ScramMechanism.SHA_256),
        ):
            found = await sign_in_by_scram(client_of(node), user, PASSWORD, mechanism)
            assert found.error_code == 0
        assert await alter(client, delete("ann"), delete("new")) == {"ann": 0, "new": 0}
        assert await described(client) == [("ann", 0, [(SHA_512, 16_384)])]
        assert (await sign_in_by_scram(client_of(node), "ann", PASSWORD)).error_code == 58
        # The user itself stays, and so does its password.
        assert "new" in node.metadata.image.users
        assert (await sign_in(client_of(node), plain(*ANN))).error_code == 0


@virtual
async def test_an_upsert_ends_the_former_password_of_its_mechanism_alone() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        client = await admin_of(node)
        assert await alter(client, upsert("ann"), upsert("ann", SHA_512)) == {"ann": 0}
        assert await alter(client, upsert("ann", password="the next one")) == {"ann": 0}
        tried = [
            (password, mechanism)
            for mechanism in ScramMechanism
            for password in (PASSWORD, "the next one")
        ]
        codes = [(await sign_in_by_scram(client_of(node), "ann", *how)).error_code for how in tried]
        assert codes == [58, 0, 0, 58]
        # A delete and an upsert of one user are one change.
        rows = [delete("ann", SHA_512), upsert("ann", password="a third one")]
        assert await alter(client, *rows) == {"ann": 0}
        assert await described(client) == [("ann", 0, [(SHA_256, 4096)])]


@virtual
async def test_what_cannot_be_put_has_kafkas_codes() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        client = await admin_of(node)
        before = node.metadata.image.users
        assert await alter(
            client,
            upsert("few", iterations=4095),
            upsert("many", iterations=16_385),
            upsert("negative", iterations=-1),
            upsert("unknown", mechanism=0),
            upsert("later", mechanism=3),
            upsert("saltless", salt=b""),
            upsert("salty", salt=bytes(129)),
            upsert("short", salted_password=bytes(31)),
            upsert("other", SHA_512, salted_password=bytes(32)),
            upsert("bad name"),
            upsert(""),
            upsert("ANONYMOUS"),
            upsert("x" * 256),
            upsert(".."),
            delete("absent"),
            delete("ann"),
            delete("bob", 9),
        ) == {
            "few": UNACCEPTABLE,
            "many": UNACCEPTABLE,
            "negative": UNACCEPTABLE,
            "unknown": UNSUPPORTED_MECHANISM,
            "later": UNSUPPORTED_MECHANISM,
            "saltless": UNACCEPTABLE,
            "salty": UNACCEPTABLE,
            "short": UNACCEPTABLE,
            "other": UNACCEPTABLE,
            "bad name": UNACCEPTABLE,
            "": UNACCEPTABLE,
            "ANONYMOUS": UNACCEPTABLE,
            "x" * 256: UNACCEPTABLE,
            "..": INVALID,
            "absent": NOT_FOUND,
            "ann": NOT_FOUND,
            "bob": UNSUPPORTED_MECHANISM,
        }
        assert node.metadata.image.users == before


@virtual
async def test_one_wrong_row_of_a_user_keeps_the_others_of_that_user_back() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        client = await admin_of(cluster.nodes[1])
        assert await alter(
            client,
            upsert("ann"),
            upsert("ann", SHA_512, iterations=1),
            upsert("bob"),
            upsert("eve"),
            upsert("eve", password="another"),
            upsert("sue"),
            delete("sue"),
        ) == {"ann": UNACCEPTABLE, "bob": 0, "eve": DUPLICATE, "sue": DUPLICATE}
        assert await described(client) == [("bob", 0, [(SHA_256, 4096)])]


@virtual
async def test_users_without_credentials_and_repeated_ones_are_told() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        client = await admin_of(cluster.nodes[1])
        assert await alter(client, upsert("bob")) == {"bob": 0}
        assert await described(client, "bob", "ann", "absent", "x", "x") == [
            ("bob", 0, [(SHA_256, 4096)]),
            ("ann", NOT_FOUND, []),
            ("absent", NOT_FOUND, []),
            ("x", DUPLICATE, []),
        ]
        # An empty list stands for all, as null does.
        found = await client.call(50, 0, users=[])
        assert [row.user for row in found.results] == ["bob"]


@virtual
async def test_only_a_superuser_changes_a_superuser() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        await close_cluster(
            node, acl("ann", Operation.ALTER, ResourceType.CLUSTER, "kafka-cluster")
        )
        ann, root = client_of(node), client_of(node)
        assert (await sign_in(ann, plain(*ANN))).error_code == 0
        assert (await sign_in(root, plain(*ADMIN))).error_code == 0
        rows = [upsert("admin"), upsert("bob")]
        assert await alter(ann, *rows) == {"admin": CLUSTER_REFUSED, "bob": 0}
        assert node.metadata.image.users["admin"].scram == ()
        assert await alter(root, *rows) == {"admin": 0, "bob": 0}
        assert await alter(ann, delete("admin")) == {"admin": CLUSTER_REFUSED}


@virtual
async def test_a_user_that_became_a_superuser_before_the_change_is_one() -> None:
    """The image of a node may be behind. What the others did arrives with the barrier before the change."""
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        await close_cluster(
            node, acl("ann", Operation.ALTER, ResourceType.CLUSTER, "kafka-cluster")
        )
        ann = client_of(node)
        assert (await sign_in(ann, plain(*ANN))).error_code == 0
        barrier = node.metadata.current_image

        async def current_image() -> Image:
            node.metadata.current_image = barrier  # type: ignore[method-assign]
            await node.access.put_user(
                "bob", password=None, is_superuser=True, keeps_previous=False
            )
            return await barrier()

        node.metadata.current_image = current_image  # type: ignore[method-assign]
        assert await alter(ann, upsert("bob")) == {"bob": CLUSTER_REFUSED}
        assert node.metadata.image.users["bob"].scram == ()


@virtual
async def test_a_new_password_of_the_api_ends_that_of_an_upsert() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        client = await admin_of(node)
        assert await alter(client, upsert("ann", SHA_512)) == {"ann": 0}
        next_one = Secret("the next password")
        await node.access.put_user(
            "ann", password=next_one, is_superuser=None, keeps_previous=False
        )
        mechanism = ScramMechanism.SHA_512
        codes = [
            (await sign_in_by_scram(client_of(node), "ann", password, mechanism)).error_code
            for password in (PASSWORD, "the next password")
        ]
        assert codes == [58, 0]
        # The other mechanism gets no credential that no client asked for.
        assert [one.mechanism for one in node.metadata.image.users["ann"].scram] == [mechanism]


@virtual
async def test_a_request_with_too_many_rows_changes_nothing() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        client = await admin_of(cluster.nodes[1])
        rows = [delete("ann", 1)] * items.ITEMS_MAX + [upsert("bob")]
        assert await alter(client, *rows) == {"ann": INVALID, "bob": INVALID}
        users = [{"name": f"u{number}"} for number in range(items.ITEMS_MAX + 1)]
        found = await client.call(50, 0, users=users)
        assert (found.error_code, found.results) == (INVALID, [])


@virtual
async def test_credentials_that_another_node_has_put_are_described() -> None:
    async with cluster_of() as cluster:
        client = client_of(cluster.nodes[3])
        with deaf(cluster, 3):
            assert await alter(client_of(cluster.nodes[1]), upsert("ann")) == {"ann": 0}
        assert await described(client, "ann") == [("ann", 0, [(SHA_256, 4096)])]
