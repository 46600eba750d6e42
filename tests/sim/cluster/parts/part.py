"""The base class of the parts of a run; see the package."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from http_api.ports.node import NewTopic
from node.replica.runner import PartitionRunner
from raft_meta.machine.image import Image, PartitionKey
from tests.sim.cluster.clients import Clients
from tests.sim.cluster.invariants import Ledger

if TYPE_CHECKING:
    from tests.sim.cluster.machine import NodeProcess
    from tests.sim.cluster.world import World


class TopicClients(Clients):
    """Clients of a part's topic, which is created when the cluster is up."""

    _topic_id = ""

    @property
    def topic_id(self) -> str:
        return self._topic_id

    @topic_id.setter
    def topic_id(self, topic_id: str) -> None:
        self._topic_id = topic_id


class Part(ABC):
    """A topic and its promises, in addition to the checks of every topic."""

    clients: TopicClients
    needs_right_majority = False
    """Whether the promises need correct clocks on a majority of the voters."""
    level: int = 1
    """The feature level below which the promises do not hold."""

    def __init__(self, world: "World") -> None:
        self.world = world

    @abstractmethod
    def topic(self) -> NewTopic:
        """Return the topic to create."""

    async def prepare(self) -> None:
        """Prepare the part, before any fault."""
        self.clients.topic_id = await self.world.create(self.topic())

    def check_replica(  # noqa: B027 - not every part has something to say
        self, process: "NodeProcess", key: PartitionKey, runner: PartitionRunner
    ) -> None:
        """Check a replica of any topic after something in it changed, and after the checks of all topics.

        Raises:
            ViolationError: an invariant is broken.
        """

    def check_image(self, image: Image) -> None:  # noqa: B027 - likewise
        """Check an image when the first node has applied it; no image is left out.

        Raises:
            ViolationError: an invariant is broken.
        """

    def check_end(self) -> None:  # noqa: B027 - likewise
        """Check the final state, after faults, when all replicas have the same end.

        Raises:
            ViolationError: an invariant is broken.
        """

    def is_rotten(self, node_id: int, key: PartitionKey) -> bool:
        """Return whether a machine's copy of a partition was damaged, and is not restored yet."""
        del node_id, key
        return False

    def takes_short(self, key: PartitionKey) -> bool:
        """Return whether clients write to this partition with less than acks=all."""
        del key
        return False

    @property
    def is_at_risk(self) -> bool:
        """Return whether the loss of a machine's disk now might destroy the last sound copy."""
        return False

    def is_settled(self) -> bool:
        """Return whether everything that had to happen after the faults has happened."""
        return True

    def ledger(self, partition: int) -> Ledger:
        """Return the committed records of a partition of the topic."""
        return self.world.checker.ledgers.get((self.clients.topic_id, partition), Ledger())
