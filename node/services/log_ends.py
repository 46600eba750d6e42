"""Checks that a replica may tell a reader where its log ends.

In a planned change of leader (a drain, a preferred leader, a reassignment), the former leader keeps its lease. It may
be the last node to learn that another broker leads and has appended more. Its end is then too low:

- If it reports this end as "latest", the reader gets records that were acknowledged before it asked.
- If it reports "out of range", the reader skips or repeats records.

So a leader asks the quorum whether it still leads before it reports its end. All waiting readers share one question.

A follower learns of commits a moment after the leader has answered writers. So before a follower says that there are no
more records, it asks the leader for its high watermark (``LeaderEnds``). It also asks the quorum whether that broker
was the leader.
"""

import asyncio
from collections.abc import Awaitable, Callable

from milena.model.errors import MilenaError
from node.metadata.store import MetadataStore
from node.replica.runner import PartitionRunner
from raft_meta.machine.image import PartitionKey


class MovedError(Exception):
    """This node's image shows now that another broker leads: ask that broker. This error stays within the node."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class LogEnds:
    """Checks with the quorum which broker leads a partition. Owned by the data loop."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    async def confirm(self, runner: PartitionRunner, leader_epoch: int) -> None:
        """Make sure that no other replica has acknowledged a record since ``leader_epoch`` began.

        Raises:
            MovedError: another replica may have.

        Raises:
            MovedError: another one may have.
            NoQuorumError: no majority could be asked.
        """
        if not runner.has_heirs:
            return
        key = (runner.topic_id, runner.partition)
        await self.check(key, self._metadata.node_id, leader_epoch)

    async def check(self, key: PartitionKey, leader_id: int, leader_epoch: int) -> None:
        """Make sure that the broker led the partition in this epoch at the time of this call.

        Raises:
            MovedError: the broker did not lead.
            NoQuorumError: no majority could be asked.
        """
        image = await self._metadata.current_image()
        state = image.partitions.get(key)
        if state is None or (state.leader, state.leader_epoch) != (leader_id, leader_epoch):
            raise MovedError(f"node {leader_id} does not lead the partition any more")


class LeaderEnds:
    """Asks leaders for their high watermarks. Readers that wait at the same time share one question.

    Owned by the data loop.
    """

    def __init__(self, ask: Callable[[PartitionRunner], Awaitable[int]]) -> None:
        """``ask``: asks the leader of a followed partition for its high watermark."""
        self._ask = ask
        self._questions: dict[PartitionKey, asyncio.Future[int]] = {}

    async def high_watermark(self, runner: PartitionRunner) -> int | MilenaError:
        """Return a high watermark that the leader had after this call, or the error if it cannot be asked.

        A question that is already in flight is too old: its leader may have answered before a record was acknowledged.
        """
        key = (runner.topic_id, runner.partition)
        under_way = self._questions.get(key)
        if under_way is not None:
            await asyncio.wait([under_way])
        question = self._questions.get(key)
        if question is None or question is under_way:
            question = asyncio.ensure_future(self._ask(runner))
            self._questions[key] = question
            question.add_done_callback(lambda done: self._forget(key, done))
        try:
            return await asyncio.shield(question)
        except MilenaError as error:
            return error

    def _forget(self, key: PartitionKey, done: "asyncio.Future[int]") -> None:
        if self._questions.get(key) is done:
            del self._questions[key]
        if not done.cancelled():
            # All readers that asked may have gone. Read the exception, or asyncio logs it as never retrieved.
            done.exception()
