"""What a part of a run is; see the package."""

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
    """Clients of a part's topic, which is made when the cluster is up."""

    _topic_id = ""

    @property
    def topic_id(self) -> str:
        return self._topic_id

    @topic_id.setter
    def topic_id(self, topic_id: str) -> None:
        self._topic_id = topic_id


class Part(ABC):
    """One topic and what is promised of it, beside what the run checks of every topic anyway."""

    clients: TopicClients
    needs_right_majority = False
    """Whether what is promised here needs that a majority of the voters' clocks is right."""
    level: int = 1
    """Feature level without which what is promised here does not hold."""

    def __init__(self, world: "World") -> None:
        self.world = world

    @abstractmethod
    def topic(self) -> NewTopic:
        """The topic, as it is created."""

    async def prepare(self) -> None:
        """Before anything goes wrong."""
        self.clients.topic_id = await self.world.create(self.topic())

    def check_replica(  # noqa: B027 - not every part has something to say
        self, process: "NodeProcess", key: PartitionKey, runner: PartitionRunner
    ) -> None:
        """Something has moved in a replica of any topic; after the checks that are made for all of them.

        Raises:
            ViolationError: an invariant is broken.
        """

    def check_image(self, image: Image) -> None:  # noqa: B027 - likewise
        """The next image, as soon as any node has applied it: none is left out.

        Raises:
            ViolationError: an invariant is broken.
        """

    def check_end(self) -> None:  # noqa: B027 - likewise
        """Faults are over, and replicas are equally far.

        Raises:
            ViolationError: an invariant is broken.
        """

    def is_rotten(self, node_id: int, key: PartitionKey) -> bool:
        """Whether what a machine has of a partition was harmed, and is not restored yet."""
        del node_id, key
        return False

    def takes_short(self, key: PartitionKey) -> bool:
        """Whether somebody writes to a partition of it who does not ask for all replicas."""
        del key
        return False

    @property
    def is_at_risk(self) -> bool:
        """Whether a machine that loses its disk now might take the last sound copy along."""
        return False

    def is_settled(self) -> bool:
        """Whether what had to happen once faults are over has happened."""
        return True

    def ledger(self, partition: int) -> Ledger:
        """What is committed in a partition of it."""
        return self.world.checker.ledgers.get((self.clients.topic_id, partition), Ledger())
