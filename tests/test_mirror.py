"""Every module of the product has a test that imports it, names it, or mirrors its path."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.test_tidy import PACKAGES

ROOT = Path(__file__).parent.parent
TESTS = (*(ROOT / "tests/unit").rglob("*.py"), *(ROOT / "tests/spark").rglob("*.py"))
"""Spark's own tests stand apart, because they need Java."""
MIRRORS = {"spark_ext": "tests/spark"}
"""Where the tests of a package are, unless in tests/unit under its name."""
UNTESTED = frozenset(
    {
        "examples.events.job",
        "examples.events.options",
        "examples.events.report",
        "examples.events.watermark",
        "examples.market.surcharges",
        "examples.weblog.error_rates",
        "examples.weblog.hours",
        "http_api.access.hosts",
        "http_api.access.rights",
        "http_api.describing.error_sets",
        "http_api.formats.framing",
        "http_api.formats.rows",
        "http_api.groups.lags",
        "http_api.groups.offsets",
        "http_api.native.access.handlers",
        "http_api.native.access.quota_endpoints",
        "http_api.native.access.quotas",
        "http_api.native.cluster_metadata",
        "http_api.native.description",
        "http_api.native.endpoints",
        "http_api.native.groups.endpoints",
        "http_api.native.groups.handlers",
        "http_api.native.health",
        "http_api.native.history",
        "http_api.native.producers",
        "http_api.native.record_deletion",
        "http_api.native.transactions.sessions",
        "http_api.native.transactions.transact",
        "http_api.protocol.answers",
        "http_api.quick.parsed_head",
        "http_api.records.conditions",
        "http_api.records.transaction_header",
        "http_api.serving.body",
        "http_api.serving.call",
        "http_api.serving.lookup",
        "http_api.serving.plain_answer",
        "http_api.serving.request_metrics",
        "http_api.serving.shared",
        "http_api.shapes.groups",
        "http_api.shapes.native",
        "http_api.shapes.quotas",
        "http_api.shapes.v2",
        "http_api.shapes.v3",
        "http_api.shapes.v3_records",
        "http_api.v2.consumer_endpoints",
        "http_api.v2.consumer_offsets",
        "http_api.v2.consumer_records",
        "http_api.v2.endpoints",
        "http_api.v2.tokens",
        "http_api.v3.acl_endpoints",
        "http_api.v3.broker_configs",
        "http_api.v3.clusters",
        "http_api.v3.configs",
        "http_api.v3.endpoints",
        "http_api.v3.group_endpoints",
        "http_api.v3.groups",
        "http_api.v3.partitions",
        "http_api.v3.reassignments",
        "http_api.v3.receipts",
        "http_api.v3.resources",
        "http_api.v3.rows",
        "http_api.v3.topics",
        "loadtest.bench.clients.greedy",
        "loadtest.bench.clients.locust_users",
        "loadtest.bench.measuring.process_cpu",
        "loadtest.bench.rows.access",
        "loadtest.bench.rows.clients",
        "loadtest.bench.rows.cluster",
        "loadtest.bench.rows.curves",
        "loadtest.bench.rows.transactions",
        "loadtest.bench.spark.pace",
        "loadtest.bench.spark.reading",
        "loadtest.bench.spark.session",
        "loadtest.bench.spark.sinks",
        "loadtest.bench.spark.tuples",
        "loadtest.bench.stages.access",
        "loadtest.bench.stages.clients",
        "loadtest.bench.stages.commands",
        "loadtest.bench.stages.demo",
        "loadtest.bench.stages.fairness",
        "loadtest.bench.stages.metadata",
        "loadtest.bench.stages.reading",
        "loadtest.bench.stages.recovery",
        "loadtest.bench.stages.standing",
        "loadtest.bench.stages.transactions",
        "loadtest.cluster.failover",
        "loadtest.judging.judge",
        "loadtest.locust_run",
        "loadtest.locustfile",
        "loadtest.run",
        "milena.blocking.transactions",
        "milena.cluster.first_of",
        "milena.cluster.transactions",
        "milena.commands.access.access",
        "milena.commands.access.quotas",
        "milena.commands.access.users",
        "milena.commands.benchmarks.bench",
        "milena.commands.consuming.consume",
        "milena.commands.consuming.following",
        "milena.commands.group_output",
        "milena.commands.groups",
        "milena.commands.health.doctor",
        "milena.commands.nodes",
        "milena.commands.producing.named_lines",
        "milena.commands.transactions",
        "milena.consuming.assignment",
        "milena.consuming.background",
        "milena.consuming.feed",
        "milena.consuming.feeds",
        "milena.consuming.group",
        "milena.consuming.polled",
        "milena.consuming.rebalance",
        "milena.fields",
        "milena.producing.outgoing",
        "milena.producing.record_checks",
        "milena.producing.sender",
        "milena.producing.topic_placements",
        "node.access.authorization_header",
        "node.assembly",
        "node.consumers.consumer_assembly",
        "node.consumers.consumer_coordinator",
        "node.consumers.consumer_expiry",
        "node.consumers.session_commits",
        "node.consumers.start_positions",
        "node.control.standing",
        "node.groups.assignors",
        "node.groups.descriptions",
        "node.groups.group_assembly",
        "node.groups.group_writer",
        "node.groups.rest_members",
        "node.metadata.image_parts",
        "node.metadata.leaderships",
        "node.peers.client",
        "node.peers.server",
        "node.peers.sockets",
        "node.process.keep_going",
        "node.replica.acknowledgements",
        "node.replica.append_queue",
        "node.replica.deletions",
        "node.replica.follower_log",
        "node.replica.log_changes",
        "node.replication.follower_session",
        "node.replication.transaction_ends",
        "node.services.own_topics",
        "node.services.producers",
        "node.services.reassignment_plans",
        "node.services.transactions.slots",
        "raft_meta.consensus.installer",
        "raft_meta.consensus.outbox",
        "raft_meta.consensus.parts",
        "raft_meta.consensus.raft_quorum",
        "raft_meta.consensus.replicator",
        "raft_meta.consensus.snapshotter",
        "raft_meta.machine.image_sections",
        "raft_meta.machine.outcome",
        "raft_meta.machine.topics.partitions",
        "raft_meta.machine.topics.reassignments",
        "spark_ext.jobs.archiving.parquet_check",
        "spark_ext.jobs.replaying.target",
        "spark_ext.jobs.running.spans",
        "spark_ext.options.given",
        "spark_ext.reading.checking",
        "spark_ext.reading.pinning",
        "spark_ext.streaming.reader",
        "spark_ext.writing.task_input",
        "spark_ext.writing.transactional_sink",
        "storage.log.checkpointing",
        "storage.log.start",
        "storage.log.state",
        "storage.log.succession",
        "storage.log.tickets",
        "storage.log.truncation",
        "storage.replica.segment_swap",
        "storage.segments.append_plan",
    }
)
"""Modules that tests reach only through other modules. The list may only become shorter."""
_PATH = re.compile(r"\w+(?:/\w+)+\.py\b")
_DOTTED = re.compile(r"\w+(?:\.\w+)+")


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def modules() -> Iterator[Path]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.name not in ("__init__.py", "__main__.py"):
                yield path


def mentions(source: str) -> Iterator[str]:
    """Yield the modules that a test imports, and those that its texts name by path or with dots."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _DOTTED.findall(node.value)
            for path in _PATH.findall(node.value):
                yield path.removesuffix(".py").replace("/", ".")


def mirrored(path: Path) -> bool:
    """Return whether a test file or a folder of tests has the module's place and name."""
    package, *folders = path.relative_to(ROOT).parent.parts
    place = ROOT.joinpath(MIRRORS.get(package, f"tests/unit/{package}"), *folders)
    names = (f"test_{path.stem}.py", f"test_{place.name}_{path.stem}.py", path.stem)
    return any((place / name).exists() for name in names)


@cache
def reached() -> frozenset[str]:
    """Return the modules that have a test of their own."""
    named = {found for path in TESTS for found in mentions(path.read_text(encoding="utf-8"))}
    return frozenset(
        module_of(path) for path in modules() if module_of(path) in named or mirrored(path)
    )


def test_a_new_module_has_a_test() -> None:
    missing = {module_of(path) for path in modules()} - reached() - UNTESTED
    assert not missing, f"no test imports, names or mirrors {sorted(missing)}: add one"


def test_exceptions_are_still_needed() -> None:
    known = {module_of(path) for path in modules()}
    gone, tested = UNTESTED - known, UNTESTED & reached()
    assert not gone, f"take these out of UNTESTED, they are no modules: {sorted(gone)}"
    assert not tested, f"take these out of UNTESTED, they have a test: {sorted(tested)}"


def test_a_module_that_no_test_names_is_found() -> None:
    path = ROOT / "storage" / "log" / "nothing_like_this.py"
    assert module_of(path) not in set(mentions('from storage.log import state\n"storage.log"'))
    assert not mirrored(path)
    assert "storage.log.state" in set(mentions("from storage.log import state"))
    assert "storage.log.state" in set(mentions('"""See storage/log/state.py."""'))
