"""Parse the metrics that a node offers to Prometheus, as far as the command line shows them (pure)."""

import re
from dataclasses import dataclass, field

from milena.errors import UnexpectedAnswerError
from milena.records import TopicPartition

_LINE = re.compile(r"^milena_(\w+)(?:\{([^\n]*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"\\]*)"')
_OF_PARTITIONS = "partition_"
_OF_CERTIFICATES = "tls_certificate_expiry_timestamp_seconds"
_NOT_VOTING = ("learner", "observer")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsView:
    """One reading of a node's metrics. Counters of partitions restart from zero with the node.

    ``values`` has the metrics without labels, by name without ``milena_``. ``partitions`` has the metrics of each
    partition, by name without ``milena_partition_``. ``certificates`` has the unix time at which certificates
    expire, by the option of their file.
    """

    values: dict[str, float]
    partitions: dict[TopicPartition, dict[str, float]]
    certificates: dict[str, float] = field(default_factory=dict)
    is_voter: bool | None = None
    """True if the node votes in the metadata quorum; None if it does not report its role."""

    def total(self, name: str) -> float:
        """Return the sum of a partition metric over all partitions."""
        return sum(values.get(name, 0.0) for values in self.partitions.values())


def parse_metrics(text: str) -> MetricsView:
    """Parse the body of ``GET /metrics``.

    Raises:
        UnexpectedAnswerError: the text has no metric of a Milena node.
    """
    values: dict[str, float] = {}
    partitions: dict[TopicPartition, dict[str, float]] = {}
    certificates: dict[str, float] = {}
    is_voter = None
    for name, labels, number in _LINE.findall(text):
        value = _number(number)
        if value is None:
            continue
        if not labels:
            values[name] = value
        elif name == "raft_role" and value:
            is_voter = not any(f'"{role}"' in labels for role in _NOT_VOTING)
        elif name.startswith(_OF_PARTITIONS):
            where = _partition(labels)
            if where is not None:
                partitions.setdefault(where, {})[name.removeprefix(_OF_PARTITIONS)] = value
        elif name == _OF_CERTIFICATES:
            certificates[dict(_LABEL.findall(labels)).get("file", "")] = value
    if not values:
        raise UnexpectedAnswerError("metrics: not those of a node; is this a Milena node?")
    return MetricsView(
        values=values, partitions=partitions, certificates=certificates, is_voter=is_voter
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _partition(labels: str) -> TopicPartition | None:
    named = dict(_LABEL.findall(labels))
    number = named.get("partition", "")
    if not (number.isascii() and number.isdigit() and len(number) <= 9 and "topic" in named):
        return None
    return TopicPartition(named["topic"], int(number))
