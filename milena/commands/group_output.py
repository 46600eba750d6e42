"""Format consumer groups for the command line (pure)."""

from collections.abc import Iterable, Sequence

from milena.cluster.group_admin import PartitionLag, total_lag
from milena.cluster.group_views import GroupSummary, GroupView
from milena.commands.output import named, plain, table
from milena.fields import Json
from milena.model.plain_text import escaped


def groups_text(groups: Iterable[GroupSummary]) -> str:
    """Return one line per group."""
    return table(
        ("GROUP", "KIND", "STATE", "MEMBERS", "GENERATION", "ASSIGNOR", "COORDINATOR"),
        [
            (
                g.group_id,
                g.kind,
                g.state,
                g.member_count,
                g.generation,
                g.assignor or None,
                g.coordinator,
            )
            for g in groups
        ],
    )


def group_text(group: GroupView, lags: Sequence[PartitionLag]) -> str:
    """Return all about one group: a line per member, a line per partition, and the total lag if known."""
    behind = total_lag(lags)
    head = group.summary
    is_classic = head.kind == "classic"
    heading = (
        f"group {escaped(head.group_id)}: {'classic, ' if is_classic else ''}{head.state}, "
        f"generation {head.generation}, {head.member_count} members, coordinator {head.coordinator or 'none'}, "
        f"lag {'-' if behind is None else behind}"
    )
    members = table(
        ("MEMBER", "CLIENT", "HOST", "KIND", "EPOCH", "HAS", "GIVES BACK", "WAITS FOR"),
        [
            (
                m.member_id,
                m.client_id or None,
                m.host or None,
                "classic" if is_classic else "rest" if m.is_rest else "native",
                m.member_epoch,
                len(m.assignment),
                len(m.revoking),
                len(m.pending),
            )
            for m in group.members
        ],
    )
    partitions = table(
        ("TOPIC", "PARTITION", "OFFSET", "END OFFSET", "LAG", "MEMBER"),
        [(r.topic, r.partition, r.committed, r.end, r.lag, r.member_id) for r in lags],
    )
    parts = [heading]
    if group.members:
        parts.append(members)
    if lags:
        parts.append(partitions)
    return "\n\n".join(parts)


def group_json(group: GroupView, lags: Sequence[PartitionLag]) -> dict[str, Json]:
    """Return the same for programs."""
    return {
        **named(group.summary),
        "members": plain(group.members),
        "partitions": [named(row, committed="offset", end="end_offset") for row in lags],
        "lag": total_lag(lags),
    }
