"""A broker's heartbeat to the controller, and the response. Names of fields on the wire are those of old releases."""

from msgspec import field

from node.peers.messages import CallType, Message


class BrokerHeartbeatRequest(Message, frozen=True, kw_only=True):
    """A broker's report of its state, on which the controller bases its decisions."""

    broker_epoch: int = field(name="epoch")
    applied_index: int = field(name="index")
    """The index of the broker's image."""
    is_draining: bool = field(name="draining")
    is_disk_full: bool = field(name="full")
    echo: int
    """The number of the last response that this broker got; 0 if it got none from this controller."""
    reading_ms: int | None = field(name="clock", default=None)
    """The broker's wall clock at the time when the controller's monotonic clock was 0; None if it cannot tell."""


class BrokerHeartbeatAnswer(Message, frozen=True, kw_only=True):
    """The controller's response. The broker's lease depends on it."""

    number: int = field(name="answer")
    """The number of this response. The broker's next report echoes it."""
    is_drained: bool = field(name="drained")
    age_ms: int = field(name="age")
    """How long ago the controller last heard from a majority of voters. The lease is shorter by this time."""
    access_version: int = field(name="access", default=0)
    """The access version of the controller's image. A broker with an older one must not decide what callers may do."""
    controller_ms: int | None = field(name="now", default=None)
    """The controller's monotonic clock. None below feature level 11, where nodes do not compare their clocks."""
    cluster_ms: int | None = field(name="clock", default=None)
    """The cluster's time when the controller's monotonic clock was 0. None if no majority of voters' clocks agrees."""


HEARTBEAT = CallType("heartbeat", BrokerHeartbeatRequest, BrokerHeartbeatAnswer)
