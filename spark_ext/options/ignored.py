"""Options that change nothing: they are accepted, with a log line (pure except for that line).

Queries that were written for Kafka's source have some of them, and tools add others to every read.
"""

import logging
from functools import cache

logger = logging.getLogger(__name__)

_TUNED = "it tunes a Kafka client, and there is none"
_HELD = "it says what is so anyway"
_TUNING = (
    "allow.auto.create.topics",
    "auto.commit.interval.ms",
    "batch.size",
    "buffer.memory",
    "check.crcs",
    "client.dns.lookup",
    "client.rack",
    "connections.max.idle.ms",
    "default.api.timeout.ms",
    "delivery.timeout.ms",
    "enable.metrics.push",
    "exclude.internal.topics",
    "fetch.max.bytes",
    "fetch.max.wait.ms",
    "fetch.min.bytes",
    "group.instance.id",
    "group.protocol",
    "heartbeat.interval.ms",
    "linger.ms",
    "max.block.ms",
    "max.in.flight.requests.per.connection",
    "max.partition.fetch.bytes",
    "max.poll.interval.ms",
    "max.poll.records",
    "max.request.size",
    "metadata.max.age.ms",
    "metadata.max.idle.ms",
    "metadata.recovery.strategy",
    "metric.reporters",
    "metrics.num.samples",
    "metrics.recording.level",
    "metrics.sample.window.ms",
    "partition.assignment.strategy",
    "partitioner.availability.timeout.ms",
    "receive.buffer.bytes",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "request.timeout.ms",
    "retries",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
    "send.buffer.bytes",
    "session.timeout.ms",
    "socket.connection.setup.timeout.max.ms",
    "socket.connection.setup.timeout.ms",
)
"""Settings of Kafka's consumer and producer that change no record: waiting, buffers, retries and metrics."""
WITHOUT_EFFECT = {
    **{f"kafka.{name}": _TUNED for name in _TUNING},
    "checkpointlocation": "only writeStream has a checkpoint",
    "queryname": "only writeStream has a name",
    "mergeschema": "the columns of a topic are always the same",
}
_HELD_VALUES = {
    "kafka.isolation.level": ("read_committed",),
    "kafka.enable.auto.commit": ("false",),
    "kafka.acks": ("all", "-1"),
    "kafka.enable.idempotence": ("true",),
}


def why_ignored(name: str, value: str) -> str | None:
    """Return why an option changes nothing; None if it would change something."""
    if value.strip().lower() in _HELD_VALUES.get(name, ()):
        return _HELD
    return WITHOUT_EFFECT.get(name)


@cache
def warn_ignored(name: str, reason: str) -> None:
    """Log once that an option is ignored."""
    logger.warning("option %s is ignored: %s", name, reason)
