"""Every operation of the client ends with a clear error within ten seconds, if no node ever responds to it."""

import inspect
import socket
from collections.abc import Awaitable, Callable

import pytest

from milena import Client, ClientError, NeverReachedError, StartAt, UnreachableError, sync
from milena.cluster.access_admin import AccessAdmin
from milena.cluster.access_views import AclEntry, AclFilter
from milena.cluster.admin import AdminClient
from milena.cluster.group_views import GroupOffset, GroupSummary, GroupView
from milena.cluster.view import PartitionView, TopicView
from milena.consuming.consumer import Consumer
from milena.model.access import AccessMode
from milena.model.quotas import QuotaKey
from milena.records import TopicPartition
from tests.support.http.strangers import AT_ONCE, PLACES, free_port
from tests.support.time.virtual_time import LoopClock, current_loop, virtual

LIMIT_S = 10.0

HERE = TopicPartition("t", 0)
PARTITION = PartitionView(partition=0, leader=1, leader_epoch=0, replicas=(1,), isr=(1,))
GROUP = GroupView(
    summary=GroupSummary(
        group_id="g", state="EMPTY", generation=0, assignor="", coordinator=1, member_count=0
    ),
    members=(),
    offsets={HERE: GroupOffset(offset=1)},
)
ENTRY = AclEntry(principal="User:u", resource_type="TOPIC", resource_name="t", operation="READ")

Call = Callable[..., Awaitable[object] | object]

ADMIN: dict[str, Call] = {
    "cluster": lambda admin: admin.cluster(),
    "has_majority": lambda admin: admin.has_majority(),
    "rebalance": lambda admin: admin.rebalance(),
    "move_replicas": lambda admin: admin.move_replicas({HERE: [1]}),
    "topic_sizes": lambda admin: admin.topic_sizes("t"),
    "reset_plan": lambda admin: admin.reset_plan("g", "t", StartAt.EARLIEST),
    "reassignments": lambda admin: admin.reassignments(),
    "cancel_reassignments": lambda admin: admin.cancel_reassignments(),
    "cluster_id": lambda admin: admin.cluster_id(),
    "topic_names": lambda admin: admin.topic_names(),
    "topic": lambda admin: admin.topic("t"),
    "offsets": lambda admin: admin.offsets(TopicView(name="t", partitions=(PARTITION,))),
    "create_topic": lambda admin: admin.create_topic("t"),
    "add_partitions": lambda admin: admin.add_partitions("t", 2),
    "alter_configs": lambda admin: admin.alter_configs("t", {}),
    "delete_records": lambda admin: admin.delete_records("t", 0, None),
    "offset_at": lambda admin: admin.offset_at("t", 0, 0),
    "remove_node": lambda admin: admin.remove_node(1),
    "delete_topic": lambda admin: admin.delete_topic("t"),
    "groups": lambda admin: admin.groups(),
    "group": lambda admin: admin.group("g"),
    "group_lags": lambda admin: admin.group_lags(GROUP),
    "reset_group": lambda admin: admin.reset_group("g", "t", StartAt.EARLIEST),
    "delete_group": lambda admin: admin.delete_group("g"),
    "transactions": lambda admin: admin.transactions(),
    "abort_transaction": lambda admin: admin.abort_transaction(1, 0),
}
ADMIN_OF_ONE_NODE = {"node_metrics", "examine", "drain", "node_id"}
"""They name the node, and have a limit of their own."""

ACCESS: dict[str, Call] = {
    "state": lambda access: access.state(),
    "set_mode": lambda access: access.set_mode(AccessMode.OFF),
    "users": lambda access: access.users(),
    "user": lambda access: access.user("u"),
    "put_user": lambda access: access.put_user("u"),
    "delete_user": lambda access: access.delete_user("u"),
    "tokens": lambda access: access.tokens("u"),
    "create_token": lambda access: access.create_token("u"),
    "delete_token": lambda access: access.delete_token("u", "x"),
    "quotas": lambda access: access.quotas(),
    "alter_quota": lambda access: access.alter_quota({QuotaKey.REQUEST_RATE: 1}, user="u"),
    "delete_quota": lambda access: access.delete_quota(user="u"),
    "acls": lambda access: access.acls(),
    "add_acls": lambda access: access.add_acls([ENTRY]),
    "remove_acls": lambda access: access.remove_acls(AclFilter()),
}


async def send(client):
    async with client.producer() as producer:
        await producer.send("t", "v")


async def send_many(client):
    async with client.producer() as producer:
        await producer.send_many("t", ["v"])


async def transaction(client):
    async with client.transactional_producer("id").transaction() as tx:
        await tx.send("t", "v")


async def named(client):
    async with client.named_producer("id", "t") as producer:
        await producer.write(0, ["v"])


async def read(client):
    async with client.reader("t", 0) as reader:
        async for _ in reader:
            pass


async def follow(client):
    async with client.reader("t", 0, follow=True) as reader:
        async for _ in reader:
            pass


async def locate(client):
    async with client.reader("t", 0, follow=True) as reader:
        await reader.locate()


async def poll(client):
    async with client.consumer("t", group="g") as consumer:
        await consumer.poll()


async def poll_in_turns(client):
    async with client.consumer("t", group="g") as consumer:
        while True:
            await consumer.poll(timeout_s=1)


async def iterate(client):
    async with client.consumer("t", group="g") as consumer:
        async for _ in consumer:
            pass


async def poll_pattern(client):
    async with client.consumer(pattern="t", group="g") as consumer:
        await consumer.poll()


async def poll_all(client):
    async with client.consumer("t") as consumer:
        await consumer.poll()


async def poll_assigned(client):
    async with client.consumer() as consumer:
        await consumer.assign([HERE])
        await consumer.poll()


async def poll_assigned_of_group(client):
    async with client.consumer(group="g") as consumer:
        await consumer.assign([HERE])
        await consumer.poll()


async def committed(client):
    async with client.consumer("t", group="g") as consumer:
        await consumer.committed("t", 0)


async def commit(client):
    async with client.consumer(group="g") as consumer:
        await consumer.assign([HERE])
        await consumer.commit({HERE: 1})


async def subscribe(client):
    async with client.consumer() as consumer:
        await consumer.subscribe("t")


RECORDS: dict[str, Call] = {
    work.__name__: work
    for work in (
        send,
        send_many,
        transaction,
        named,
        read,
        follow,
        locate,
        poll,
        poll_in_turns,
        iterate,
        poll_pattern,
        poll_all,
        poll_assigned,
        poll_assigned_of_group,
        committed,
        commit,
        subscribe,
    )
}

OPERATIONS: dict[str, Call] = {
    **{
        f"admin.{name}": lambda client, call=call: call(client.admin)
        for name, call in ADMIN.items()
    },
    **{
        f"admin.access.{name}": lambda client, call=call: call(client.admin.access)
        for name, call in ACCESS.items()
    },
    **RECORDS,
}


def public_calls(kind):
    return {
        name
        for name, _ in inspect.getmembers(kind, inspect.iscoroutinefunction)
        if not name.startswith("_")
    }


def test_the_list_of_operations_is_complete():
    assert public_calls(AdminClient) == ADMIN.keys() | ADMIN_OF_ONE_NODE
    assert public_calls(AccessAdmin) == ACCESS.keys()
    offline = {"close", "next_run", "rewind", "position", "lag", "assign"}
    assert public_calls(Consumer) - offline <= RECORDS.keys()


@pytest.fixture
def no_resolver(monkeypatch):
    """The machine's resolver may take long for a name that does not exist."""
    known = socket.getaddrinfo

    def resolve(host, *args, **options):
        if str(host).endswith(".invalid"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


async def check(operation, place, url):
    began_s = current_loop().time()
    with pytest.raises(ClientError) as caught:
        async with Client(url, clock=LoopClock()) as client:
            await OPERATIONS[operation](client)
    took_s = current_loop().time() - began_s
    assert PLACES[place][1] in caught.value.message, operation
    assert took_s <= (1 if place in AT_ONCE else LIMIT_S), operation
    if place != "closed cluster":
        assert url in caught.value.message, operation


@pytest.mark.usefixtures("no_resolver")
@pytest.mark.parametrize("place", PLACES)
@virtual
async def test_every_call_of_the_admin_says_in_time_what_is_wrong(place):
    async with PLACES[place][0]() as url:
        for operation in OPERATIONS.keys() - RECORDS.keys():
            await check(operation, place, url)


@pytest.mark.usefixtures("no_resolver")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("operation", RECORDS)
@virtual
async def test_every_use_of_records_says_in_time_what_is_wrong(operation, place):
    async with PLACES[place][0]() as url:
        await check(operation, place, url)


@pytest.mark.usefixtures("no_resolver")
@pytest.mark.parametrize("operation", RECORDS.keys() - {"poll_in_turns"})
@virtual
async def test_what_is_retried_warns_first_and_then_names_every_address(operation, caplog):
    urls = ["http://a.invalid:1", "http://b.invalid:2"]
    with pytest.raises(ClientError) as caught:
        async with Client(urls, clock=LoopClock()) as client:
            await OPERATIONS[operation](client)
    for url in urls:
        assert f"cannot reach {url}: its host name" in caught.value.message
    if isinstance(caught.value, NeverReachedError):
        warnings = [r.getMessage() for r in caplog.records if r.name == "milena.cluster.http"]
        assert len(warnings) == 1
        assert all(url in warnings[0] for url in urls)


def blocking_send(client):
    with client.producer() as producer:
        producer.send("t", "v")


def blocking_send_many(client):
    with client.producer() as producer:
        producer.send_many("t", ["v"])


def blocking_transaction(client):
    with client.transactional_producer("id").transaction() as tx:
        tx.send("t", "v")


def blocking_named(client):
    with client.named_producer("id", "t") as producer:
        producer.write(0, ["v"])


def blocking_read(client):
    with client.reader("t", 0, follow=True) as reader:
        next(reader)


def blocking_poll(client):
    with client.consumer("t", group="g") as consumer:
        consumer.poll()


def blocking_iterate(client):
    with client.consumer("t", group="g") as consumer:
        next(consumer)


def blocking_poll_all(client):
    with client.consumer("t") as consumer:
        consumer.poll()


BLOCKING = {
    **{name: call for name, call in OPERATIONS.items() if name.startswith("admin.")},
    **{
        work.__name__: work
        for work in (
            blocking_send,
            blocking_send_many,
            blocking_transaction,
            blocking_named,
            blocking_read,
            blocking_poll,
            blocking_iterate,
            blocking_poll_all,
        )
    },
}


@pytest.fixture(scope="module")
def blocking_client():
    with sync.Client(f"http://127.0.0.1:{free_port()}", connect_timeout_ms=0) as client:
        yield client


@pytest.mark.parametrize("operation", BLOCKING)
def test_the_blocking_client_says_the_same(operation, blocking_client):
    with pytest.raises(UnreachableError, match="connection refused"):
        BLOCKING[operation](blocking_client)
