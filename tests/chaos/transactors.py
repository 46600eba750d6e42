"""Programs that write transactions, and readers of their records.

*Requesters* write to two or three partitions in one request. Some use an idempotency key, under which they repeat the
request, also to two nodes at once. *Sessions* write step by step; then they commit, abort, or leave the transaction
until its timeout. *Flows*, one per partition, consume a topic: in one transaction they write a record to both
partitions of the other topic, and move the group's offset. Sometimes another flow with the same transactional id takes
over before the commit.

A flow reads before it writes, and ``dependencies`` relies on that.
"""

import asyncio
import itertools
import time
from collections.abc import Coroutine, Mapping, Sequence

from tests.chaos.adapter import Adapter, ApiError, Receipt, Value, merge
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
from tests.chaos.history import GroupPosition, History, Outcome, View
from tests.chaos.reading import READ_WAIT_MS, RETRY_AFTER_S, PageReader
from tests.chaos.setup import PLACES, Client, Setup, kafka_group, places_of, roles_of
from tests.chaos.transaction_calls import End, Session, TopicPartition, TransactionCalls

REQUESTERS = 3
GROUP = "flows"
ATTEMPTS = 4
"""The fewest attempts for a write with a key, or for an end; each goes to the next node."""
KEYED_SHARE, HEDGED_SHARE = 0.6, 0.15
AGAIN_SHARE = 0.2
"""The share of ends that are requested again, or followed by a request for the opposite end."""

Writes = Mapping[TopicPartition, Sequence[tuple[str, Value]]]


class Transactors(Programs):
    """All programs of a run that write or read transactions over HTTP."""

    def __init__(
        self,
        setup: Setup,
        nodes: Sequence[Node],
        adapter: Adapter,
        history: History,
        pages: PageReader,
    ) -> None:
        super().__init__(setup, nodes, history, "transactors")
        self._adapter = adapter
        self._calls = TransactionCalls(adapter, timeout_s=setup.workload.write_timeout_s)
        self._pages = pages

    def work(self) -> list[Coroutine[None, None, None]]:
        """Return the coroutines to run at the same time: the share of the programs that HTTP clients have."""
        roles = roles_of(Client.HTTP, self._workload.clients)
        return [
            *(self._request_on(f"t{n}") for n in range(REQUESTERS)),
            *(self._write_on(f"s{n}") for n in roles.sessions),
            *(self._flow_on(place) for topic in roles.topics for place in places_of(topic)),
            *(self._read_on(f"c{n}", n, View.COMMITTED) for n in roles.committed_readers),
            *(self._read_on(f"u{n}", n, View.UNCOMMITTED) for n in roles.uncommitted_readers),
        ]

    # -- in one request

    async def _request_on(self, program: str) -> None:
        while not self.is_stopping:
            places = self._rng.sample(range(len(PLACES)), self._rng.randint(2, 3))
            draft = self._draft(program)
            key = f"{self._setup.seed}-{draft.name}" if self._is(KEYED_SHARE) else None
            try:
                await self._request(draft, program, places, key)
            finally:
                self._history.add(draft.tried(self._history.now_s()))
            await self._rest()

    async def _request(
        self, draft: Draft, program: str, places: Sequence[int], key: str | None
    ) -> None:
        records = {place: self._records(program, self._rng.randint(1, 3)) for place in places}
        writes = {PLACES[place]: self._values(names) for place, names in records.items()}
        named = [(place, name) for place, names in records.items() for name in names]
        draft.writes = [(place, name, None) for place, name in named]
        draft.outcome = Outcome.UNKNOWN
        known: Receipt | None = None
        for attempt in itertools.count(1):
            for latest in await self._transact(draft.node, writes, key):
                known = latest[0] if known is None else merge(known, latest[0])
                if latest[0].outcome is Outcome.OK:
                    self._note_offsets(draft, latest)
            if draft.outcome is Outcome.OK:
                return
            assert known is not None
            draft.outcome, draft.error = known.outcome, known.error
            if key is None or not self._is_patient(draft, attempt):
                return
            draft.at = self._another(draft.node)
            await asyncio.sleep(RETRY_AFTER_S)

    async def _transact(
        self, node: Node, writes: Writes, key: str | None
    ) -> Sequence[Sequence[Receipt]]:
        """Send the request to one node; with a key, sometimes to two nodes at the same time."""
        is_hedged = key is not None and self._is(HEDGED_SHARE)
        nodes = [node, self._another(node)] if is_hedged else [node]
        calls = [self._calls.transact(n.url, writes, idempotency_key=key) for n in nodes]
        return await asyncio.gather(*calls)

    def _note_offsets(self, draft: Draft, receipts: Sequence[Receipt]) -> None:
        """Note the offsets of a committed transaction; a second response must have the same ones."""
        written = [
            (place, name, receipt.offset)
            for (place, name, _), receipt in zip(draft.writes, receipts, strict=True)
        ]
        if draft.outcome is Outcome.OK and written != draft.writes:
            draft.again = Outcome.FAILED
        draft.writes, draft.outcome, draft.error = written, Outcome.OK, None

    # -- step by step

    async def _write_on(self, program: str) -> None:
        while not self.is_stopping:
            draft = self._draft(program)
            # A session that is left open uses a new id: the next start under its id would abort it before its timeout.
            is_left = self._is(LEFT_SHARE)
            name = draft.name if is_left else program
            timeout_ms = LEFT_TIMEOUT_MS if is_left else SESSION_TIMEOUT_MS
            session = await self._calls.begin(draft.node.url, name, timeout_ms=timeout_ms)
            if session is not None:
                try:
                    await self._write_and_end(draft, program, session, is_left=is_left)
                finally:
                    self._history.add(draft.tried(self._history.now_s()))
            await self._rest()

    async def _write_and_end(
        self, draft: Draft, program: str, session: Session, *, is_left: bool
    ) -> None:
        places = self._rng.choices(range(len(PLACES)), k=self._rng.randint(2, 5))
        is_written = all(
            [
                await self._write(draft, session, place, self._records(program, 2))
                for place in places
            ]
        )
        if is_left:
            draft.error = "left open"
        elif not is_written or self._is(ABORTED_SHARE):
            await self._abort(draft, session)
        else:
            await self._commit(draft, session)

    async def _write(
        self, draft: Draft, session: Session, place: int, names: Sequence[str]
    ) -> bool:
        """Write records under an idempotency key; return whether all of them were acknowledged."""
        topic, partition = PLACES[place]
        written = len(draft.writes)
        draft.writes += [(place, name, None) for name in names]
        node = draft.node
        for _ in range(ATTEMPTS):
            receipts = await self._adapter.produce(
                node.url,
                topic,
                partition,
                self._values(names),
                acks="all",
                timeout_s=self._workload.write_timeout_s,
                idempotency_key=f"{self._setup.seed}-{names[0]}",
                transaction=session.header,
            )
            if all(receipt.outcome is Outcome.OK for receipt in receipts):
                draft.writes[written:] = [
                    (place, name, receipt.offset)
                    for name, receipt in zip(names, receipts, strict=True)
                ]
                return True
            node = self._another(node)
            await asyncio.sleep(RETRY_AFTER_S)
        return False

    async def _commit(
        self, draft: Draft, session: Session, offsets: dict[tuple[str, int], int] | None = None
    ) -> None:
        """Request the commit until the outcome is certain; finally request the abort, which makes it certain."""
        outcomes, end = set(), End.COMMIT
        for attempt in itertools.count(1):
            draft.outcome = Outcome.UNKNOWN
            ending = await self._calls.end(
                draft.node.url, session, end, draft.extents, GROUP, offsets
            )
            outcomes |= {ending.outcome} if end is End.COMMIT else set()
            draft.error = ending.error
            if ending.is_settled:
                draft.outcome = ending.outcome
                await self._ask_again(draft, session, offsets)
                return
            # If every attempt was certainly refused, none of them takes effect later.
            draft.outcome = Outcome.UNKNOWN if Outcome.UNKNOWN in outcomes else Outcome.FAILED
            if end is End.ABORT:
                return
            if not self._is_patient(draft, attempt):
                end = End.ABORT
            draft.at = self._another(draft.node)
            await asyncio.sleep(RETRY_AFTER_S)

    async def _abort(self, draft: Draft, session: Session) -> None:
        """Request the abort. The outcome is aborted whatever the response is, because no commit was ever requested."""
        draft.error = "aborted"
        ending = await self._calls.end(draft.node.url, session, End.ABORT, {})
        if ending.is_settled:
            draft.again = ending.outcome
            await self._ask_again(draft, session)

    async def _ask_again(
        self, draft: Draft, session: Session, offsets: dict[tuple[str, int], int] | None = None
    ) -> None:
        """Sometimes request the same or the opposite end from another node; neither may change an ended transaction."""
        is_known = all(offset is not None for _, _, offset in draft.writes)
        if not is_known or not self._is(AGAIN_SHARE):
            return
        node = self._another(draft.node)
        end = self._rng.choice(list(End))
        ending = await self._calls.end(node.url, session, end, draft.extents, GROUP, offsets)
        if ending.is_settled:
            draft.again = ending.outcome

    # -- consume, transform, produce

    async def _flow_on(self, place: int) -> None:
        while not self.is_stopping:
            await self._flow(place, can_be_overtaken=True)
            await self._rest()

    async def _flow(self, place: int, *, can_be_overtaken: bool) -> None:
        program = f"f{place}"
        draft = self._draft(program)
        session = await self._calls.begin(draft.node.url, program, timeout_ms=SESSION_TIMEOUT_MS)
        if session is None or not await self._consume(draft, place):
            return
        try:
            others = [n for n, (topic, _) in enumerate(PLACES) if topic != PLACES[place][0]]
            is_written = all(
                [await self._write(draft, session, n, self._records(program, 1)) for n in others]
            )
            if can_be_overtaken and self._is(OVERTAKEN_SHARE):
                await self._flow(place, can_be_overtaken=False)
            if is_written:
                offsets = {PLACES[number]: upto for number, _, upto in draft.moved}
                await self._commit(draft, session, offsets)
            else:
                await self._abort(draft, session)
        finally:
            self._history.add(draft.tried(self._history.now_s()))

    async def _consume(self, draft: Draft, place: int) -> bool:
        """Read the records that the group has not consumed; return whether there are any."""
        try:
            position = await self._calls.position(draft.node.url, GROUP, PLACES[place])
        except ApiError:
            return False
        start = position or 0
        page = await self._pages.read(f"f{place}", draft.node, View.COMMITTED, place, start)
        taken = page.records[:CONSUMED_MAX] if page is not None else ()
        if not taken:
            return False
        draft.consumed = tuple((place, offset, record) for offset, record in taken)
        draft.moved = ((place, start, taken[-1][0] + 1),)
        return True

    async def look_at_group(self, deadline_s: float) -> None:
        """Note the group's committed offset, as each node reports it. ``deadline_s`` is monotonic."""
        over_kafka = roles_of(Client.KAFKA, self._workload.clients).topics
        for place, (topic, partition) in enumerate(PLACES):
            group = kafka_group(topic) if topic in over_kafka else GROUP
            for node in self._nodes:
                while time.monotonic() < deadline_s:
                    try:
                        found = await self._calls.position(node.url, group, (topic, partition))
                    except ApiError:
                        await asyncio.sleep(RETRY_AFTER_S)
                        continue
                    self._history.add(
                        GroupPosition(
                            at_s=self._history.now_s(),
                            place=place,
                            node=node.node_id,
                            next_offset=found,
                        )
                    )
                    break

    # -- readers

    async def _read_on(self, reader: str, at: int, view: View) -> None:
        positions = dict.fromkeys(range(len(PLACES)), 0)
        while not self.is_stopping:
            place = self._rng.choice(list(positions))
            node = self._nodes[at % len(self._nodes)]
            following = await self._pages.poll(reader, node, view, place, positions[place])
            if following is not None:
                positions[place] = following
            else:
                at += self._is(0.5)
            await asyncio.sleep(READ_WAIT_MS / 1000)

    # -- what all of them need

    def _is_patient(self, draft: Draft, attempt: int) -> bool:
        """Return whether to make another attempt after this many."""
        is_late = self._history.now_s() > draft.sent_s + PATIENCE_S
        return attempt < ATTEMPTS or (draft.outcome is Outcome.UNKNOWN and not is_late)

    def _another(self, node: Node) -> Node:
        at = list(self._nodes).index(node)
        return self._nodes[(at + 1) % len(self._nodes)]
