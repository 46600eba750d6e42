"""No message of another node ends a node: every request, with each field at its bounds, of a wrong type, and missing.

The requests that are spoiled are those that nodes really send each other while clients call every operation, and the
recorded samples of the calls that do not occur so.
"""

import asyncio
import inspect
import struct
from collections.abc import Iterator
from itertools import cycle

import pytest

from milena.model.batch.encode import encode_batch
from milena.model.columns import RecordColumns
from milena.model.contained import EntryPoint
from milena.model.errors import MilenaError
from node.control.messages import HEARTBEAT
from node.metadata.discovery import VOTERS
from node.peers import codec as peer_codec
from node.peers.link import Handler
from node.peers.port import Fields
from node.services.messages import KEYED_TRANSACTION, KNOWN_IMAGE, MOVES, SEQUENCES
from tests.support.clusters.nodes import Cluster, SimNode, cluster_of
from tests.support.clusters.peer_samples import fields_of, names_of_samples, samples_of
from tests.support.fakes.peers import travelled
from tests.support.http.contract import asks
from tests.support.http.direct import DirectApi, request_bytes
from tests.support.time.virtual_time import LoopClock, current_loop, virtual

INT64_MAX = (1 << 63) - 1
NUMBERS = (0, -1, -2, 1, 1 << 31, INT64_MAX, -INT64_MAX - 1, 1 << 63, (1 << 64) - 1)
OTHERS = (
    None,
    True,
    1.5,
    float("nan"),
    "",
    "a" * 300,
    "\x00",
    b"",
    b"\xff" * 20,
    [],
    {},
    [[]],
    [None],
    {"a": 1},
)
BODIES = (b"", b"\x00", b"\xff" * 100, b"\x00" * 1_000)
KEPT_PER_TYPE = 3
PATIENCE_S = 2.0

Request = tuple[str, int, Fields, bytes]

_RARE: dict[str, Fields] = {
    KEYED_TRANSACTION.name: {
        "topic": "", "partition": 0, "epoch": 0, "partitions": 1, "key": b"k" * 16,
    },
    SEQUENCES.name: {"id": 1, "epoch": 0},
    KNOWN_IMAGE.name: {"index": 0},
    VOTERS.name: {},
    MOVES.name: {},
}  # fmt: skip
"""Requests that no operation of the contract leads to."""


def a_batch() -> bytes:
    columns = RecordColumns(None, None, [b"k", None], [b"1", b"2"], None)
    return encode_batch(columns, base_timestamp_ms=LoopClock().wall_ms())


class Recorder:
    """Keeps the first few requests of each type that nodes send each other."""

    def __init__(self, cluster: Cluster) -> None:
        self.kept: dict[str, list[tuple[int, Fields, bytes]]] = {}
        for handlers in cluster.network.handlers.values():
            for name, handler in handlers.items():
                handlers[name] = self._watched(name, handler)

    def _watched(self, name: str, handler: Handler) -> Handler:
        def serve(peer_id: int, fields: Fields, body: bytes) -> object:
            kept = self.kept.setdefault(name, [])
            shapes = [set(known) for _, known, _ in kept]
            if len(kept) < KEPT_PER_TYPE or (set(fields) not in shapes and len(kept) < 8):
                kept.append((peer_id, travelled(fields), bytes(body)))
            return handler(peer_id, fields, body)

        return serve  # type: ignore[return-value]


def spoiled(fields: object) -> Iterator[object]:
    """The same with one value changed, or gone; of lists the first item."""
    if isinstance(fields, dict):
        for name, value in fields.items():
            yield {key: kept for key, kept in fields.items() if key != name}
            for changed in spoiled(value):
                yield {**fields, name: changed}
        yield {**fields, "unknown": 1}
    elif isinstance(fields, list):
        if fields:
            yield fields[:-1]
            yield fields + fields
        for at, value in enumerate(fields[:8]):
            for changed in spoiled(value):
                yield [*fields[:at], changed, *fields[at + 1 :]]
    yield from NUMBERS
    yield from OTHERS


def spoiled_bodies(body: bytes) -> Iterator[bytes]:
    yield from BODIES
    if not body:
        return
    yield body[:-1]
    yield body + body
    yield body + b"\x00"
    for at in range(min(len(body), 90)):
        for value in (0x00, 0x7F, 0x80, 0xFF):
            yield body[:at] + bytes((value,)) + body[at + 1 :]
    for at in range(min(len(body), 88)):
        for number in (0, 1 << 31, INT64_MAX, -1):
            yield body[:at] + struct.pack(">q", number) + body[at + 8 :]


async def ask(node: SimNode, name: str, peer_id: int, fields: Fields, body: bytes) -> None:
    """As a ``ServerLink`` asks; raises what it would contain."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            result = node.peer_handlers[name](peer_id, fields, body)
            reply = await result if inspect.isawaitable(result) else result
    except (MilenaError, TimeoutError):
        return
    peer_codec.encode_answer(0, reply[0])
    b"".join(reply[1])


class Spoiler:
    """Sends spoiled requests to the nodes of a cluster, and keeps what they should not have led to."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.faults: list[str] = []
        self.count = 0

    async def send(
        self, node_id: int, name: str, peer_id: int, fields: Fields, body: bytes
    ) -> None:
        self.count += 1
        node = self.cluster.nodes[node_id]
        what = f"{name} to node {node_id}: {str(fields)[:600]} {body[:100]!r}"
        try:
            await ask(node, name, peer_id, fields, body)
        except Exception as error:
            self._note(f"{what}\n  raised {error!r}", error)
        self.look(what)

    def look(self, what: str) -> None:
        """Note what went wrong anywhere since the last look."""
        loop = current_loop()
        if loop.failures:
            failures, loop.failures = loop.failures, []
            self._note(f"{what}\n  a callback failed: {failures!r}")
        for each in self.cluster.nodes.values():
            if each.fatal:
                fatal, each.fatal = each.fatal, []
                self._note(f"{what}\n  node {each.node_id} ended: {fatal!r}", fatal[0])
            if each.counts.contained.total:
                counts = {k.value: n for k, n in each.counts.contained.counts.items() if n}
                each.counts.contained.counts = dict.fromkeys(each.counts.contained.counts, 0)
                self._note(f"{what}\n  node {each.node_id} contained {counts}")

    def _note(self, fault: str, error: BaseException | None = None) -> None:
        place = ""
        if error is not None and error.__traceback__ is not None:
            last = error.__traceback__
            while last.tb_next is not None:
                last = last.tb_next
            place = f" at {last.tb_frame.f_code.co_filename}:{last.tb_lineno}"
        self.faults.append(fault + place)


async def recorded(cluster: Cluster) -> list[Request]:
    """Real requests of every type that there is, as (type, caller, fields, body)."""
    recorder = Recorder(cluster)
    apis = cycle([DirectApi(cluster.nodes[number]) for number in (4, 3, 2)])
    cluster_id = cluster.image.cluster_id
    for each in asks(a_batch()):
        if each.operation not in ("drain", "v3DeleteTopic", "deleteGroup", "v3DeleteConsumerGroup"):
            data = request_bytes(each.method, each.at(cluster_id), each.sent_headers(), each.data)
            await next(apis).ask(data)
    await LoopClock().sleep(1_000)
    topic_id = cluster.image.topic("orders").topic_id  # type: ignore[union-attr]
    for name in cluster.any.peer_handlers:
        for header, body in samples_of(name, "request") if name in names_of_samples() else ():
            fields = fields_of(header)
            if "t" in fields and isinstance(fields["t"], str):
                fields["t"] = topic_id
            recorder.kept.setdefault(name, []).append((2, fields, body))
    for name, rare in _RARE.items():
        fields = {**rare, "topic": topic_id} if "topic" in rare else rare
        recorder.kept.setdefault(name, []).append((2, fields, b""))
    missing = set(cluster.any.peer_handlers) - set(recorder.kept)
    assert not missing, missing
    return [(name, *each) for name, kept in sorted(recorder.kept.items()) for each in kept]


async def sweep(stride: int, first: int = 0) -> None:
    async with cluster_of(Cluster(node_ids=(1, 2, 3, 4))) as cluster:
        await cluster.create("orders", (1, 2, 3))
        requests = await recorded(cluster)
        cluster.network.failures.clear()
        spoiler, targets, number = Spoiler(cluster), cycle((1, 2, 3)), first
        for name, peer_id, fields, body in requests:
            cases: list[tuple[object, bytes]] = [(changed, body) for changed in spoiled(fields)]
            cases += [(fields, changed) for changed in spoiled_bodies(body)]
            # The link itself sees to it that fields are a map.
            cases = [case for case in cases if isinstance(case[0], dict)]
            for changed, spoiled_body in cases[number % stride :: stride]:
                assert isinstance(changed, dict)
                await spoiler.send(next(targets), name, peer_id, travelled(changed), spoiled_body)
            number += 1
        assert not spoiler.faults, "\n".join(spoiler.faults[:30])
        assert spoiler.count > 10_000 // stride
        # Some of what was said is believed: that a broker drains, or that all records are to be deleted. Reads go on.
        for node_id in (1, 2, 3, 4):
            found = await cluster.nodes[node_id].fetch("orders", "earliest")
            assert found.batches or found.log_start_offset == found.high_watermark > 0


@virtual
async def test_no_message_of_a_peer_ends_a_node() -> None:
    await sweep(stride=7)


@pytest.mark.deep
@virtual
async def test_no_message_of_a_peer_ends_a_node_deep() -> None:
    await sweep(stride=1)


class Liar:
    """Answers in the place of a handler: each answer with one value changed, or whole."""

    def __init__(self, cluster: Cluster, stride: int) -> None:
        self.cluster = cluster
        self.name = ""
        """The call whose answers are spoiled; none while it is empty."""
        self.stride = stride
        self.pending: list[tuple[object, bytes]] = []
        self.known: set[str] = set()
        self.asked: set[str] = set()
        """The calls that were made since somebody emptied this."""
        self.told = 0
        for handlers in cluster.network.handlers.values():
            for name, handler in handlers.items():
                handlers[name] = self._lying(name, handler)

    def _lying(self, name: str, handler: Handler) -> Handler:
        async def serve(peer_id: int, fields: Fields, body: bytes) -> object:
            result = handler(peer_id, fields, body)
            reply = await result if inspect.isawaitable(result) else result
            self.asked.add(name)
            if name != self.name:
                return reply
            answer, chunk = travelled(reply[0]), b"".join(reply[1])
            shape = f"{sorted(answer)} {bool(chunk)} {[type(v).__name__ for v in answer.values()]}"
            if shape not in self.known:
                self.known.add(shape)
                cases = [(changed, chunk) for changed in spoiled(answer)]
                cases += [(answer, changed) for changed in spoiled_bodies(chunk)]
                cases = [case for case in cases if isinstance(case[0], dict)]
                self.pending += cases[len(self.known) % self.stride :: self.stride]
            if not self.pending:
                return reply
            self.told += 1
            spoiled_fields, spoiled_body = self.pending.pop()
            return travelled(spoiled_fields), [spoiled_body]  # type: ignore[arg-type]

        return serve  # type: ignore[return-value]


async def sweep_answers(stride: int) -> None:
    async with cluster_of(Cluster(node_ids=(1, 2, 3, 4))) as cluster:
        cluster.is_broken = True
        await cluster.create("orders", (1, 2, 3))
        liar, spoiler = Liar(cluster, stride), Spoiler(cluster)
        api = DirectApi(cluster.nodes[4])
        cluster_id = cluster.image.cluster_id
        leading: dict[str, list[bytes]] = {}
        """The requests of clients that lead to each call."""
        for each in asks(a_batch()):
            if each.operation in ("drain", "v3DeleteTopic"):
                continue
            data = request_bytes(each.method, each.at(cluster_id), each.sent_headers(), each.data)
            liar.asked.clear()
            await api.ask(data)
            for name in liar.asked - {HEARTBEAT.name}:
                leading.setdefault(name, []).append(data)
        assert set(leading) > {"fetch", "produce", "read", "group_heartbeat", "group_commit"}
        for name in sorted(leading):
            liar.name, liar.known = name, set()
            for data in leading[name]:
                for _ in range(400):
                    before = liar.told
                    await api.ask(data)
                    # Numbers that no leader could say may end the request, as an internal error.
                    counts = cluster.nodes[4].counts.contained.counts
                    counts[EntryPoint.API] = 0
                    spoiler.look(f"a spoiled answer to {name}, for {data[:200]!r}")
                    if not liar.pending or liar.told == before:
                        break
        liar.name = ""
        assert not spoiler.faults, "\n".join(spoiler.faults[:30])
        assert liar.told > 2_000 // stride
        await cluster.until(lambda: set(cluster.isr_of("orders")) == {1, 2, 3}, 60_000)
        for node_id in (1, 2, 3):
            assert (await cluster.nodes[node_id].write("orders", "still here"))[0].error is None


@virtual
async def test_no_answer_of_a_peer_ends_a_node() -> None:
    await sweep_answers(stride=11)


@pytest.mark.deep
@virtual
async def test_no_answer_of_a_peer_ends_a_node_deep() -> None:
    await sweep_answers(stride=1)
