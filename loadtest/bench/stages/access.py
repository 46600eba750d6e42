"""The cost of authentication: a node without it, a node with it, and a node under password guesses."""

import asyncio
import base64
import ssl
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from loadtest.bench.clients import strangers
from loadtest.bench.clients.http_load import Ask, HttpLoadError, encode_request
from loadtest.bench.measuring.rounds import Contender, Turn
from loadtest.bench.measuring.samples import Rounds
from loadtest.bench.plan import BenchPlan
from loadtest.bench.rows import access as access_rows
from loadtest.bench.servers.identities import Authority, Issuer
from loadtest.bench.servers.subject import Subject, json_ask
from loadtest.bench.stages.produce import SMALL, http_contender
from milena.cluster.access_views import AclEntry
from milena.cluster.admin import AdminClient
from milena.cluster.credentials import ANONYMOUS, Credentials
from milena.model.access import Operation, ResourceType
from milena.model.secret import Secret

CONNECTIONS = 16
BATCH_RECORDS, BATCH_CONNECTIONS = 1000, 4
ENTRIES = 10_000
_ENTRIES_AT_ONCE = 1_000
STRANGERS_PER_S = 1_000
TOPIC = "plain"
SOMEBODY = "ann"
"""The user in the tokens of the issuer."""
PASSWORD = "a password of the bench"  # noqa: S105 (of nodes that live for a minute)
ADMIN = Credentials(user="admin", password=Secret(PASSWORD))
_SETTLE_S = 0.5
_QUEUE_S = 3.5
"""How long a node needs to check the passwords that still wait, in s; the next turn starts after that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The way of a client to a node: its Authorization header, and its connection."""

    subject: Subject
    authorization: str = ""
    tls: ssl.SSLContext | None = None

    @property
    def url(self) -> str:
        """Return the URL of the node."""
        return self.subject.nodes[0].url

    def contender(self, name: str, ask: Ask, connections: int) -> Contender:
        """Return a contender that connects this way and sends this request."""
        return http_contender(
            name,
            self.url,
            with_authorization(ask, self.authorization),
            connections=connections,
            pids=self.subject.pids,
            tls=self.tls,
        )


async def access(plan: BenchPlan, stack: AsyncExitStack, rounds: Rounds) -> list[Contender]:
    """Compare small writes, batches and reads of a partition's state, for each kind of credentials."""
    del rounds
    file = plan.directory / "password"
    file.write_text(PASSWORD)
    authority, issuer = Authority(plan.directory), Issuer(plan.directory)
    shown = authority.issue("node")
    asks = {
        "MILENA_ADMIN_PASSWORD_FILE": str(file),
        "MILENA_OIDC_ISSUER": issuer.NAME,
        "MILENA_OIDC_AUDIENCE": issuer.AUDIENCE,
        "MILENA_OIDC_JWKS_FILE": str(issuer.file),
    }
    encrypts = {
        "MILENA_TLS_CERT_FILE": str(shown.certificate),
        "MILENA_TLS_KEY_FILE": str(shown.key),
        "MILENA_TLS_CLIENT_CA_FILE": str(authority.file),
        "MILENA_TLS_CLIENT_AUTH": "optional",
    }

    async def node(
        name: str, settings: Mapping[str, str], credentials: Credentials = ANONYMOUS
    ) -> Subject:
        subject = Subject(
            plan.directory / name,
            node_count=1,
            settings={**plan.settings, **settings},
            credentials=credentials,
        )
        await stack.enter_async_context(subject)
        await subject.create_topic(TOPIC, is_durable=False)
        return subject

    believing = replace(ADMIN, ca=str(authority.file))
    plain = await node("open", {})
    closed = await node("closed", asks, ADMIN)
    encrypted = await node("encrypted", asks | encrypts, believing)
    token, loaded = await _tokens(closed.nodes[0].url, ADMIN)
    other_token, _ = await _tokens(encrypted.nodes[0].url, believing)
    is_open = Way(subject=plain)
    bearer = Way(subject=closed, authorization=f"Bearer {token}")
    over_tls = Way(subject=encrypted, authorization=f"Bearer {other_token}", tls=authority.client())
    given = base64.b64encode(f"admin:{PASSWORD}".encode()).decode()
    writers = {
        access_rows.ACCESS_OPEN: is_open,
        access_rows.ACCESS_BEARER: bearer,
        access_rows.ACCESS_BASIC: Way(subject=closed, authorization=f"Basic {given}"),
        access_rows.ACCESS_ENTRIES: Way(subject=closed, authorization=f"Bearer {loaded}"),
        access_rows.ACCESS_JWT: Way(
            subject=closed, authorization=f"Bearer {issuer.token(SOMEBODY)}"
        ),
        access_rows.ACCESS_TLS: over_tls,
        access_rows.ACCESS_MUTUAL: Way(
            subject=encrypted, tls=authority.client(authority.issue("client", "admin"))
        ),
    }
    write = json_ask("http://node", TOPIC, records=1, size=SMALL, acks="1")
    batch = json_ask("http://node", TOPIC, records=BATCH_RECORDS, size=SMALL, acks="1")
    look = Ask(requests=[encode_request("http://node", "GET", f"/topics/{TOPIC}/partitions/0")])
    return [
        *(way.contender(name, write, CONNECTIONS) for name, way in writers.items()),
        is_open.contender(access_rows.ACCESS_OPEN_BATCHES, batch, BATCH_CONNECTIONS),
        bearer.contender(access_rows.ACCESS_BEARER_BATCHES, batch, BATCH_CONNECTIONS),
        over_tls.contender(access_rows.ACCESS_TLS_BATCHES, batch, BATCH_CONNECTIONS),
        is_open.contender(access_rows.ACCESS_OPEN_LOOKS, look, CONNECTIONS),
        bearer.contender(access_rows.ACCESS_BEARER_LOOKS, look, CONNECTIONS),
        _beside(access_rows.ACCESS_STRANGERS, strangers.GUESSES, bearer, write),
        _beside(access_rows.ACCESS_PROBES, strangers.PROBES, bearer, write),
    ]


async def _tokens(url: str, credentials: Credentials) -> tuple[str, str]:
    """Return a superuser's token, and a token of a user with thousands of access entries; let ``SOMEBODY`` write."""
    async with AdminClient(url, credentials=credentials) as admin:
        await admin.access.put_user("loaded", is_superuser=False)
        others = [f"other-{number}" for number in range(ENTRIES - 2)]
        entries = [
            *(_entry("User:loaded", name, Operation.READ) for name in others),
            *(_entry("User:loaded", TOPIC, way) for way in (Operation.WRITE, Operation.READ)),
            _entry(f"User:oidc:{SOMEBODY}", TOPIC, Operation.WRITE),
        ]
        for start in range(0, len(entries), _ENTRIES_AT_ONCE):
            await admin.access.add_acls(entries[start : start + _ENTRIES_AT_ONCE])
        made = [await admin.access.create_token(name) for name in ("admin", "loaded")]
    one, other = (new.token.reveal() for new in made)
    return one, other


def _entry(principal: str, topic: str, operation: Operation) -> AclEntry:
    return AclEntry(
        principal=principal,
        resource_type=ResourceType.TOPIC,
        resource_name=topic,
        operation=operation,
    )


def with_authorization(ask: Ask, authorization: str) -> Ask:
    """Return the same requests with an Authorization header."""
    if not authorization:
        return ask
    line = f"\r\nAuthorization: {authorization}\r\n".encode()
    return replace(ask, requests=[request.replace(b"\r\n", line, 1) for request in ask.requests])


def _beside(name: str, what: str, way: Way, ask: Ask) -> Contender:
    """Return a contender for turns in which ``strangers`` sends ``what`` to the same node."""
    undisturbed = way.contender(name, ask, CONNECTIONS)

    async def turn(seconds: float) -> Turn:
        knocking = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", strangers.__name__, way.url, str(STRANGERS_PER_S), what),
            stdin=DEVNULL,
            stdout=PIPE,
            start_new_session=True,
        )
        assert knocking.stdout is not None, "it is piped"
        try:
            if (await knocking.stdout.readline()).decode().strip() != strangers.READY:
                raise HttpLoadError("the strangers could not connect")
            await asyncio.sleep(_SETTLE_S)
            done = await undisturbed.turn(seconds)
            if knocking.returncode is not None:
                raise HttpLoadError("the strangers did not keep their rate; they say why")
        finally:
            if knocking.returncode is None:
                knocking.kill()
            await knocking.wait()
            await asyncio.sleep(_QUEUE_S)
        return done

    return replace(undisturbed, turn=turn)
