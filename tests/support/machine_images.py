"""Small images for tests, made by commands alone."""

from collections.abc import Sequence

from raft_meta.machine import commands as c
from raft_meta.machine.apply import Applied, apply
from raft_meta.machine.image import Image
from storage.types import WallMs

TOPIC_ID = "0" * 31 + "1"


def register(broker_id: int, *, rack: str | None = None, last: int = -1) -> c.RegisterBroker:
    return c.RegisterBroker(
        broker_id=broker_id,
        directory_id=f"d{broker_id}",
        last_broker_epoch=last,
        incarnation=1,
        api_url=f"http://broker-{broker_id}:8082",
        peer_host=f"broker-{broker_id}",
        peer_port=7082,
        rack=rack,
        feature_min=1,
        feature_max=1,
        was_clean_stop=False,
        reports=(),
    )


class Cluster:
    """An image and the proposer of its commands; ``do`` applies one and keeps the result."""

    def __init__(self, racks: Sequence[str | None] = ()) -> None:
        self.image = Image()
        self.sequence = 0
        self.do(c.InitCluster(cluster_id="cluster", voters=(1, 2, 3), feature_level=1))
        self.do(c.ClaimController(broker_id=1))
        for broker_id, rack in enumerate(racks, 1):
            self.do(register(broker_id, rack=rack))
            self.unfence(broker_id)

    def envelope(self, command: c.Command) -> c.Envelope:
        self.sequence += 1
        return c.Envelope(
            proposer=9,
            incarnation=1,
            sequence=self.sequence,
            now_ms=WallMs(1000),
            command=command,
        )

    def apply(self, envelope: c.Envelope) -> Applied:
        applied = apply(self.image, self.image.index + 1, envelope)
        self.image = applied.image
        return applied

    def do(self, command: c.Command) -> Applied:
        return self.apply(self.envelope(command))

    def unfence(self, broker_id: int) -> Applied:
        epoch = self.image.brokers[broker_id].broker_epoch
        return self.do(c.UnfenceBroker(controller_epoch=1, broker_id=broker_id, broker_epoch=epoch))

    def create(
        self,
        placement: tuple[tuple[int, ...], ...],
        *,
        name: str = "t",
        topic_id: str = TOPIC_ID,
        configs: tuple[tuple[str, str], ...] = (),
    ) -> Applied:
        return self.do(
            c.CreateTopic(topic_id=topic_id, name=name, configs=configs, placement=placement)
        )
