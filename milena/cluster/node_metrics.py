"""What a node tells Prometheus, as far as the command line shows it (pure)."""

import re
from dataclasses import dataclass

from milena.errors import UnexpectedAnswerError
from milena.records import TopicPartition

_LINE = re.compile(r"^milena_(\w+)(?:\{([^\n]*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"\\]*)"')
_OF_PARTITIONS = "partition_"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsView:
    """One look at a node. Counts of partitions go on from zero when the node starts again.

    ``values``: what has no labels, by its name without ``milena_``. ``partitions``: what has a partition's, by its name
    without ``milena_partition_``.
    """

    values: dict[str, float]
    partitions: dict[TopicPartition, dict[str, float]]

    def total(self, name: str) -> float:
        """Sum over the partitions."""
        return sum(values.get(name, 0.0) for values in self.partitions.values())


def parse_metrics(text: str) -> MetricsView:
    """The body of ``GET /metrics``.

    Raises:
        UnexpectedAnswerError: nothing in it is a node's.
    """
    values: dict[str, float] = {}
    partitions: dict[TopicPartition, dict[str, float]] = {}
    for name, labels, number in _LINE.findall(text):
        value = _number(number)
        if value is None:
            continue
        if not labels:
            values[name] = value
        elif name.startswith(_OF_PARTITIONS):
            where = _partition(labels)
            if where is not None:
                partitions.setdefault(where, {})[name.removeprefix(_OF_PARTITIONS)] = value
    if not values:
        raise UnexpectedAnswerError("metrics: not those of a node; is this a Milena node?")
    return MetricsView(values=values, partitions=partitions)


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
