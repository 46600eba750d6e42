"""A cluster that asks who calls: three nodes, and never one that lets in who should not be."""

import base64
import threading
import time

import pytest

from milena import Client, Credentials, NotPermittedError, Secret, StartAt
from tests.support.clusters.live_cluster import (
    call,
    eventually,
    in_background,
    ok,
    restart,
    running_cluster,
    start_command,
)

pytestmark = pytest.mark.integration

PASSWORD = "a password of tests"
SILENCE_MS = 3_000


def basic(name, password=PASSWORD):
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


ROOT = basic("admin")
ADMIN = Credentials(user="admin", password=Secret(PASSWORD))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    directory = tmp_path_factory.mktemp("closed")
    (directory / "password").write_text(f"{PASSWORD}\n")
    settings = {
        "admin_password_file": directory / "password",
        "access_silence_ms_max": SILENCE_MS,
    }
    with running_cluster(directory, credentials=ADMIN, **settings) as nodes:
        topic = {"topic_name": "orders", "partitions_count": 3, "replication_factor": 3}
        ok(call(nodes.node(1), "POST /admin/topics", topic, headers=ROOT))
        yield nodes


def user(node, name, *acls):
    """A user with a password, who may do this to the topic."""
    ok(call(node, f"PUT /users/{name}", {"password": PASSWORD}, headers=ROOT))
    for operation in acls:
        allow(node, f"User:{name}", operation)
    return basic(name)


def allow(node, principal, operation, kind="TOPIC", name="orders"):
    cluster_id = ok(call(node, "GET /metadata", headers=ROOT))["cluster_id"]
    entry = {
        "resource_type": kind,
        "resource_name": name,
        "pattern_type": "LITERAL",
        "principal": principal,
        "host": "*",
        "operation": operation,
        "permission": "ALLOW",
    }
    assert call(node, f"POST /v3/clusters/{cluster_id}/acls", entry, headers=ROOT).status == 201


def token_of(node, name, headers, **body):
    made = ok(call(node, f"POST /users/{name}/tokens", body, headers=headers))
    return made["token_id"], {"Authorization": f"Bearer {made['token']}"}


def write(node, headers, value="x"):
    return call(node, "POST /topics/orders", {"records": [{"value": value}]}, headers=headers)


def status_everywhere(cluster, headers, line="GET /topics/orders"):
    return {node.node_id: call(node, line, headers=headers).status for node in cluster.nodes}


def test_every_node_asks_and_knows_the_first_user(cluster):
    assert set(status_everywhere(cluster, {}).values()) == {401}
    assert set(status_everywhere(cluster, ROOT).values()) == {200}
    for node in cluster.nodes:
        assert call(node, "GET /readyz").status == 200
    users = ok(call(cluster.node(2), "GET /users", headers=ROOT))["users"]
    assert [found["name"] for found in users] == ["admin"]


def test_what_any_node_gave_all_honour_and_what_it_took_none_does(cluster):
    user(cluster.node(1), "ann", "WRITE", "READ")
    token_id, token = token_of(cluster.node(2), "ann", basic("ann"))

    def all_say(status):
        return eventually(
            lambda: {write(node, token).status for node in cluster.nodes} == {status},
            deadline_s=10,
        )

    all_say(200)
    began = time.monotonic()
    ok(call(cluster.node(3), f"DELETE /users/ann/tokens/{token_id}", headers=ROOT))
    # It is gone here at once, and elsewhere once the image is there.
    assert write(cluster.node(3), token).status == 401
    all_say(401)
    assert time.monotonic() - began < 10


def test_a_request_is_judged_where_it_comes_in_and_carried_out_where_it_belongs(cluster):
    bob = user(cluster.node(1), "bob", "WRITE")
    for node in cluster.nodes:
        eventually(lambda node=node: write(node, bob).status == 200)
        answer = call(node, "GET /topics/orders/partitions/0/records", headers=bob)
        assert answer.refusal == (403, 40301)


async def test_the_client_and_its_consumers_get_in(cluster):
    user(cluster.node(1), "carla", "WRITE", "READ")
    allow(cluster.node(1), "User:carla", "READ", "GROUP", "readers")
    urls = [node.url for node in cluster.nodes]
    credentials = Credentials(user="carla", password=Secret(PASSWORD))

    async with Client(urls, credentials=credentials) as client:
        async with client.producer() as producer:
            await producer.send("orders", value="from carla")
        async with client.consumer("orders", group="readers", start=StartAt.EARLIEST) as consumer:
            async for record in consumer:
                if b"from carla" in record.value:
                    break
        with pytest.raises(NotPermittedError):
            await client.admin.delete_topic("orders")


def test_a_node_that_hears_nobody_lets_nobody_in_after_a_while(cluster):
    user(cluster.node(1), "dora", "READ")
    lonely = cluster.node(1)
    silent = [cluster.node(2), cluster.node(3)]
    line = "GET /topics/orders/partitions/0"
    eventually(lambda: call(lonely, line, headers=basic("dora")).status == 200)
    for node in silent:
        node.process.pause()
    try:
        began = time.monotonic()
        # It goes on as it knew its callers, and ends before twice the time.
        assert call(lonely, line, headers=basic("dora"), is_patient=False).status == 200
        eventually(
            lambda: (
                call(lonely, line, headers=basic("dora"), is_patient=False).refusal == (503, 50309)
            ),
            deadline_s=3 * SILENCE_MS / 1000,
        )
        assert time.monotonic() - began > SILENCE_MS / 1000 - 1.5
        assert call(lonely, "GET /livez").status == 200
    finally:
        for node in silent:
            node.process.resume()
    eventually(lambda: call(lonely, line, headers=basic("dora")).status == 200)


def test_nodes_that_come_back_are_closed_from_their_first_answer(cluster):
    is_back = threading.Event()

    def knock():
        """Ask without credentials until the cluster is back; return every status that was answered."""
        seen = set()
        is_last = False
        while not is_last:
            is_last = is_back.is_set()
            for node in cluster.nodes:
                try:
                    seen.add(call(node, "GET /topics", is_patient=False).status)
                    seen.add(write(node, basic("eve"), "in").status)
                except OSError:
                    continue
            time.sleep(0.02)
        return seen

    cluster.kill()
    with in_background(knock) as knocked:
        try:
            restart(cluster, *cluster.nodes)
        finally:
            is_back.set()
        seen = knocked.result()
    assert seen <= {401, 503, 429}
    assert 401 in seen
    assert set(status_everywhere(cluster, ROOT).values()) == {200}


def test_who_is_locked_out_gets_in_with_a_node_that_is_told_to(cluster, tmp_path):
    ok(call(cluster.node(1), "PUT /users/admin", {"password": "lost for ever"}, headers=ROOT))
    node = cluster.node(2)
    node.process.kill()
    again = tmp_path / "again"
    again.write_text("found once more")
    told = start_command(
        *node.process.command[4:],
        log_path=tmp_path / "told.log",
        reset_admin="true",
        admin_password_file=again,
    )
    told.start()
    found = basic("admin", "found once more")
    eventually(lambda: call(cluster.node(1), "GET /users", headers=found).status == 200)
    assert call(cluster.node(1), "GET /users", headers=ROOT).status == 401
    ok(call(cluster.node(1), "PUT /users/admin", {"password": PASSWORD}, headers=found))
    told.kill()
    restart(cluster, node)
