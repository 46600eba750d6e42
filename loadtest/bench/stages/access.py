"""What it costs to know who calls: a node that asks nothing, beside one that asks, and one that strangers knock at."""

import asyncio
import base64
import sys
from asyncio.subprocess import DEVNULL
from contextlib import AsyncExitStack
from dataclasses import replace

from loadtest.bench import strangers, targets
from loadtest.bench.http_load import Ask, HttpLoadError, encode_request
from loadtest.bench.plan import BenchPlan
from loadtest.bench.rounds import Contender, Turn
from loadtest.bench.samples import Rounds
from loadtest.bench.stages.produce import SMALL, http_contender
from loadtest.bench.subject import Subject, http_turn, json_ask
from milena.cluster.access_views import AclEntry
from milena.cluster.admin import AdminClient
from milena.cluster.credentials import Credentials
from milena.model.access import Operation, ResourceType
from milena.model.secret import Secret

CONNECTIONS = 16
BATCH_RECORDS, BATCH_CONNECTIONS = 1000, 4
ENTRIES = 10_000
_ENTRIES_AT_ONCE = 1_000
STRANGERS_PER_S = 1_000
TOPIC = "plain"
PASSWORD = "a password of the bench"  # noqa: S105 (of nodes that live for a minute)
ADMIN = Credentials(user="admin", password=Secret(PASSWORD))
_SETTLE_S = 0.5
_QUEUE_S = 2.5
"""In which a node looks at the passwords that still wait: the next turn is not to pay for them."""


async def access(plan: BenchPlan, stack: AsyncExitStack, rounds: Rounds) -> list[Contender]:
    """Small writes, batches and looks at a partition, by each kind of credentials."""
    del rounds
    file = plan.directory / "password"
    file.write_text(PASSWORD)
    given = base64.b64encode(f"admin:{PASSWORD}".encode()).decode()
    is_open = Subject(plan.directory / "open", node_count=1, settings=plan.settings)
    closed = Subject(
        plan.directory / "closed",
        node_count=1,
        settings={**plan.settings, "MILENA_ADMIN_PASSWORD_FILE": str(file)},
        credentials=ADMIN,
        headers={"Authorization": f"Basic {given}"},
    )
    for subject in (is_open, closed):
        await stack.enter_async_context(subject)
        await subject.create_topic(TOPIC, is_durable=False)
    token, loaded = await _tokens(closed.nodes[0].url)
    ways = {
        targets.ACCESS_OPEN: (is_open, ""),
        targets.ACCESS_BEARER: (closed, f"Bearer {token}"),
        targets.ACCESS_BASIC: (closed, f"Basic {given}"),
        targets.ACCESS_ENTRIES: (closed, f"Bearer {loaded}"),
    }
    contenders = []
    for name, (subject, authorization) in ways.items():
        url = subject.nodes[0].url
        writes = json_ask(url, TOPIC, records=1, size=SMALL, acks="1")
        contenders.append(_contender(name, subject, writes, authorization, CONNECTIONS))
    for name, way in (
        (targets.ACCESS_OPEN_BATCHES, targets.ACCESS_OPEN),
        (targets.ACCESS_BEARER_BATCHES, targets.ACCESS_BEARER),
    ):
        subject, authorization = ways[way]
        batches = json_ask(subject.nodes[0].url, TOPIC, records=BATCH_RECORDS, size=SMALL, acks="1")
        contenders.append(_contender(name, subject, batches, authorization, BATCH_CONNECTIONS))
    for name, way in (
        (targets.ACCESS_OPEN_LOOKS, targets.ACCESS_OPEN),
        (targets.ACCESS_BEARER_LOOKS, targets.ACCESS_BEARER),
    ):
        subject, authorization = ways[way]
        url = subject.nodes[0].url
        look = Ask(requests=[encode_request(url, "GET", f"/topics/{TOPIC}/partitions/0")])
        contenders.append(_contender(name, subject, look, authorization, CONNECTIONS))
    for name, what in (
        (targets.ACCESS_STRANGERS, strangers.GUESSES),
        (targets.ACCESS_PROBES, strangers.PROBES),
    ):
        contenders.append(_beside(name, what, closed, f"Bearer {token}"))
    return contenders


async def _tokens(url: str) -> tuple[str, str]:
    """One of a superuser, and one of a user whom thousands of entries name."""
    async with AdminClient(url, credentials=ADMIN) as admin:
        await admin.access.put_user("loaded", is_superuser=False)
        entries = [
            AclEntry(
                principal="User:loaded",
                resource_type=ResourceType.TOPIC,
                resource_name=name,
                operation=operation,
            )
            for name, operation in (
                *((f"other-{number}", Operation.READ) for number in range(ENTRIES - 2)),
                (TOPIC, Operation.WRITE),
                (TOPIC, Operation.READ),
            )
        ]
        for start in range(0, ENTRIES, _ENTRIES_AT_ONCE):
            await admin.access.add_acls(entries[start : start + _ENTRIES_AT_ONCE])
        made = [await admin.access.create_token(name) for name in ("admin", "loaded")]
    one, other = (new.token.reveal() for new in made)
    return one, other


def with_authorization(ask: Ask, authorization: str) -> Ask:
    """The same requests, by somebody."""
    if not authorization:
        return ask
    line = f"\r\nAuthorization: {authorization}\r\n".encode()
    return replace(ask, requests=[request.replace(b"\r\n", line, 1) for request in ask.requests])


def _contender(
    name: str, subject: Subject, ask: Ask, authorization: str, connections: int
) -> Contender:
    return http_contender(
        name,
        subject.nodes[0].url,
        with_authorization(ask, authorization),
        connections=connections,
        pids=subject.pids,
    )


def _beside(name: str, what: str, subject: Subject, authorization: str) -> Contender:
    """Small writes while others send ``what`` of ``loadtest.bench.strangers``."""
    url = subject.nodes[0].url
    ask = with_authorization(json_ask(url, TOPIC, records=1, size=SMALL, acks="1"), authorization)

    async def turn(seconds: float) -> Turn:
        knocking = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", strangers.__name__, url, str(STRANGERS_PER_S), what),
            stdin=DEVNULL,
            start_new_session=True,
        )
        try:
            await asyncio.sleep(_SETTLE_S)
            done = await http_turn(url, ask, connections=CONNECTIONS, seconds=seconds)
            if knocking.returncode is not None:
                raise HttpLoadError("the strangers went away")
        finally:
            if knocking.returncode is None:
                knocking.kill()
            await knocking.wait()
            await asyncio.sleep(_QUEUE_S)
        return done

    return Contender(name=name, turn=turn, pids=subject.pids)
