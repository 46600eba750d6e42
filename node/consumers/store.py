"""REST consumers in the replicated state: made, changed and forgotten by proposals to the quorum."""

from collections.abc import Sequence

from node.control.standing import Standing
from node.metadata.store import MetadataStore
from raft_meta.machine import group_rules
from raft_meta.machine.commands import ConsumerName, DeleteConsumers, PutConsumer
from raft_meta.machine.image import RestConsumer

PROPOSE_MS = 5_000


class ConsumerStore:
    """What must outlive the coordinator, before it is answered."""

    def __init__(self, metadata: MetadataStore, standing: Standing) -> None:
        self._metadata = metadata
        self._standing = standing

    async def put(self, consumer: RestConsumer, *, is_new: bool = False) -> None:
        """Make the consumer, or have it read something else.

        Raises:
            ConsumerExistsError: ``is_new``, and there is one of this name.
            MilenaError: it is refused, or what became of it is not known.
        """
        group_rules.check_consumer(consumer)
        await self._metadata.propose(
            PutConsumer(
                broker_id=self._metadata.node_id,
                broker_epoch=self._standing.broker_epoch,
                is_new=is_new,
                consumer=consumer,
            ),
            timeout_ms=PROPOSE_MS,
        )

    async def delete(self, consumers: Sequence[RestConsumer]) -> int:
        """Forget these, and their membership with them; returns how many there were."""
        found = await self._metadata.propose(
            DeleteConsumers(
                broker_id=self._metadata.node_id,
                broker_epoch=self._standing.broker_epoch,
                consumers=tuple(
                    ConsumerName(
                        group_id=consumer.group_id,
                        instance=consumer.instance,
                        created_index=consumer.created_index,
                    )
                    for consumer in consumers
                ),
            ),
            timeout_ms=PROPOSE_MS,
        )
        assert isinstance(found, list | tuple)
        return sum(found)
