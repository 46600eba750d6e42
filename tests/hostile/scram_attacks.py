"""What hostile Kafka clients do to the sign-ins by SCRAM of a closed node.

Each attack returns how often which outcome was seen: the error code of the last response, or an outcome of ``attacks``.
An attack fails if an attacker is let in. Each attacker has an address of its own, so the bound on the wrong passwords
of an address does not stop it.
"""

import asyncio
import base64
import hashlib
import random
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from kafka.net.sasl.scram import ScramClient

from loadtest.cluster.local_cluster import LocalCluster, LocalNode
from milena import Credentials, Secret
from node.kafka.wire import cold
from tests.hostile.attacks import Attack, Outcomes, Scale, together
from tests.support.clusters.kafka_clients import decoded, plain, request_frame
from tests.support.clusters.live_cluster import running_cluster

ADMIN, USER, PASSWORD = "admin", "decent", "a password of tests"
SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
MECHANISMS = (SHA_256, SHA_512)
METADATA, HANDSHAKE, API_VERSIONS, AUTHENTICATE, DESCRIBE, ALTER = 3, 17, 18, 36, 50, 51
INT32_MAX = (1 << 31) - 1


@contextmanager
def closed_cluster(folder: Path, node_count: int) -> Iterator[LocalCluster]:
    """Nodes that ask for credentials, with a user that has SCRAM credentials."""
    (folder / "password").write_text(f"{PASSWORD}\n")
    with running_cluster(
        folder / "nodes",
        node_count=node_count,
        credentials=Credentials(user=ADMIN, password=Secret(PASSWORD)),
        admin_password_file=folder / "password",
        kafka_listen="127.0.0.1:0",
        bad_credentials_delay_ms=100,
    ) as cluster:
        asyncio.run(_add_user(cluster.nodes[0]))
        yield cluster


def authorization() -> str:
    """The credentials of the admin over HTTP."""
    return "Basic " + base64.b64encode(f"{ADMIN}:{PASSWORD}".encode()).decode()


class Wire:
    """A connection to the Kafka port of a node."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.opening = self.challenge = b""
        """The last first messages of the client and of the server."""
        self.scram: ScramClient | None = None

    def write(self, key: int, version: int, body: bytes) -> None:
        """Send a request without a wait."""
        self.write_bytes(request_frame(key, version, body))

    def write_bytes(self, data: bytes) -> None:
        """Send bytes without a wait."""
        self._writer.write(data)

    @property
    def is_closed(self) -> bool:
        """Whether the node is known to have closed the connection."""
        return self._writer.transport.is_closing()

    async def read(self) -> bytes:
        """The next response, behind its correlation id."""
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        return (await self._reader.readexactly(size))[4:]

    async def call(self, key: int, version: int, **fields: Any) -> Any:
        """Send a request; return its response."""
        self.write(key, version, cold.encode_request(key, version, fields))
        return decoded(key, version, await self.read())

    async def begin(self, mechanism: str = SHA_256) -> None:
        """Send a handshake."""
        assert (await self.call(HANDSHAKE, 1, mechanism=mechanism)).error_code == 0

    async def send(self, message: bytes) -> int:
        """Send a message of SASL; return the error code, and keep the challenge."""
        found = await self.call(AUTHENTICATE, 2, auth_bytes=message)
        if found.error_code == 0 and found.auth_bytes.startswith(b"r="):
            self.challenge = bytes(found.auth_bytes)
        return int(found.error_code)

    async def first(self, mechanism: str = SHA_256) -> int:
        """Send a good first message."""
        self.scram = ScramClient(USER, PASSWORD, mechanism)
        self.opening = self.scram.first_message()
        return await self.send(self.opening)

    def final(self) -> bytes:
        """The good final message for the last challenge. An attacker may have heard it."""
        assert self.scram is not None
        self.scram.process_server_first_message(self.challenge)
        return self.scram.final_message()


@asynccontextmanager
async def wired(node: LocalNode, number: int | None = None) -> AsyncIterator[Wire]:
    """A connection from an attacker's address; None: from the decent one."""
    host, _, port = node.kafka_address().rpartition(":")
    own = "127.0.0.1" if number is None else f"127.1.{number // 250 % 250}.{number % 250 + 1}"
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(own, 0))
    try:
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()


async def sign_in(node: LocalNode) -> None:
    """Sign in as a decent client does.

    Raises:
        AssertionError: it was not let in.
    """
    async with wired(node) as wire:
        await wire.begin()
        assert await wire.first() == 0
        assert await wire.send(wire.final()) == 0
        assert (await wire.call(METADATA, 1, topics=[])).brokers


async def _add_user(node: LocalNode) -> None:
    async with wired(node) as wire:
        await _sign_in_as_admin(wire)
        rows = [_upsert(mechanism=place) for place in (1, 2)]
        found = await wire.call(ALTER, 0, deletions=[], upsertions=rows)
        assert [row.error_code for row in found.results] == [0]


async def _sign_in_as_admin(wire: Wire) -> None:
    await wire.begin("PLAIN")
    assert await wire.send(plain(ADMIN, PASSWORD)) == 0


def _upsert(name: str = USER, **changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "mechanism": 1, "iterations": 4096, "salt": b"pepper"}
    hash_name = "sha512" if changes.get("mechanism") == 2 else "sha256"
    salted = hashlib.pbkdf2_hmac(hash_name, PASSWORD.encode(), row["salt"], row["iterations"])
    return {**row, "salted_password": salted, **changes}


async def _run(
    node: LocalNode, number: int, scale: Scale, act: Callable[[Wire], Awaitable[int]]
) -> str:
    """The outcome of a client's messages. ``act`` returns the code of its last response."""
    async with wired(node, number) as wire:
        try:
            async with asyncio.timeout(scale.patience_s):
                code = await act(wire)
                if code:
                    return str(code)
                await wire.call(METADATA, 1, topics=[])
        except TimeoutError:
            return "silent"
        except asyncio.IncompleteReadError:
            return "closed"
        raise AssertionError("an attacker was let in")


# -- malformed messages --------------------------------------------------------------------------

FIRSTS = (
    b"",
    b"\0",
    b"n,,",
    b"n,,n=,r=nonce",
    b"n,,n=decent",
    b"n,,r=nonce,n=decent",
    b"n,,n=decent,r=",
    b"n,,n=decent,r=no,nce",
    b"n,,n=decent,r=non\0ce",
    b"n,,n=de\0cent,r=nonce",
    b"n,,n=decent,r=\xff\xfe",
    b"n,,n=de=2cent,r=nonce",
    b"n,,n==,r=nonce",
    b"n,a=admin,n=decent,r=nonce",
    b"n,a=,n=decent,r=nonce",
    b"p=tls-unique,,n=decent,r=nonce",
    b"n,,m=must,n=decent,r=nonce",
    b"n,,n=decent,r=nonce,m=must",
    b"n,,n=decent,r=nonce,tokenauth=true",
    b"n,,n=decent,r=nonce,",
    b"n,,n=decent,r=nonce" + b",x=y" * 1500,
    b"n,,n=decent,r=" + b"x" * 5_000,
    b"n,,n=" + b"=3D" * 20_000 + b",r=nonce",
    b"," * 60_000,
    b"n,," + b"n=" * 30_000,
)
"""First messages that are none."""


def _finals(wire: Wire) -> tuple[bytes, ...]:
    """Final messages that are none for the challenge of a connection."""
    nonce = wire.challenge.split(b",")[0]
    zeros = base64.b64encode(bytes(32))
    return (
        b"",
        b"\xff" * 100,
        b"c=biws," + nonce,
        b"c=biws," + nonce + b",p=",
        b"c=biws," + nonce + b",p=" + zeros,
        b"c=biws," + nonce + b",p=" + zeros + b"=",
        b"c=biws," + nonce + b",p=" + base64.b64encode(bytes(31)),
        b"c=biws," + nonce + b",p=" + base64.b64encode(bytes(64)),
        b"c=biws," + nonce + b",p=!!!!",
        b"c=biws," + nonce + b"x,p=" + zeros,
        b"c=biws,r=,p=" + zeros,
        b"c=eSws," + nonce + b",p=" + zeros,
        b"c=," + nonce + b",p=" + zeros,
        nonce + b",c=biws,p=" + zeros,
        b"c=biws," + nonce + b",m=must,p=" + zeros,
        b"c=biws," + nonce + b",p=" + zeros + b",x=y",
        b"c=biws," + nonce + b",x=" + b"y" * 50_000 + b",p=" + zeros,
        b"v=" + zeros,
        wire.challenge,
    )


FINAL_COUNT = 19
FRAMES = tuple(
    struct.pack(">i", size) + bytes(sent)
    for size, sent in ((-1, 0), (-2, 8), (INT32_MAX, 8), (9, 8), (70_000, 70_000))
)
"""SaslAuthenticate 0 with a wrong length of the message, or one above the bound of strangers."""


async def malformed_scram(node: LocalNode, scale: Scale) -> Outcomes:
    """Messages that are none, in the place of the first or of the final one."""

    async def once(number: int) -> str:
        async def act(wire: Wire) -> int:
            place = number
            await wire.begin()
            if place < len(FIRSTS):
                return await wire.send(FIRSTS[place])
            place -= len(FIRSTS)
            if place < FINAL_COUNT:
                assert await wire.first() == 0
                finals = _finals(wire)
                assert len(finals) == FINAL_COUNT
                return await wire.send(finals[place])
            wire.write(AUTHENTICATE, 0, FRAMES[place - FINAL_COUNT])
            return int(decoded(AUTHENTICATE, 0, await wire.read()).error_code)

        return await _run(node, number, scale, act)

    return await together(len(FIRSTS) + FINAL_COUNT + len(FRAMES), once, 10)


async def random_scram(node: LocalNode, scale: Scale) -> Outcomes:
    """Good messages with some bytes changed, cut or doubled."""

    async def once(number: int) -> str:
        rng = random.Random(number)

        def spoilt(message: bytes) -> bytes:
            at = rng.randrange(1, len(message))
            byte = bytes([message[at] ^ (1 << rng.randrange(8))])
            changed = message[:at] + byte + message[at + 1 :]
            return rng.choice((changed, message[:at], message[at:], message + message[at:]))

        async def act(wire: Wire) -> int:
            await wire.begin()
            if number % 2:
                wire.scram = ScramClient(USER, PASSWORD, SHA_256)
                # A changed nonce or name is still a first message, and gets a challenge.
                code = await wire.send(spoilt(wire.scram.first_message()))
                return code or await wire.send(b"c=biws,r=x,p=" + base64.b64encode(bytes(32)))
            assert await wire.first() == 0
            return await wire.send(spoilt(wire.final()))

        return await _run(node, number, scale, act)

    return await together(scale.garbage * 4, once, 20)


# -- order ---------------------------------------------------------------------------------------


async def disordered_scram(node: LocalNode, scale: Scale) -> Outcomes:
    """Handshakes, first and final messages in any order; the final ones are of an earlier exchange."""

    async def once(number: int) -> str:
        rng = random.Random(number)

        async def act(wire: Wire) -> int:
            stale = b""
            for _ in range(rng.randrange(1, 12)):
                step = rng.choice(("handshake", "first", "stale", "empty", "other"))
                if step in ("handshake", "other"):
                    if wire.challenge and wire.scram is not None and not stale:
                        stale = wire.final()
                    await wire.begin(rng.choice(MECHANISMS) if step == "other" else SHA_256)
                    continue
                if step == "first":
                    code = await wire.first(rng.choice(MECHANISMS))
                else:
                    code = await wire.send(stale if step == "stale" else b"")
                if code:
                    return code
            return 0

        return await _run(node, number, scale, act)

    return await together(scale.garbage * 4, once, 20)


# -- replays -------------------------------------------------------------------------------------


async def replayed_scram(node: LocalNode, scale: Scale) -> Outcomes:
    """Messages of a good exchange, sent again: on another connection, on the same one, crossed, and unasked."""

    async def once(number: int) -> str:
        way = (_on_another, _on_the_same, _unasked, _crossed)[number % 4]
        async with wired(node, 1_000 + number) as heard:
            await heard.begin()
            assert await heard.first() == 0
            final = heard.final()

            async def act(wire: Wire) -> int:
                return await way(heard, final, wire)

            return await _run(node, 1_000 + number, scale, act)

    return await together(scale.garbage, once, 10)


async def _on_another(heard: Wire, final: bytes, wire: Wire) -> int:
    assert await heard.send(final) == 0
    await wire.begin()
    return await wire.send(heard.opening) or await wire.send(final)


async def _on_the_same(heard: Wire, final: bytes, _: Wire) -> int:
    assert await heard.send(final) == 0
    await heard.begin()
    return await heard.send(heard.opening) or await heard.send(final)


async def _unasked(heard: Wire, final: bytes, _: Wire) -> int:
    assert await heard.send(final) == 0
    return await heard.send(final)


async def _crossed(heard: Wire, final: bytes, wire: Wire) -> int:
    """The proof of an exchange that is still open, with the nonce of another one."""
    await wire.begin()
    assert await wire.send(heard.opening) == 0
    nonce = wire.challenge.split(b",")[0]
    return await wire.send(b"c=biws," + nonce + final[final.rindex(b",p=") :])


# -- credentials ---------------------------------------------------------------------------------

CHANGES: tuple[dict[str, Any], ...] = (
    *({"iterations": count} for count in (-INT32_MAX - 1, -1, 0, 1, 4095, 16_385, INT32_MAX)),
    *({"salt": bytes(size)} for size in (0, 129, 60_000)),
    *({"salted_password": bytes(size)} for size in (0, 31, 33, 60_000)),
    *({"mechanism": number} for number in (-128, 0, 3, 127)),
)
"""Credentials out of bounds. If the node counted their iterations, one of them would take it half an hour."""
ROWS = 3_000
"""Credentials of one request: not many more fit into the largest one that the node takes."""


async def immense_credentials(node: LocalNode, scale: Scale) -> Outcomes:
    """Credentials with iterations, salts and keys out of bounds, each alone, and thousands in one request."""
    found: Outcomes = Counter()
    async with asyncio.timeout(scale.patience_s), wired(node) as wire:
        await _sign_in_as_admin(wire)
        immense = _upsert(iterations=INT32_MAX)
        requests = [[_upsert("immense") | change] for change in CHANGES]
        requests.append([{**immense, "name": f"immense-{number}"} for number in range(ROWS)])
        for rows in requests:
            answer = await wire.call(ALTER, 0, deletions=[], upsertions=rows)
            found.update(str(row.error_code) for row in answer.results)
        answer = await wire.call(DESCRIBE, 0, users=None)
        users = [row.user for row in answer.results]
        assert users == [USER], f"credentials out of bounds were taken: {users[:10]}"
    return found


# -- floods --------------------------------------------------------------------------------------


async def first_messages(node: LocalNode, scale: Scale) -> Outcomes:
    """Many connections that begin one exchange after the other, and end none."""
    loop = asyncio.get_running_loop()
    end = loop.time() + scale.slow_seconds

    async def once(number: int) -> str:
        async with wired(node, number) as wire:
            try:
                while loop.time() < end:
                    await wire.begin(MECHANISMS[number % 2])
                    code = await wire.first(MECHANISMS[number % 2])
                    if code:
                        return str(code)
            except asyncio.IncompleteReadError:
                return "closed"
            return "waiting"

    return await together(scale.handshakes, once, scale.handshakes)


async def unread_responses(node: LocalNode, scale: Scale) -> Outcomes:
    """Many connections that send exchanges or ApiVersions by the thousand in one piece, and read no response."""
    message = b"n,,n=decent,r=nonce"
    exchange = request_frame(
        HANDSHAKE, 1, struct.pack(">h", len(SHA_256)) + SHA_256.encode()
    ) + request_frame(AUTHENTICATE, 0, struct.pack(">i", len(message)) + message)
    pieces = (exchange * 3_000, request_frame(API_VERSIONS, 0, b"") * 20_000)

    async def once(number: int) -> str:
        async with wired(node, 2_000 + number) as wire:
            wire.write_bytes(pieces[number % 2])
            await asyncio.sleep(scale.slow_seconds)
            return "closed" if wire.is_closed else "waiting"

    return await together(scale.handshakes, once, scale.handshakes)


async def wrong_proofs(node: LocalNode, scale: Scale) -> Outcomes:
    """Wrong proofs, for users that exist or do not: half from one address, which the node stops looking at."""

    async def once(number: int) -> str:
        async def act(wire: Wire) -> int:
            user = USER if number % 3 else f"nobody-{number}"
            wire.scram = ScramClient(user, "a wrong password", SHA_256)
            await wire.begin()
            return await wire.send(wire.scram.first_message()) or await wire.send(wire.final())

        return await _run(node, number if number % 2 else 0, scale, act)

    return await together(scale.garbage * 4, once, 50)


SCRAM_ATTACKS: tuple[Attack, ...] = (
    malformed_scram,
    random_scram,
    disordered_scram,
    replayed_scram,
    immense_credentials,
    first_messages,
    unread_responses,
    wrong_proofs,
)
