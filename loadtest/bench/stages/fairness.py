"""The effect of a greedy client on others at a full node: how long their writes take, with and without it."""

import asyncio
import sys
from asyncio.subprocess import DEVNULL
from contextlib import AsyncExitStack

from loadtest.bench.clients import greedy
from loadtest.bench.clients.http_load import HttpLoadError, body_length, host_and_port
from loadtest.bench.measuring.rounds import Contender, Turn
from loadtest.bench.measuring.samples import Rounds
from loadtest.bench.plan import BenchPlan
from loadtest.bench.rows import access as access_rows
from loadtest.bench.servers.subject import Subject, json_ask
from loadtest.bench.stages.access import ADMIN, PASSWORD, with_authorization
from loadtest.bench.stages.clients import bare_client
from loadtest.bench.stages.produce import SMALL
from milena.cluster.access_views import AclEntry
from milena.cluster.admin import AdminClient
from milena.model.access import Operation, ResourceType

MODEST = 20
PLACES = 256
"""The requests in flight that the node accepts."""
GREEDY_CONNECTIONS = 2 * PLACES
TOPIC, QUIET = "plain", "quiet"
_SETTLE_S = 0.5
_TRIES_MAX = 50
_PAUSE_S = 0.1
_REFUSED = b"429"


async def fairness(plan: BenchPlan, stack: AsyncExitStack, rounds: Rounds) -> list[Contender]:
    """Measure small writes of twenty users, on a node without other load, and on a node filled by a greedy client."""
    del rounds
    file = plan.directory / "password"
    file.write_text(PASSWORD)
    subject = Subject(
        plan.directory / "fair",
        node_count=1,
        settings={
            **plan.settings,
            "MILENA_ADMIN_PASSWORD_FILE": str(file),
            "MILENA_REQUESTS_IN_FLIGHT_MAX": str(PLACES),
        },
        credentials=ADMIN,
    )
    await stack.enter_async_context(subject)
    for topic in (TOPIC, QUIET):
        await subject.create_topic(topic, is_durable=False)
    url = subject.nodes[0].url
    names = [f"modest{number}" for number in range(MODEST)]
    greedy_token, *tokens = [await _token(url, name) for name in ("greedy", *names)]
    ask = json_ask(url, TOPIC, records=1, size=SMALL, acks="1")
    # Each user has its own connection.
    modest = [(url, with_authorization(ask, f"Bearer {token}")) for token in tokens]
    alone = bare_client(access_rows.MODEST_ALONE, modest, 1, subject.pids)

    async def beside(seconds: float) -> Turn:
        return await _beside_greedy(url, greedy_token, alone, seconds)

    return [alone, Contender(name=access_rows.MODEST_BESIDE, turn=beside, pids=subject.pids)]


async def _token(url: str, name: str) -> str:
    """Return a token of a user that may write and read."""
    async with AdminClient(url, credentials=ADMIN) as admin:
        await admin.access.put_user(name, is_superuser=False)
        entries = [
            AclEntry(
                principal=f"User:{name}",
                resource_type=ResourceType.TOPIC,
                resource_name=topic,
                operation=operation,
            )
            for topic, operation in ((TOPIC, Operation.WRITE), (QUIET, Operation.READ))
        ]
        await admin.access.add_acls(entries)
        made = await admin.access.create_token(name)
    return made.token.reveal()


async def _beside_greedy(url: str, token: str, modest: Contender, seconds: float) -> Turn:
    taking = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", greedy.__name__, url, token, QUIET, str(GREEDY_CONNECTIONS)),
        stdin=DEVNULL,
        start_new_session=True,
    )
    own = greedy.waiting_request(url, token, QUIET)
    try:
        await asyncio.sleep(greedy.SPREAD_S + _SETTLE_S)
        await _until(url, own, _REFUSED)
        done = await modest.turn(seconds)
        await _until(url, own, _REFUSED)
    finally:
        if taking.returncode is None:
            taking.kill()
        await taking.wait()
    return done


async def _until(url: str, request: bytes, status: bytes) -> None:
    """Repeat a request until the response has this status."""
    reader, writer = await asyncio.open_connection(*host_and_port(url))
    try:
        for _ in range(_TRIES_MAX):
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(body_length(head) or 0)
            if head.split(b" ", 2)[1] == status:
                return
            await asyncio.sleep(_PAUSE_S)
    finally:
        writer.close()
    raise HttpLoadError(
        f"never answered {status.decode()}: the node is not full, or for the wrong one"
    )
