"""Processes of consumer groups: some copy a topic by transactions, others only read it and commit.

A process breaks down as real ones do: it leaves, it starts again, or it stands still for longer than its session and
then goes on as if nothing had happened, in the middle of a transaction, too.
"""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tests.sim.kafka import records
from tests.sim.kafka.client import (
    FETCH,
    GROUP,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    Client,
    GivenUpError,
    Place,
    RefusedError,
    RetriableError,
    check,
)
from tests.sim.kafka.judge import Tried
from tests.sim.kafka.members import SESSION_MS, STALE, ClassicMember, ConsumerMember, Member
from tests.sim.kafka.producers import FencedError, TransactionalProducer, finish
from tests.sim.kafka.wires import ConnectionLostError

if TYPE_CHECKING:
    from tests.sim.kafka.world import KafkaWorld

SOURCE, COPY = "in", "out"
HARM_CHANCE = 0.03
COPIED_MAX = 4
"""The most records of one transaction."""
IDS_FROM = 13


async def fetch(client: Client, place: Place, offset: int) -> records.Read:
    """Fetch committed records from an offset on.

    Raises:
        ConnectionLostError, RetriableError, RefusedError: no records came.
    """
    version = client.rng.randint(11, 16)
    leader = await client.leader(place)
    part = {
        "partition": place[1],
        "fetch_offset": offset,
        "partition_max_bytes": client.rng.choice((100, 400, 2_000)),
        "current_leader_epoch": -1,
    }
    topic = {"topic": place[0], "topic_id": client.ids[place[0]], "partitions": [part]}
    found = await client.ask(
        leader,
        FETCH,
        version,
        {
            "max_wait_ms": client.rng.choice((0, 100)),
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "isolation_level": 1,
            "session_epoch": -1,
            "topics": [topic],
        },
    )
    check(found.error_code)
    (row,) = found.responses[0].partitions
    check(row.error_code)
    return records.read_from(bytes(row.records or b""), offset)


async def committed(client: Client, group: str, partition: int, *, is_stable: bool) -> int:
    """Return the offset that a group has committed, 0 if there is none. ``is_stable``: wait for open transactions.

    Raises:
        ConnectionLostError, RetriableError, RefusedError: it was not told.
    """
    broker_id = await client.coordinator(GROUP, group)
    version = client.rng.randint(7, 9)
    topics = [{"name": SOURCE, "partition_indexes": [partition]}]
    asked: dict[str, Any] = {"group_id": group, "topics": topics}
    if version >= 8:
        asked = {"groups": [{"group_id": group, "topics": topics}]}
    found = await client.ask(
        broker_id, OFFSET_FETCH, version, {"require_stable": is_stable, **asked}
    )
    group_row = found.groups[0] if version >= 8 else found
    check(group_row.error_code)
    row = group_row.topics[0].partitions[0]
    check(row.error_code)
    return max(0, int(row.committed_offset))


class GroupProcess:
    """A process with one member of a group."""

    def __init__(
        self, world: "KafkaWorld", name: str, group: str, *, is_classic: bool, is_static: bool
    ) -> None:
        self._world = world
        self.name = name
        self.group = group
        self.client = Client(world, name)
        self._rng = self.client.rng
        kind = ClassicMember if is_classic else ConsumerMember
        self.member: Member = kind(world, self.client, group, f"i-{name}" if is_static else None)
        self.positions: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        """The offset of each partition that is known to be committed. One without a response is sent again."""
        self._last_commit: dict[str, Any] = {}
        """The fields of the last commit; empty: there is none that may still be late."""
        self.is_calm = False
        self.is_over = False

    async def run(self) -> None:
        """Join, work and break down until the run is over."""
        while not self.is_over:
            await asyncio.sleep(self._rng.uniform(0.05, 0.3))
            try:
                await self.turn()
                if not self.is_calm and self._rng.random() < HARM_CHANCE:
                    await self._break_down()
            except (ConnectionLostError, RetriableError):
                self.client.forget()
            except RefusedError as error:
                self._world.note(f"{self.name}: {error}")
                self.positions.clear()
                if error.code in STALE:
                    self.member.look_again()
            except GivenUpError:
                self.positions.clear()

    async def turn(self) -> None:
        """Attend to the group, then work on one partition. Errors as of requests."""
        if SOURCE not in self.client.ids:
            await self.client.leader((SOURCE, 0))
        await self.member.attend()
        await self._be_late()
        owned = self.member.owned
        self.positions = {n: at for n, at in self.positions.items() if n in owned}
        if not owned:
            return
        partition = self._rng.choice(sorted(owned))
        if partition not in self.positions:
            found = await committed(self.client, self.group, partition, is_stable=True)
            self.positions[partition] = self._committed[partition] = found
        await self.work(partition)

    async def work(self, partition: int) -> None:
        """Read some records, and commit them. Errors as of requests."""
        read = await fetch(self.client, (SOURCE, partition), self.positions[partition])
        if partition not in self.member.owned or read.next_offset == self._committed.get(partition):
            return
        await self._stand_still()
        # A commit without a response may have worked, so the next one must not be of less.
        self.positions[partition] = read.next_offset
        await self._commit(partition, read.next_offset)
        self._committed[partition] = read.next_offset
        await self._see(partition, read.next_offset)

    async def _commit(self, partition: int, offset: int) -> None:
        judge = self._world.judge
        judge.asked[self.group, partition] = max(judge.asked[self.group, partition], offset)
        member = self.member.membership
        row = {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        fields = {
            "group_id": self.group,
            "generation_id_or_member_epoch": member.generation,
            "member_id": member.member_id,
            "group_instance_id": member.instance_id,
            "topics": [{"name": SOURCE, "topic_id": self.client.ids[SOURCE], "partitions": [row]}],
        }
        self._last_commit = fields
        check(await self._send_commit(fields))
        judge.counts["commits"] += 1

    async def _send_commit(self, fields: dict[str, Any]) -> int:
        broker_id = await self.client.coordinator(GROUP, self.group)
        found = await self.client.ask(
            broker_id, OFFSET_COMMIT, self._rng.randint(7, 10), fields, may_linger=False
        )
        return int(found.topics[0].partitions[0].error_code)

    async def _be_late(self) -> None:
        """Let the last commit of a former generation arrive once more: the member has heard of another one since then.

        Errors as of requests.
        """
        late, member = self._last_commit, self.member.membership
        if not late or member.generation <= late["generation_id_or_member_epoch"]:
            return
        if late["member_id"] != member.member_id:
            # The former life of this process may still be a member.
            return
        self._last_commit = {}
        if self._rng.random() < 0.5 and not await self._send_commit(late):
            self._world.judge.broken(
                f"{self.name}: a commit of generation {late['generation_id_or_member_epoch']} was taken in "
                f"{member.generation}"
            )

    async def _see(self, partition: int, offset: int) -> None:
        """Look whether the offset is there whose commit was answered. Errors as of requests."""
        if self._rng.random() < 0.3:
            found = await committed(self.client, self.group, partition, is_stable=False)
            if found < offset:
                self._world.judge.broken(
                    f"{self.name}: offset {offset} of {partition} is committed, and {found} is there"
                )

    async def _stand_still(self) -> None:
        if not self.is_calm and self._rng.random() < HARM_CHANCE:
            await asyncio.sleep(self._rng.uniform(0.3, 2) * SESSION_MS / 1000)

    async def _break_down(self) -> None:
        kind = self._rng.choice(("leave", "restart", "stall"))
        self._world.judge.counts["breakdowns"] += 1
        if kind == "leave":
            self.positions.clear()
            await self.member.leave()
        elif kind == "restart":
            self.member.forget()
            self.restart()
        await asyncio.sleep(self._rng.uniform(0.1, 2) * SESSION_MS / 1000)

    def restart(self) -> None:
        """Forget all, as the next process of this name has."""
        self.positions.clear()
        self.client.disconnect()


class Copier(GroupProcess):
    """A process that copies records by transactions, each with its offset."""

    def __init__(self, *arguments: Any, is_tv2: bool, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.producer = TransactionalProducer(
            self._world, f"t-{self.name}", self.client, is_tv2=is_tv2
        )

    def restart(self) -> None:
        """Forget the producer as well: the next process takes its transactional id over."""
        super().restart()
        self.producer.identity = None

    async def work(self, partition: int) -> None:
        """Copy some records. Errors as of requests."""
        try:
            if self.producer.identity is None:
                await self.producer.begin(keeps=False)
            await self._copy(partition)
        except FencedError:
            self.producer.identity = None
            self.positions.clear()
        except GivenUpError:
            self.producer.identity = None
            raise
        except RefusedError:
            self.positions.clear()
            await self.producer.recover()
            raise

    async def _copy(self, partition: int) -> None:
        first = self.positions[partition]
        read = await fetch(self.client, (SOURCE, partition), first)
        if partition not in self.member.owned or not read.values:
            return
        values = read.values[:COPIED_MAX]
        end = read.offsets[len(values) - 1] + 1
        # What happens from here on is uncertain until the end is answered.
        del self.positions[partition]
        # The same values come again after an abort, so the whole copy is judged in place of each transaction.
        tried = Tried(self.producer.name, 0)
        place = (COPY, partition)
        if not self.producer.is_tv2:
            await self.producer.enlist([place])
        half = self._rng.randint(0, len(values))
        for some in filter(None, (values[:half], values[half:])):
            await self.producer.write(tried, place, some)
            await self._stand_still()
        await self.producer.stage((SOURCE, partition), end, self.member.membership)
        await self._stand_still()
        is_commit = self._rng.random() < 0.9
        await finish(self.producer, tried, is_commit=is_commit)
        if is_commit:
            with suppress(ConnectionLostError, RetriableError):
                await self._see(partition, end)
        self.positions[partition] = end if is_commit else first
