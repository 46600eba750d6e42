"""Compare Kafka clients with HTTP clients of the same nodes, and Milena's listener with others."""

import asyncio
from contextlib import AsyncExitStack, closing
from functools import partial
from itertools import count

from loadtest.bench.clients import kafka_clients, kafka_members, one_client
from loadtest.bench.clients.http_load import Ask, HttpLoadError, encode_request
from loadtest.bench.clients.kafka_clients import FETCH_BYTES, STORED_BATCHES
from loadtest.bench.clients.kafka_wire import KafkaFields, frame, is_whole, text
from loadtest.bench.clients.one_client import OneClient
from loadtest.bench.measuring.rounds import Contender, Turn, on_a_thread
from loadtest.bench.measuring.samples import Rounds
from loadtest.bench.plan import BenchPlan
from loadtest.bench.rows import kafka as kafka_rows
from loadtest.bench.servers.subject import Subject, json_ask
from loadtest.bench.stages import kafka_peers, kafka_transactions
from loadtest.bench.stages.clients import send_many, sending
from loadtest.bench.stages.produce import SMALL
from loadtest.bench.stages.reading import stored_topic
from loadtest.bench.stages.transactions import commit_for

_SETTLE_S = 2.0
_JSON_TYPE = "application/vnd.kafka.binary.v2+json"
MEMBERS = 100
"""Members that join a group at the same time."""


async def kafka(plan: BenchPlan, stack: AsyncExitStack, rounds: Rounds) -> list[Contender]:
    """Compare reads, writes and single records of both interfaces, and of other listeners."""
    settings = {
        "MILENA_KAFKA_LISTEN": "127.0.0.1:0",
        "MILENA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        **plan.settings,
    }
    subject = await stack.enter_async_context(Subject(plan.directory / "milena", settings=settings))
    pids = subject.pids
    http_url, http_ask, _ = await stored_topic(subject, batches=STORED_BATCHES)
    kafka_stored = await _topic(subject, "kafka-stored", is_bounded=False)
    single = await _topic(subject, "kafka-one", is_bounded=True)
    # A Kafka client would ask again if a leader has not taken over yet; these frames would not.
    await asyncio.sleep(_SETTLE_S)
    await asyncio.to_thread(kafka_clients.fill, kafka_stored, "kafka-stored")
    single_url = await subject.create_topic("http-one", is_durable=False)
    plain = await _topic(subject, "kafka-plain", is_bounded=True)
    plain_url = await subject.create_topic("plain", is_durable=False)
    one_ask = json_ask(single_url, "http-one", records=1, size=SMALL, acks="all")
    # A topic that does not sync accepts no transactions.
    session_url = await subject.create_topic("sessions", is_durable=True)
    transacted = await _topic(subject, "transacted", is_bounded=True, is_durable=True)
    kafka_url = next(n.url for n in subject.nodes if n.kafka_address() == kafka_stored)

    on_thread = partial(on_a_thread, pids=pids)
    bootstrap = subject.nodes[0].kafka_address()
    groups = count()

    async def join(_: float) -> Turn:
        name = f"bench-{next(groups)}"
        address = await asyncio.to_thread(_coordinator, bootstrap, name)
        took_s = await kafka_members.join_group(address, name, MEMBERS)
        return Turn(latencies_s=[took_s], units=MEMBERS, seconds=took_s)

    def kafka_commits(number: int, seconds: float) -> Turn:
        return kafka_transactions.commit_for(transacted, "transacted", f"kafka-{number}", seconds)

    def http_commits(number: int, seconds: float) -> Turn:
        name = f"http-{number}"
        return commit_for(session_url, seconds, topic="sessions", name=name, is_read=False)

    read = partial(kafka_clients.confluent_read, bootstrap)
    side_by_side = kafka_transactions.side_by_side
    return [
        on_thread(kafka_rows.KAFKA_FETCH, partial(kafka_clients.fetch_turn, kafka_stored)),
        on_thread(kafka_rows.HTTP_FETCH, partial(one_client.http_turn, http_url, http_ask)),
        on_thread(kafka_rows.KAFKA_ONE, partial(kafka_clients.one_turn, single)),
        on_thread(kafka_rows.HTTP_ONE, partial(one_client.http_turn, single_url, one_ask)),
        on_thread(kafka_rows.CONFLUENT_PRODUCER, partial(kafka_clients.confluent_send, bootstrap)),
        sending(kafka_rows.HTTP_PRODUCER, plain_url, send_many, pids),
        on_thread(kafka_rows.CONFLUENT_CONSUMER, partial(read, "kafka-stored")),
        on_thread(kafka_rows.CONFLUENT_CONVERTED, partial(read, "stored")),
        on_thread(kafka_rows.JSON_V2, partial(_json_turn, kafka_url, "kafka-stored")),
        on_thread(kafka_rows.JSON_COLUMNS, partial(_json_turn, http_url, "stored")),
        on_thread(kafka_rows.KAFKA_TRANSACTIONS, partial(side_by_side, kafka_commits)),
        on_thread(kafka_rows.HTTP_SESSIONS, partial(side_by_side, http_commits)),
        Contender(name=kafka_rows.MEMBERS_JOIN, turn=join, pids=pids),
        on_a_thread(
            kafka_rows.CONFLUENT_LEADER,
            partial(kafka_clients.confluent_send, plain),
            pids=_pids_at(subject, plain),
        ),
        *await kafka_peers.contenders(plan, stack, rounds, subject=bootstrap, pids=pids),
    ]


def _json_turn(url: str, topic: str, seconds: float) -> Turn:
    """Fetch the records of 1 MB of batches repeatedly, as JSON with values in base64."""
    path = f"/topics/{topic}/partitions/0/records?max_bytes={FETCH_BYTES}&offset="
    requests = [
        encode_request(url, "GET", f"{path}{offset}", Accept=_JSON_TYPE)
        for offset in kafka_clients.stored_offsets()
    ]
    return one_client.http_turn(url, Ask(requests=requests, units=1), seconds)


def _coordinator(address: str, group: str) -> str:
    """Return where Kafka clients reach the coordinator of a group."""
    with closing(OneClient(address)) as client:
        found = KafkaFields(client.exchange(frame(10, 0, text(group)), is_whole))
    if code := found.int16():
        raise HttpLoadError(f"the coordinator of a group: error code {code}")
    found.int32()
    return f"{found.text()}:{found.int32()}"


def _pids_at(subject: Subject, address: str) -> tuple[int, ...]:
    """Return the process that listens for Kafka clients at an address."""
    return tuple(
        node.process.pid
        for node in subject.nodes
        if node.kafka_address() == address and node.process.pid is not None
    )


async def _topic(subject: Subject, name: str, *, is_bounded: bool, is_durable: bool = False) -> str:
    """Create a topic; return the address of its leader for Kafka clients."""
    url = await subject.create_topic(name, is_durable=is_durable, is_bounded=is_bounded)
    return next(node for node in subject.nodes if node.url == url).kafka_address()
