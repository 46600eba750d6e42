"""Diagnose a cluster: its problems, the worst first, and what to do about each (pure)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, unique

from milena.cluster.node_exam import NodeExam
from milena.cluster.view import ClusterView
from milena.commands.health.status_watch import GroupLag
from milena.producing.named import GROUP_PREFIX

SKEW_MS_MAX = 3_000
"""Dates have whole seconds, and a response takes time: a smaller difference cannot be seen from outside."""
DISK_FREE_BYTES_MIN = 1 << 30
"""Space for some segments: when one is closed, a new one is started while old ones still exist."""
CERTIFICATE_DAYS_MIN = 14
"""The days before the end of a certificate from which on it is a warning, as for the alert MilenaCertificateExpires."""
PLACES_MAX = 5
"""The most partitions that are named of many."""


@unique
class Severity(Enum):
    """The severity of a finding, in the order of the report."""

    WRONG = "wrong"
    WARNING = "warning"
    OK = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem, and what to do about it (empty if there is nothing to do)."""

    severity: Severity
    check: str
    found: str
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterExam:
    """The responses of an examination. ``groups`` is None if no node could report them."""

    view: ClusterView
    nodes: Sequence[NodeExam]
    groups: Sequence[GroupLag] | None
    lag_max: int


def diagnose(exam: ClusterExam) -> list[Finding]:
    """Return all findings, the worst first. Within one severity, causes come before their effects."""
    checks = {
        "nodes": _reachability(exam),
        "quorum": _quorum(exam),
        "leaders": _leaders(exam.view),
        "replicas": _replicas(exam),
        "damage": _damage(exam.nodes),
        "disks": _disks(exam.nodes),
        "clocks": _clocks(exam.nodes),
        "certificates": _certificates(exam.nodes),
        "versions": _versions(exam.nodes),
        "kafka": _kafka(exam.nodes),
        "groups": _groups(exam),
    }
    findings = [
        Finding(severity=severity, check=check, found=found, advice=advice)
        for check, told in checks.items()
        for severity, found, advice in told
    ]
    order = list(Severity)
    return sorted(findings, key=lambda finding: order.index(finding.severity))


_Told = tuple[Severity, str, str]
"""The severity, the text and the advice of a finding."""


def _wrong(found: str, advice: str) -> _Told:
    return Severity.WRONG, found, advice


def _warning(found: str, advice: str) -> _Told:
    return Severity.WARNING, found, advice


def _ok(found: str) -> _Told:
    return Severity.OK, found, ""


def _reachability(exam: ClusterExam) -> Iterator[_Told]:
    is_all_well = True
    for node in exam.nodes:
        found = [] if node.is_denied else list(_one_node(node, exam))
        is_all_well = is_all_well and not found
        yield from found
    denied = [node for node in exam.nodes if node.is_denied]
    if denied:
        ids = ", ".join(str(node.node.node_id) for node in denied)
        yield _warning(
            f"nodes answered ({ids}), but this user lacks the right DESCRIBE on CLUSTER: {denied[0].failure}",
            "a superuser gives it: milena acls add User:NAME --allow DESCRIBE --cluster; a token with grants also "
            "needs --grant DESCRIBE:CLUSTER. Then run doctor again: the nodes were not examined",
        )
    elif is_all_well:
        yield _ok(f"all {len(exam.nodes)} answer at their URLs, and are ready")


def _one_node(exam: NodeExam, cluster: ClusterExam) -> Iterator[_Told]:
    node, view = exam.node, cluster.view
    name = f"node {node.node_id} ({node.url})"
    if exam.failure is not None and not node.is_live:
        yield _wrong(
            f"{name} is down: {exam.failure}",
            "start it; docs/troubleshooting.md tells what to do when its disk or machine is lost",
        )
    elif exam.failure is not None and not view.is_current:
        # Without a majority it is unknown which nodes are alive.
        yield _wrong(f"{name} cannot be asked: {exam.failure}", "start it, if it is down")
    elif exam.failure is not None:
        yield _wrong(
            f"{name} is alive for the cluster, and cannot be asked from here: {exam.failure}",
            "give it an address that clients reach (milena start --advertise), or open the way to it",
        )
    elif exam.answers_as != node.node_id or exam.cluster_id != view.cluster_id:
        yield _wrong(
            f"at the URL of {name} answers node {exam.answers_as} of cluster {exam.cluster_id}",
            "give each node an address that leads to itself (milena start --advertise)",
        )
    elif not node.is_live:
        yield _wrong(
            f"{name} answers, but the cluster has fenced it: {exam.not_ready or 'no heartbeat'}",
            "look into its log, and whether its peer port reaches the other nodes",
        )
    elif exam.not_ready is not None:
        if "draining" in exam.not_ready:
            # A drained node stays so until it is started again.
            remedy = "stop it, or start it again"
        elif _damaged_replicas(cluster.nodes):
            remedy = "see the damage: if this node waits for damaged records, waiting longer does not help"
        else:
            remedy = "wait, or see its log"
        yield _warning(f"{name} is not ready: {exam.not_ready}", remedy)


def _quorum(exam: ClusterExam) -> Iterator[_Told]:
    view = exam.view
    lost = [
        e.node.node_id
        for e in exam.nodes
        if e.metrics is not None and not e.metrics.values.get("raft_has_leader", 1)
    ]
    if not view.is_current:
        yield _wrong(
            "no majority of the metadata quorum answers: what one node knew last may be old",
            "start the voters that are down: with a majority of them it goes on by itself; "
            "docs/troubleshooting.md tells what to do when they are lost",
        )
    elif lost:
        yield _wrong(
            f"nodes that know no Raft leader: {_ids(lost)}",
            "look whether their peer ports reach the other voters",
        )
    elif view.controller_id is None:
        yield _wrong("there is no controller", "wait a few seconds, and ask again")
    else:
        yield _ok(f"a majority answers, and node {view.controller_id} is the controller")


def _leaders(view: ClusterView) -> Iterator[_Told]:
    if not view.is_current:
        yield _warning("not known without a majority, nor who is in sync", "see the quorum")
        return
    leaderless = view.health().leaderless
    if leaderless:
        yield _wrong(
            f"{len(leaderless)} partitions without a leader: {_places(leaderless)}",
            "start the nodes that are in sync: milena topics describe TOPIC shows which; if all of them run, their "
            "copies are damaged, and docs/troubleshooting.md says how to go on",
        )
    else:
        yield _ok(f"each of {sum(1 for _ in view.partitions())} partitions has one")


def _replicas(exam: ClusterExam) -> Iterator[_Told]:
    if not exam.view.is_current:
        return
    places = exam.view.health().under_replicated
    refusing = sum(
        int(e.metrics.values.get("partitions_under_min_isr", 0))
        for e in exam.nodes
        if e.metrics is not None
    )
    damage = "; replicas do not catch up with a damaged one: see the damage"
    unless_damaged = damage if _damaged_replicas(exam.nodes) else ""
    if refusing:
        yield _wrong(
            f"{refusing} partitions have fewer replicas in sync than min.insync.replicas: acks=all is refused",
            f"bring their nodes back; until then records can be written with acks=1 only{unless_damaged}",
        )
    if places:
        yield _warning(
            f"{len(places)} partitions are under-replicated: {_places(places)}",
            "where all nodes are up, replicas are catching up: ask again; else start the nodes that are down"
            f"{unless_damaged}",
        )
    elif not refusing:
        yield _ok("all are in sync")


def _damage(exams: Iterable[NodeExam]) -> Iterator[_Told]:
    """Report damage that lasts; nothing without it."""
    for node_id, damaged in _damaged_replicas(exams).items():
        yield _wrong(
            f"node {node_id} has {damaged} damaged replicas that no other replica can restore",
            "start the nodes that are down; if every copy is damaged, docs/troubleshooting.md says how to go on; "
            "'damage found' in the node's log names the partitions and offsets",
        )


def _damaged_replicas(exams: Iterable[NodeExam]) -> dict[int, int]:
    """Return the nodes that keep damaged replicas because no other one is in sync, and how many each keeps."""
    return {
        exam.node.node_id: int(damaged)
        for exam in exams
        if exam.metrics is not None
        and (damaged := exam.metrics.values.get("scrub_damaged_replicas", 0))
    }


def _disks(exams: Iterable[NodeExam]) -> Iterator[_Told]:
    told = {
        e.node.node_id: e.metrics.values["disk_free_bytes"]
        for e in exams
        if e.metrics is not None and "disk_free_bytes" in e.metrics.values
    }
    low = {node_id: free for node_id, free in told.items() if free < DISK_FREE_BYTES_MIN}
    for node_id, free in low.items():
        yield _wrong(
            f"node {node_id} has {free / 1e9:.2f} GB left",
            "make room: lower retention.ms or retention.bytes of large topics, or delete records; "
            "a node whose disk is full refuses writes",
        )
    if told and not low:
        yield _ok(f"at least {min(told.values()) / 1e9:.0f} GB are left on each node")


def _clocks(exams: Iterable[NodeExam]) -> Iterator[_Told]:
    """Compare clocks by what the nodes report of each other; otherwise by the dates of their responses."""
    exams = tuple(exams)
    wrong = tuple(_wrong_clocks(exams))
    yield from wrong
    if wrong:
        return
    told = {e.node.node_id: e.clock_ahead_ms for e in exams if e.clock_ahead_ms is not None}
    if not told:
        return
    first, last = min(told, key=told.__getitem__), max(told, key=told.__getitem__)
    apart_ms = told[last] - told[first]
    if apart_ms > SKEW_MS_MAX:
        yield _warning(
            f"the clock of node {last} is about {apart_ms / 1000:.0f} s ahead of that of node {first}",
            "let all machines keep their time by NTP: retention and timestamps go by these clocks",
        )
    elif abs(told[first]) > SKEW_MS_MAX and abs(told[last]) > SKEW_MS_MAX:
        yield _warning(
            f"this machine's clock is about {abs(told[first]) / 1000:.0f} s off those of all nodes",
            "set it: records that are written from here bear its time",
        )
    else:
        yield _ok(f"no two are more than {SKEW_MS_MAX // 1000} s apart")


def _wrong_clocks(exams: Iterable[NodeExam]) -> Iterator[_Told]:
    for exam in exams:
        values = {} if exam.metrics is None else exam.metrics.values
        offset_ms = values.get("clock_offset_ms", 0.0)
        if values.get("clock_known", 1.0) == 0:
            yield _wrong(
                f"node {exam.node.node_id} does not know the cluster's time, and deletes nothing by time",
                "set the clocks of the voters: a majority of them must agree within clock_skew_ms_max",
            )
        elif values.get("clock_out_of_bounds", 0.0) > 0:
            way = "ahead of" if offset_ms > 0 else "behind"
            yield _wrong(
                f"the clock of node {exam.node.node_id} is {abs(offset_ms) / 1000:.0f} s {way} the cluster's time",
                "set the clock of its machine, and keep it by NTP; until then it goes by the clocks of the others",
            )


def _certificates(exams: Iterable[NodeExam]) -> Iterator[_Told]:
    """Report certificates that end soon; nothing without TLS."""
    days_left = []
    is_all_well = True
    for exam in exams:
        for file, expiry_s in ({} if exam.metrics is None else exam.metrics.certificates).items():
            days = (expiry_s - exam.asked_ms / 1000) / 86_400
            days_left.append(days)
            if days >= CERTIFICATE_DAYS_MIN:
                continue
            is_all_well = False
            what = f"of {file} on node {exam.node.node_id}"
            advice = "replace the file: the node loads it without a restart"
            if days <= 0:
                yield _wrong(f"a certificate {what} expired {-days:.0f} days ago", advice)
            else:
                yield _warning(f"a certificate {what} expires in {days:.0f} days", advice)
    if days_left and is_all_well:
        yield _ok(f"the first expires in {min(days_left):.0f} days")


def _versions(exams: Iterable[NodeExam]) -> Iterator[_Told]:
    by_version: dict[str, list[int]] = {}
    for exam in exams:
        if exam.version:
            by_version.setdefault(exam.version, []).append(exam.node.node_id)
    if len(by_version) > 1:
        mix = "; ".join(
            f"{version}: nodes {_ids(ids)}" for version, ids in sorted(by_version.items())
        )
        yield _warning(mix, "finish the upgrade: new features wait for the last node")
    elif by_version:
        yield _ok(f"all that answer are {next(iter(by_version))}")


def _kafka(exams: Iterable[NodeExam]) -> Iterator[_Told]:
    """Report nodes that Kafka clients do not reach while they reach others; nothing without a Kafka interface."""
    values = {exam.node.node_id: exam.metrics.values for exam in exams if exam.metrics is not None}
    told = {
        node_id: of_node["kafka_listeners"]
        for node_id, of_node in values.items()
        if "kafka_listeners" in of_node
    }
    most = max(told.values(), default=0)
    lacking = [node_id for node_id, listeners in told.items() if listeners < most]
    without = [node_id for node_id in lacking if not told[node_id]]
    if lacking:
        option, ids = ("kafka_listen", without) if without else ("kafka_external_listen", lacking)
        yield _wrong(
            f"nodes without {option}, which others have: {_ids(ids)}. Kafka clients cannot reach the partitions that "
            "they lead, nor the groups that they coordinate",
            f"set {option} on them, and restart them",
        )
    equal = [node_id for node_id in told if values[node_id].get("kafka_equal_addresses", 0)]
    if equal:
        yield _wrong(
            f"nodes with the address of another one for Kafka clients: {_ids(equal)}. Clients reach only one of the "
            "nodes with an address",
            "give each its own kafka_advertise and kafka_external_advertise, or set kafka_one_address on all nodes; "
            "then restart them",
        )
    if most and not lacking and not equal:
        yield _ok(f"all {len(told)} nodes that answer listen for Kafka clients")


def _groups(exam: ClusterExam) -> Iterator[_Told]:
    if exam.groups is None:
        yield _warning("no node could say how far groups are", "ask again")
        return
    groups = [g for g in exam.groups if not _is_of_named_producer(g)]
    late = [g for g in groups if g.known_lag > exam.lag_max]
    for group in sorted(late, key=lambda g: -g.known_lag):
        members = group.summary.member_count
        yield _warning(
            f"group {group.summary.group_id} has {group.known_lag} records to read, and {members} members",
            "start its consumers"
            if not members
            else "see whether it grows (milena status --watch); "
            "if so, add members or make them faster",
        )
    unknown = [g.summary.group_id for g in groups if not g.is_known]
    if unknown:
        named = ", ".join(sorted(unknown)[:PLACES_MAX]) + ", …" * (len(unknown) > PLACES_MAX)
        yield _warning(
            f"the lag of {len(unknown)} groups is not known: {named}",
            "see the partitions with the lag - of milena groups describe: their leader does not answer, or they end "
            "before the committed offset",
        )
    if not late and not unknown:
        yield _ok(f"none of {len(groups)} has more than {exam.lag_max} records to read")


def _is_of_named_producer(group: GroupLag) -> bool:
    """Return whether the group's offset counts what a named producer has written: its lag has no meaning."""
    return group.summary.group_id.startswith(GROUP_PREFIX) and not group.summary.member_count


def _ids(ids: Iterable[int]) -> str:
    return ", ".join(map(str, ids))


def _places(places: Sequence[tuple[str, int]]) -> str:
    named = ", ".join(f"{topic}-{partition}" for topic, partition in places[:PLACES_MAX])
    return named + (", …" if len(places) > PLACES_MAX else "")
