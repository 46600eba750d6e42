"""The right to say where a log ends.

In a planned change of leader (a drain, a preferred leader, a reassignment) the former leader keeps its lease, and may
be the last to hear that another one leads and has written on. Its end is then one that was passed already: a reader who
is given it as the latest offset would be given records that were acknowledged before it asked, and one who is told "out
of range" would skip or repeat some. So before a leader speaks of its end it asks the quorum, once for all who wait.

A follower hears of what is committed a moment after the leader has answered writers. So before a follower says that
there is no more, it asks the leader for its high watermark (``LeaderEnds``), and the quorum whether that leader led.
"""

import asyncio
from collections.abc import Awaitable, Callable

from milena.model.errors import MilenaError
from node.metadata.store import MetadataStore
from node.replica.runner import PartitionRunner
from raft_meta.machine.image import PartitionKey


class MovedError(Exception):
    """The image of this node knows by now that another one leads: ask that one. Never leaves the node."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class LogEnds:
    """The word of the quorum on who leads. Owned by the data loop."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    async def confirm(self, runner: PartitionRunner, leader_epoch: int) -> None:
        """Make sure that nobody but this replica has acknowledged anything since ``leader_epoch`` began.

        Raises:
            MovedError: another one may have.
            NoQuorumError: no majority could be asked.
        """
        if not runner.has_heirs:
            return
        key = (runner.topic_id, runner.partition)
        await self.check(key, self._metadata.node_id, leader_epoch)

    async def check(self, key: PartitionKey, leader_id: int, leader_epoch: int) -> None:
        """Make sure that the broker led the partition in this epoch when this was called.

        Raises:
            MovedError: it did not.
            NoQuorumError: no majority could be asked.
        """
        image = await self._metadata.current_image()
        state = image.partitions.get(key)
        if state is None or (state.leader, state.leader_epoch) != (leader_id, leader_epoch):
            raise MovedError(f"broker {leader_id} does not lead the partition any more")


class LeaderEnds:
    """Questions for the high watermarks of leaders. Readers that wait at the same time share one.

    Owned by the data loop.
    """

    def __init__(self, ask: Callable[[PartitionRunner], Awaitable[int]]) -> None:
        """``ask``: asks the leader of a partition that this node follows."""
        self._ask = ask
        self._questions: dict[PartitionKey, asyncio.Future[int]] = {}

    async def high_watermark(self, runner: PartitionRunner) -> int | MilenaError:
        """The leader's high watermark after this was called, or the reason why it is not known.

        A question that is under way began too early: a record may have been acknowledged since its leader answered.
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
            # All readers that asked may have gone.
            done.exception()
