"""Declarations of a broker's report to the controller and its response. Field names on the wire are of old releases."""

from msgspec import field

from node.peers.messages import CallType, Message


class BrokerHeartbeatRequest(Message, frozen=True, kw_only=True):
    """A broker's report, on which the controller bases its decisions."""

    broker_epoch: int = field(name="epoch")
    applied_index: int = field(name="index")
    """The index of the broker's image."""
    is_draining: bool = field(name="draining")
    is_disk_full: bool = field(name="full")
    echo: int
    """The number of the last response that arrived; 0 if none from this controller has."""
    reading_ms: int | None = field(name="clock", default=None)
    """The broker's wall clock at which the controller's monotonic clock was 0; None if the broker does not know."""


class BrokerHeartbeatAnswer(Message, frozen=True, kw_only=True):
    """The controller's response, which earns the broker its lease."""

    number: int = field(name="answer")
    """The number that the next report echoes."""
    is_drained: bool = field(name="drained")
    age_ms: int = field(name="age")
    """How long ago the controller last heard of a majority; the lease is as old as that."""
    access_version: int = field(name="access", default=0)
    """The access version of the controller's image. A broker with an older one knows too little to judge callers."""
    controller_ms: int | None = field(name="now", default=None)
    """The controller's monotonic clock; None below feature level 11, at which nodes compare their clocks."""
    cluster_ms: int | None = field(name="clock", default=None)
    """The cluster's time at which that clock was 0; None if no majority of the voters' clocks is known to agree."""


HEARTBEAT = CallType("heartbeat", BrokerHeartbeatRequest, BrokerHeartbeatAnswer)
