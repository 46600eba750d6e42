"""A broker's report to the controller and its answer, declared. Names on the wire are those of earlier releases."""

from msgspec import field

from node.peers.messages import CallType, Message


class BrokerHeartbeatRequest(Message, frozen=True, kw_only=True):
    """A broker's report: all that the controller decides by."""

    broker_epoch: int = field(name="epoch")
    applied_index: int = field(name="index")
    """How far the broker's image is."""
    is_draining: bool = field(name="draining")
    is_disk_full: bool = field(name="full")
    echo: int
    """Number of the last answer that was heard; 0: none from this controller."""
    reading_ms: int | None = field(name="clock", default=None)
    """The broker's wall clock when the controller's monotonic one stood at 0; None: it cannot tell."""


class BrokerHeartbeatAnswer(Message, frozen=True, kw_only=True):
    """The controller's answer, which earns the broker its lease."""

    number: int = field(name="answer")
    """To be echoed by the next report."""
    is_drained: bool = field(name="drained")
    age_ms: int = field(name="age")
    """How long ago the controller last heard of a majority: the lease is as old as that."""
    access_version: int = field(name="access", default=0)
    """Of the controller's image: a broker whose own is older knows too little to judge callers."""
    controller_ms: int | None = field(name="now", default=None)
    """The controller's monotonic clock; None: below feature level 11, at which clocks are compared."""
    cluster_ms: int | None = field(name="clock", default=None)
    """The cluster's time when that clock stood at 0; None: no majority of the voters' clocks is known to agree."""


HEARTBEAT = CallType("heartbeat", BrokerHeartbeatRequest, BrokerHeartbeatAnswer)
