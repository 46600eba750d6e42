"""Format the command line's output: aligned columns for people, JSON for programs (pure)."""

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

import click

from milena.cluster.admin import OffsetRange
from milena.cluster.node_exam import NodeExam
from milena.cluster.view import ClusterView, Health, NodeView, PartitionView, TopicSizes, TopicView
from milena.fields import Json
from milena.model.plain_text import escaped

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_BEYOND_JSON = re.compile("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")

T = TypeVar("T")

Cell = str | int | None


def as_json(value: Json) -> str:
    """Return indented JSON, with the keys in their order."""
    # ``json.dumps`` escapes only control characters below U+0020.
    return _BEYOND_JSON.sub(
        lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, indent=2, ensure_ascii=False)
    )


def plain(value: object) -> Json:
    """Return a value for programs: dataclasses and named tuples become objects, a set becomes a sorted list."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return named(value)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: plain(part) for name, part in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple | frozenset):
        return [plain(part) for part in (sorted(value) if isinstance(value, frozenset) else value)]
    if isinstance(value, Enum):
        return plain(value.value)
    assert value is None or isinstance(value, str | int | float), (
        f"{value!r} is not a value of JSON"
    )
    return value


def named(value: "DataclassInstance", **names: str) -> dict[str, Json]:
    """Return a dataclass for programs; ``names`` has other names for some of its fields."""
    return {
        names.get(f.name, f.name): plain(getattr(value, f.name)) for f in dataclasses.fields(value)
    }


def show_list(
    is_json: bool,
    found: Sequence[T],
    text: Callable[[Sequence[T]], str],
    none: str,
    row: Callable[[T], Json] = plain,
) -> None:
    """Print a list: as JSON for programs, else as text; ``none`` on standard error if it is empty."""
    if is_json or found:
        show(is_json, [row(one) for one in found], "" if is_json else text(found))
    else:
        click.echo(none, err=True)


def show(is_json: bool, value: Json, text: str) -> None:
    """Print a result: as JSON for programs, else as text for people."""
    click.echo(as_json(value) if is_json else text)


def table(headings: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Return columns two spaces apart, numbers aligned right, without trailing blanks.

    Texts of other users are escaped, so that they cannot control a terminal.
    """
    cells = [["-" if cell is None else escaped(str(cell)) for cell in row] for row in rows]
    numeric = [
        all(row[i].lstrip("-").isdigit() or row[i] == "-" for row in cells)
        for i in range(len(headings))
    ]
    widths = [max(len(h), *(len(r[i]) for r in cells), 0) for i, h in enumerate(headings)]
    lines = [
        "  ".join(
            cell.rjust(width) if is_number and cells else cell.ljust(width)
            for cell, width, is_number in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in [list(headings), *cells]
    ]
    return "\n".join(lines)


def ids(values: Iterable[int]) -> str:
    """Return node ids as a list: ``1,2,3``."""
    return ",".join(str(value) for value in values) or "-"


def some(names: Sequence[str], most: int) -> str:
    """Return the first names of a list, and how many more there are: ``a, b and 7 more``."""
    shown = ", ".join(escaped(name) for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def node_state(node: NodeView, *, is_current: bool, has_answered: bool = False) -> str:
    """Return one word for the node's state.

    ``is_current``: the view is the newest. Without a majority no node is noticed as dead, so a node that was alive is
    ``unknown``, unless it has answered.
    """
    if not node.is_live:
        return "down"
    if not (is_current or has_answered):
        return "unknown"
    return "draining" if node.is_draining else "up"


def nodes_text(view: ClusterView) -> str:
    """Return one line per node."""
    leads = view.leads()
    return table(
        ("NODE", "STATE", "LEADS", "ROLE", "URL"),
        [
            (
                n.node_id,
                node_state(n, is_current=view.is_current),
                leads[n.node_id],
                "controller" if n.node_id == view.controller_id else "",
                n.url,
            )
            for n in view.nodes
        ],
    )


def node_list_text(view: ClusterView, exams: Sequence[NodeExam]) -> str:
    """Return one line per node, with what it says itself."""
    leads = view.leads()
    votes = {True: "voter", False: "observer", None: None}
    return table(
        ("NODE", "STATE", "LEADS", "ROLE", "QUORUM", "RACK", "VERSION", "URL"),
        [
            (
                exam.node.node_id,
                node_state(
                    exam.node, is_current=view.is_current, has_answered=exam.answers_as is not None
                ),
                leads[exam.node.node_id],
                "controller" if exam.node.node_id == view.controller_id else "",
                votes[exam.is_voter],
                exam.node.rack,
                exam.version or None,
                exam.node.url,
            )
            for exam in exams
        ],
    )


def node_list_json(exams: Iterable[NodeExam]) -> list[Json]:
    """Return the same for programs."""
    return [{**named(e.node), "version": e.version or None, "is_voter": e.is_voter} for e in exams]


def heading(view: ClusterView) -> str:
    """Return the cluster's id and the numbers of its topics and partitions."""
    count = sum(1 for _ in view.partitions())
    return f"cluster {view.cluster_id}: {len(view.topics)} topics, {count} partitions"


def status_text(view: ClusterView, health: Health) -> str:
    """Return the nodes, the partitions that need attention, and a verdict."""
    parts = [heading(view), nodes_text(view)]
    affected = [
        (topic.name, p.partition, p.leader, ids(p.replicas), ids(p.isr), _trouble(p))
        for topic, p in view.partitions()
        if p.leader is None or p.is_under_replicated
    ]
    if affected:
        headings = ("TOPIC", "PARTITION", "LEADER", "REPLICAS", "IN SYNC", "TROUBLE")
        parts.append(table(headings, affected))
    parts.append(verdict(health))
    return "\n\n".join(parts)


def verdict(health: Health) -> str:
    """Return one line: healthy, or what is wrong."""
    if health.is_healthy:
        return "healthy"
    wrong = []
    if not health.has_majority:
        wrong.append("no majority of the metadata quorum")
    if not health.has_controller:
        wrong.append("no controller")
    if health.down:
        wrong.append(f"nodes down: {ids(health.down)}")
    if health.leaderless:
        wrong.append(f"{len(health.leaderless)} partitions without a leader")
    if health.under_replicated:
        wrong.append(f"{len(health.under_replicated)} partitions under-replicated")
    return "degraded: " + ", ".join(wrong)


def status_json(view: ClusterView, health: Health) -> Json:
    """Return the same for programs."""
    return {
        "cluster_id": view.cluster_id,
        "version": view.version,
        "is_healthy": health.is_healthy,
        "controller_id": view.controller_id,
        "nodes": plain(view.nodes),
        "topics": [topic_json(topic) for topic in view.topics],
        "leaderless": _places(health.leaderless),
        "under_replicated": _places(health.under_replicated),
        "nodes_down": list(health.down),
        "has_majority": health.has_majority,
    }


def topic_json(topic: TopicView, offsets: Sequence[OffsetRange] | None = None) -> dict[str, Json]:
    """Return a topic for programs, with offsets if they were requested."""
    ranges = {r.partition: r for r in offsets or ()}
    configs: dict[str, Json] = dict(topic.configs)
    partitions: list[Json] = []
    for p in topic.partitions:
        row: dict[str, Json] = {
            "partition": p.partition,
            "leader": p.leader,
            "replicas": list(p.replicas),
            "isr": list(p.isr),
        }
        if p.partition in ranges:
            row["log_start_offset"] = ranges[p.partition].log_start_offset
            row["high_watermark"] = ranges[p.partition].high_watermark
        partitions.append(row)
    return {
        "name": topic.name,
        "partition_count": len(topic.partitions),
        "replication_factor": topic.replication_factor,
        "configs": configs,
        "partitions": partitions,
    }


def topics_text(topics: Iterable[TopicView]) -> str:
    """Return one line per topic."""
    return table(
        ("TOPIC", "PARTITIONS", "REPLICATION", "UNDER-REPLICATED", "LEADERLESS"),
        [
            (
                t.name,
                len(t.partitions),
                t.replication_factor,
                sum(p.is_under_replicated for p in t.partitions),
                sum(p.leader is None for p in t.partitions),
            )
            for t in topics
        ],
    )


def topic_text(topic: TopicView, sizes: TopicSizes, offsets: Sequence[OffsetRange]) -> str:
    """Return all about one topic."""
    ranges = {r.partition: r for r in offsets}
    partitions = table(
        ("PARTITION", "LEADER", "REPLICAS", "IN SYNC", "FIRST OFFSET", "END OFFSET", "BYTES"),
        [
            (
                p.partition,
                p.leader,
                ids(p.replicas),
                ids(p.isr),
                ranges[p.partition].log_start_offset if p.partition in ranges else None,
                ranges[p.partition].high_watermark if p.partition in ranges else None,
                sizes.partition_bytes.get(p.partition),
            )
            for p in topic.partitions
        ],
    )
    heading = (
        f"topic {topic.name}: {len(topic.partitions)} partitions, "
        f"replication factor {topic.replication_factor}, id {sizes.topic_id}, "
        f"{'?' if sizes.stored_bytes is None else sizes.stored_bytes} bytes on all nodes"
    )
    if sizes.silent_nodes:
        heading += f" but {ids(sizes.silent_nodes)}, which did not answer"
    rows = [
        (name, value, "set" if name in sizes.set_configs else "default")
        for name, value in sorted(topic.configs.items())
    ]
    configs = table(("CONFIG", "VALUE", "FROM"), rows) if rows else ""
    return "\n\n".join(part for part in (heading, partitions, configs) if part)


def _trouble(partition: PartitionView) -> str:
    return "no leader" if partition.leader is None else "under-replicated"


def _places(places: Iterable[tuple[str, int]]) -> list[Json]:
    return [{"topic": topic, "partition": partition} for topic, partition in places]
