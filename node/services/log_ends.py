"""The right to say where a log ends.

In a planned change of leader (a drain, a preferred leader, a reassignment) the former leader keeps its lease, and may
be the last to hear that another one leads and has written on. Its end is then one that was passed already: a reader who
is given it as the latest offset would be given records that were acknowledged before it asked, and one who is told "out
of range" would skip or repeat some. So before a leader speaks of its end it asks the quorum, once for all who wait.
"""

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
