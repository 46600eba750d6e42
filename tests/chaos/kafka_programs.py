"""Programs of Kafka clients: readers of every view, sessions, and flows whose members share the partitions of a topic.

Their events are those of HTTP clients, so the same checks judge both. A *session* is a transactional producer that
commits, aborts, or leaves the transaction until its timeout. The *flows* of a topic are members of one group: each
consumes what the group gives it, and in one transaction writes to the other topic and moves the group. Sometimes
another producer with its transactional id takes over before the commit.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager

from tests.chaos.adapter import ApiError
from tests.chaos.cluster import Node
from tests.chaos.drafts import (
    ABORTED_SHARE,
    CONSUMED_MAX,
    LEFT_SHARE,
    LEFT_TIMEOUT_MS,
    OVERTAKEN_SHARE,
    PATIENCE_S,
    SESSION_TIMEOUT_MS,
    Draft,
    Programs,
)
from tests.chaos.history import (
    ANY_NODE,
    FinalRead,
    History,
    Outcome,
    Phase,
    Read,
    ReadFailed,
    View,
)
from tests.chaos.kafka_clients import (
    SOCKET_TIMEOUT_MS,
    Batch,
    Found,
    KafkaMember,
    KafkaProducer,
    KafkaReader,
    KafkaRefusedError,
    Place,
)
from tests.chaos.reading import RETRY_AFTER_S, identify
from tests.chaos.setup import PLACES, Client, Setup, kafka_group, places_of, roles_of

READ_S = 0.2
RECORDS_MAX = 500
PROTOCOLS = ("classic", "consumer")
"""The protocols of groups; the seed chooses one."""


class KafkaPages:
    """Reads partitions of a run over Kafka. What a call returns of a partition is one page."""

    def __init__(self, setup: Setup, servers: str, history: History) -> None:
        self._setup = setup
        self._servers = servers
        self._history = history

    async def read_on(self, programs: Programs, reader: str, view: View) -> None:
        """Read all partitions of a view until the run stops."""
        count = self._setup.partitions if view is View.PLAIN else len(PLACES)
        positions = dict.fromkeys(range(count), 0)
        async with self._assigned(view, positions) as client:
            while not programs.is_stopping:
                await self._poll(client, reader, view, positions, Phase.RUN)

    async def read_all(self, view: View, partition: int, marker: int, deadline_s: float) -> None:
        """Read a partition from its start to past the record at ``marker``. ``deadline_s`` is monotonic."""
        positions = {partition: 0}
        async with self._assigned(view, positions) as client:
            while positions[partition] <= marker and time.monotonic() < deadline_s:
                await self._poll(client, "final-kafka", view, positions, Phase.FINAL)
        self._history.add(
            FinalRead(
                at_s=self._history.now_s(),
                partition=partition,
                node=ANY_NODE,
                is_complete=positions[partition] > marker,
                end_offset=positions[partition],
                view=view,
            )
        )

    @asynccontextmanager
    async def _assigned(self, view: View, positions: dict[int, int]) -> AsyncIterator[KafkaReader]:
        client = KafkaReader(self._servers, is_uncommitted=view is View.UNCOMMITTED)
        try:
            await client.assign(self._located(view, positions))
            yield client
        finally:
            client.close()

    def _located(self, view: View, positions: Mapping[int, int]) -> dict[Place, int]:
        return {self._setup.located(view, number): at for number, at in positions.items()}

    async def _poll(
        self, client: KafkaReader, reader: str, view: View, positions: dict[int, int], phase: Phase
    ) -> None:
        """Read once, note a page for each partition, and move the positions."""
        try:
            found = await client.read(RECORDS_MAX, READ_S)
        except ApiError as error:
            for partition in positions:
                self._fail(reader, partition, view, error)
            await asyncio.sleep(RETRY_AFTER_S)
            await client.assign(self._located(view, positions))
            return
        for partition, at in positions.items():
            rows = found.get(self._setup.located(view, partition))
            if rows:
                self._history.add(
                    Read(
                        at_s=self._history.now_s(),
                        reader=reader,
                        partition=partition,
                        node=ANY_NODE,
                        from_offset=at,
                        records=_named(rows),
                        phase=phase,
                        view=view,
                    )
                )
                positions[partition] = max(at, rows[-1][0] + 1)

    def _fail(self, reader: str, partition: int, view: View, error: ApiError) -> None:
        self._history.add(
            ReadFailed(
                at_s=self._history.now_s(),
                reader=reader,
                partition=partition,
                node=ANY_NODE,
                error=str(error)[:80],
                view=view,
            )
        )


def _named(rows: Found) -> tuple[tuple[int, str], ...]:
    return tuple((offset, identify(key, value)) for offset, key, value in rows)


class KafkaTransactors(Programs):
    """All programs of a run that write or read transactions over Kafka."""

    def __init__(
        self,
        setup: Setup,
        nodes: Sequence[Node],
        servers: str,
        history: History,
        pages: KafkaPages,
    ) -> None:
        super().__init__(setup, nodes, history, "kafka-transactors")
        self._servers = servers
        self._pages = pages
        self._protocol = PROTOCOLS[setup.seed % len(PROTOCOLS)]

    def work(self) -> list[Coroutine[None, None, None]]:
        """Return the coroutines to run at the same time."""
        roles = roles_of(Client.KAFKA, self._workload.clients)
        read_on = self._pages.read_on
        return [
            *(self._write_on(f"s{n}") for n in roles.sessions),
            *(
                self._flow_on(f"f{place}", topic)
                for topic in roles.topics
                for place in places_of(topic)
            ),
            *(read_on(self, f"c{n}", View.COMMITTED) for n in roles.committed_readers),
            *(read_on(self, f"u{n}", View.UNCOMMITTED) for n in roles.uncommitted_readers),
        ]

    @asynccontextmanager
    async def _producer(
        self, name: str, timeout_ms: int = SESSION_TIMEOUT_MS
    ) -> AsyncIterator[KafkaProducer]:
        """Start a producer with a transactional id, which ends what an earlier one left open."""
        client = KafkaProducer(
            self._servers,
            **{
                "transactional.id": name,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": timeout_ms,
                "socket.timeout.ms": min(timeout_ms, SOCKET_TIMEOUT_MS),
            },
        )
        try:
            await client.init(PATIENCE_S)
            yield client
        finally:
            client.close()

    # -- sessions

    async def _write_on(self, program: str) -> None:
        """Write transactions; begin with another producer after an error."""
        while not self.is_stopping:
            try:
                async with self._producer(program) as client:
                    while not self.is_stopping:
                        if self._is(LEFT_SHARE):
                            await self._leave(program)
                        await self._session(client, program)
                        await self._rest()
            except KafkaRefusedError:
                await asyncio.sleep(RETRY_AFTER_S)

    async def _session(self, client: KafkaProducer, program: str) -> None:
        draft = self._draft(program, has_node=False)
        await client.begin()
        try:
            is_written = await self._write_some(draft, client, program)
            if not is_written or self._is(ABORTED_SHARE):
                await self._abort(draft, client)
            else:
                await self._commit(draft, client)
        finally:
            self._history.add(draft.tried(self._history.now_s()))

    async def _leave(self, program: str) -> None:
        """Write a transaction under an id of its own, and leave it open until it times out."""
        draft = self._draft(program, has_node=False)
        async with self._producer(draft.name, LEFT_TIMEOUT_MS) as client:
            await client.begin()
            try:
                await self._write_some(draft, client, program)
                draft.error = "left open"
            finally:
                self._history.add(draft.tried(self._history.now_s()))

    async def _write_some(self, draft: Draft, client: KafkaProducer, program: str) -> bool:
        places = self._rng.choices(range(len(PLACES)), k=self._rng.randint(2, 5))
        return all(
            [await self._write(draft, client, place, self._records(program, 2)) for place in places]
        )

    async def _write(
        self, draft: Draft, client: KafkaProducer, place: int, names: Sequence[str]
    ) -> bool:
        """Write records to a place; return whether all of them were acknowledged."""
        written = len(draft.writes)
        draft.writes += [(place, name, None) for name in names]
        receipts = await client.write(*PLACES[place], self._values(names))
        draft.writes[written:] = [
            (place, name, receipt.offset) for name, receipt in zip(names, receipts, strict=True)
        ]
        return all(receipt.outcome is Outcome.OK for receipt in receipts)

    async def _commit(self, draft: Draft, client: KafkaProducer) -> None:
        """Commit.

        Raises:
            KafkaRefusedError: the producer can do nothing more.
        """
        # If the task is cancelled, the request may still be sent.
        draft.outcome = Outcome.UNKNOWN
        draft.outcome, draft.error = await client.commit(PATIENCE_S)
        if draft.outcome is Outcome.UNKNOWN:
            raise KafkaRefusedError(draft.error, is_over=True)
        if draft.outcome is Outcome.FAILED and not await client.abort(PATIENCE_S):
            raise KafkaRefusedError("not aborted", is_over=True)

    async def _abort(self, draft: Draft, client: KafkaProducer) -> None:
        """Abort. The outcome is aborted whatever the response is, because no commit was ever requested.

        Raises:
            KafkaRefusedError: the producer can do nothing more.
        """
        draft.error = "aborted"
        if not await client.abort(PATIENCE_S):
            raise KafkaRefusedError("not aborted", is_over=True)

    # -- consume, transform, produce

    async def _flow_on(self, program: str, topic: str) -> None:
        """Consume as a member of the topic's group; begin with another member and producer after an error."""
        while not self.is_stopping:
            member = KafkaMember(self._servers, kafka_group(topic), topic, protocol=self._protocol)
            try:
                async with self._producer(program) as client:
                    while not self.is_stopping:
                        await self._flow(client, member, program, topic)
                        await self._rest()
            except (KafkaRefusedError, ApiError):
                await asyncio.sleep(RETRY_AFTER_S)
            finally:
                member.close()

    async def _flow(
        self, client: KafkaProducer, member: KafkaMember, program: str, topic: str
    ) -> None:
        draft = self._draft(program, has_node=False)
        batch = await member.read(CONSUMED_MAX, READ_S)
        if batch is None:
            return
        moved = self._note_consumed(draft, batch, program)
        await client.begin()
        is_overtaken = self._is(OVERTAKEN_SHARE)
        try:
            others = [n for n, (name, _) in enumerate(PLACES) if name != topic]
            is_written = all(
                [await self._write(draft, client, n, self._records(program, 1)) for n in others]
            )
            await client.send_offsets(moved, batch.metadata, PATIENCE_S)
            if is_overtaken:
                async with self._producer(program):
                    await self._commit_too_late(draft, client)
            elif is_written and not self._is(ABORTED_SHARE):
                await self._commit(draft, client)
            else:
                await self._abort(draft, client)
        except KafkaRefusedError as error:
            draft.error = str(error)[:80]
            if error.is_over or not await client.abort(PATIENCE_S):
                raise
        finally:
            self._history.add(draft.tried(self._history.now_s()))
        if draft.outcome is not Outcome.OK:
            await member.rewind(batch.starts)

    async def _commit_too_late(self, draft: Draft, client: KafkaProducer) -> None:
        """Request the commit although another producer has the transactional id: it must be refused.

        Raises:
            KafkaRefusedError: it was refused.
        """
        outcome, error = await client.commit(PATIENCE_S)
        draft.outcome = outcome if outcome is Outcome.OK else Outcome.FAILED
        raise KafkaRefusedError(f"overtaken: {error}", is_over=True)

    def _note_consumed(self, draft: Draft, batch: Batch, program: str) -> dict[Place, int]:
        """Note what the transaction consumes; return the offsets to which it moves the group."""
        draft.consumed = tuple(
            (PLACES.index(place), offset, record)
            for place, rows in batch.records.items()
            for offset, record in _named(rows)
        )
        moved = {place: rows[-1][0] + 1 for place, rows in batch.records.items()}
        draft.moved = tuple(
            (PLACES.index(place), batch.starts[place], upto) for place, upto in moved.items()
        )
        for place, rows in batch.records.items():
            self._history.add(
                Read(
                    at_s=self._history.now_s(),
                    reader=program,
                    partition=PLACES.index(place),
                    node=ANY_NODE,
                    from_offset=batch.starts[place],
                    records=_named(rows),
                    phase=Phase.RUN,
                    view=View.COMMITTED,
                )
            )
        return moved
