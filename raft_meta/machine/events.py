"""Events: what a command changed, for those that must react. A node can always re-derive them from two images."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInitialised:
    """The cluster has an id now."""

    cluster_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerChanged:
    """Another node is controller."""

    controller_id: int
    controller_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerChanged:
    """A broker was registered, fenced, unfenced, set draining or unregistered."""

    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCreated:
    """A topic exists now."""

    topic_id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeleted:
    """A topic is gone."""

    topic_id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChanged:
    """Configs or partition count changed."""

    topic_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChanged:
    """Leadership, ISR or replica state of a partition changed (or it came to be)."""

    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChanged:
    """A consumer group's members or assignment changed, or it came to be or is gone. Not told: committed offsets."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerChanged:
    """A REST consumer came to be, changed its subscription or assignment, or is gone."""

    group_id: str
    instance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRestored:
    """A snapshot was loaded: anything may have changed."""


Event = (
    ClusterInitialised
    | ControllerChanged
    | BrokerChanged
    | TopicCreated
    | TopicDeleted
    | TopicChanged
    | PartitionChanged
    | GroupChanged
    | ConsumerChanged
    | ImageRestored
)
