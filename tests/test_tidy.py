"""House rules that no linter knows, as tests."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from milena.cli import OWN_COMMANDS

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "storage",
    "raft_meta",
    "http_api",
    "node",
    "milena",
    "spark_ext",
    "pyspark_milena",
    "loadtest",
    "examples",
)

CORES = ("storage", "raft_meta/machine", "milena/disk")
"""Decide without doing: no loop, no clock, no chance, no sockets."""

CORE_FILES = (
    "milena/model/batch/client_checks.py",
    "milena/model/batch/decode.py",
    "milena/model/batch/encode.py",
    "milena/model/batch/header.py",
    "milena/model/codecs.py",
    "milena/model/columns.py",
    "milena/model/errors.py",
    "milena/model/partitioner.py",
    "milena/model/types.py",
    "node/replica/follower.py",
    "node/replica/leader.py",
    "node/replication/throttle.py",
    "node/control/broker_sessions.py",
    "node/services/record_batches.py",
    "node/replication/fetch_wire.py",
    "node/consumers/answer_cutting.py",
    "node/consumers/consumer_messages.py",
    "node/consumers/cursor.py",
    "node/groups/assignors.py",
    "node/groups/descriptions.py",
    "node/groups/group_messages.py",
    "node/groups/heartbeat_rules.py",
    "node/groups/member_sessions.py",
    "node/groups/members.py",
    "node/groups/rebalance.py",
    "node/groups/subscriptions.py",
    "milena/producing/batching.py",
    "milena/consuming/polled.py",
    "milena/consuming/membership.py",
    "milena/consuming/options.py",
    "milena/consuming/assignment.py",
    "milena/cluster/access_views.py",
    "milena/cluster/group_views.py",
    "milena/commands/access/output.py",
    "milena/commands/access/words.py",
    "milena/producing/partitioner.py",
    "milena/producing/placement.py",
    "milena/producing/options.py",
    "milena/producing/outgoing.py",
    "milena/producing/record_checks.py",
    "milena/producing/retry.py",
    "milena/cluster/http_answer.py",
    "milena/cluster/routing.py",
    "milena/producing/sequences.py",
    "milena/producing/serializers.py",
    "spark_ext/options/bounds.py",
    "spark_ext/cluster/ends.py",
    "spark_ext/rows/blocks.py",
    "spark_ext/rows/decode.py",
    "spark_ext/rows/key_hashes.py",
    "spark_ext/options/given.py",
    "spark_ext/options/parsing.py",
    "spark_ext/reading/planner.py",
    "spark_ext/rows/read_schema.py",
    "spark_ext/options/selection.py",
    "spark_ext/streaming/offsets.py",
    "spark_ext/streaming/plan.py",
    "spark_ext/rows/write_schema.py",
)
FORBIDDEN_IN_CORES = {"asyncio", "socket", "time", "random", "uuid", "secrets", "ssl", "subprocess"}
ALLOWED = {
    # Placement is handed its random source and names the type.
    ("raft_meta/machine/topics/placement.py", "random"),
    # So are the waits between a producer's attempts.
    ("milena/producing/retry.py", "random"),
}
OS_FILES = {"milena/disk/os_files.py", "milena/disk/cached_reads.py"}
ENTRY_POINTS = {
    "node.cli",
    "node.process.dump",
    "milena.model.batch.v2_checks",
    "node.__main__",
    "milena.__main__",
    "loadtest.demo",
    "loadtest.kafka_suites",
    "loadtest.__main__",
    "loadtest.bench.__main__",
    "loadtest.bench.servers.bare_kafka",
    "loadtest.bench.servers.bare_server",
    "loadtest.bench.compare",
    "loadtest.bench.consumers",
    "loadtest.bench.many_partitions",
    "loadtest.locustfile",
    "loadtest.bench.clients.locust_users",
    "loadtest.bench.spark.__main__",
    "loadtest.bench.spark.memory",
    "node.config.options.docs",
    "examples.alerts",
    "spark_ext.jobs.archive",
    "spark_ext.jobs.audit",
    "examples.demand_prices",
    "examples.market_sample",
    "spark_ext.jobs.replay",
    "examples.sessions",
    "examples.site_stats",
}


TWINS = {
    # Public names that the blocking client shares with the one for asyncio.
    "AccessAdmin",
    "Client",
    "Consumer",
    "Deliveries",
    "Delivery",
    "NamedProducer",
    "PartitionReader",
    "Producer",
    "Transaction",
    "TransactionalProducer",
    # What a node keeps or raises, and what the client makes of its answer.
    "GroupMember",
    "GroupNotEmptyError",
    "MemberFencedError",
    "TransactionAbortedError",
}
"""Class names that stand in two modules, and mean the same in both."""


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", sources(*PACKAGES), ids=name_of)
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(tree_of(path)), "a module begins with what it owns and refuses to know"


@pytest.mark.parametrize(
    "path", [*sources(*CORES), *(ROOT / name for name in CORE_FILES)], ids=name_of
)
def test_cores_decide_and_do_nothing(path: Path) -> None:
    tree = tree_of(path)
    used = {name.split(".")[0] for name in imported(tree)}
    if name_of(path) not in OS_FILES:
        assert "os" not in used, "the operating system is reached through milena.disk.files"
        found = {
            module for module in used & FORBIDDEN_IN_CORES if (name_of(path), module) not in ALLOWED
        }
        assert not found
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef)]


@pytest.mark.parametrize("path", sources(*PACKAGES), ids=name_of)
def test_nothing_was_left_behind(path: Path) -> None:
    names = {
        node.func.id
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert "breakpoint" not in names
    text = path.read_text(encoding="utf-8")
    assert not [word for word in ("TO" + "DO", "FIX" + "ME") if word in text]


def test_no_module_is_dead() -> None:
    users = [*sources(*PACKAGES)]
    used = {name for path in users for name in imported(tree_of(path))}
    used |= {f"milena.commands.{module}" for module in OWN_COMMANDS.values()}
    modules = {
        name_of(path).removesuffix(".py").replace("/", ".")
        for path in users
        if path.name != "__init__.py"
    }
    assert not modules - used - ENTRY_POINTS


def test_a_class_name_means_one_thing() -> None:
    places: dict[str, set[str]] = {}
    for path in sources(*PACKAGES):
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, set()).add(name_of(path))
    assert {name for name, found in places.items() if len(found) > 1} == TWINS


def test_pickle_is_imported_nowhere() -> None:
    found = [
        name_of(path)
        for path in sources(*PACKAGES)
        if {"pickle", "marshal", "shelve", "dill"}
        & {n.split(".")[0] for n in imported(tree_of(path))}
    ]
    assert not found


def test_every_requirement_is_pinned_and_names_no_index() -> None:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins
    assert not [line for line in pins if "==" not in line or "://" in line or line.startswith("-")]


def test_the_tree_is_source_only() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    assert not [name for name in listed if name.endswith((".pyc", ".img", ".log"))]
    loose = {name for name in listed if "/" not in name and name.endswith((".md", ".txt", ".py"))}
    assert loose <= TOP_FILES, "a file at the top of the tree is for all readers: is this one?"


TOP_FILES = frozenset(
    {
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "README.md",
        "SECURITY.md",
        "build_support.py",
        "prerequisites.py",
    }
)

TABLES = frozenset(
    {
        "acls",
        "consumers",
        "ending",
        "groups",
        "offsets",
        "partitions",
        "producer_blocks",
        "producer_names",
        "producers",
        "quotas",
        "tokens",
        "transactional_ids",
        "transactional_names",
        "users",
    }
)
"""Tables of the replicated state that grow with the number of clients or partitions, up to 100,000 rows and more."""

SCANS = {
    ("node/kafka/apis/transaction_views.py", "transactional_ids"): "ListTransactions, in turns",
}
"""Loops over a whole table while a request waits, and the request that asks for it."""


def scans(tree: ast.Module) -> Iterator[str]:
    """The tables of an image that the code goes through from end to end, as far as it names the image there."""

    def table(node: ast.expr) -> str | None:
        while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        is_image = isinstance(node, ast.Attribute) and (
            (isinstance(node.value, ast.Name) and node.value.id == "image")
            or (isinstance(node.value, ast.Attribute) and node.value.attr == "image")
        )
        return node.attr if is_image and isinstance(node, ast.Attribute) else None

    for node in ast.walk(tree):
        found: list[ast.expr] = []
        if isinstance(node, ast.For | ast.comprehension):
            # ``for … in image.t``, ``image.t.values()``, ``enumerate(a if b else image.t)``
            found = [one for one in ast.walk(node.iter) if isinstance(one, ast.expr)]
            looked_up = {
                id(inner)
                for one in found
                if isinstance(one, ast.Subscript)
                or (isinstance(one, ast.Call) and _is_lookup(one))
                or isinstance(one, ast.Compare)
                for inner in ast.walk(one)
            }
            found = [one for one in found if id(one) not in looked_up]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            found = [node] if node.func.attr in {"values", "items"} else []
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            is_whole = node.func.id in {"sorted", "list", "set", "tuple", "dict", "filter", "map"}
            found = list(node.args) if is_whole else []
        yield from (name for one in found if (name := table(one)) in TABLES)


def _is_lookup(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "get"


def test_requests_do_not_go_through_whole_tables() -> None:
    found = {
        (name_of(path), table)
        for path in sources("http_api", "node/kafka")
        for table in scans(tree_of(path))
    }
    assert found == set(SCANS), "look a row up by its key, or keep an index beside the table"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("for row in image.users: pass", ["users"]),
        ("[row for row in call.metadata.image.groups.values()]", ["groups"]),
        ("any(x for x in (a if b else image.tokens))", ["tokens"]),
        ("sorted(image.consumers)", ["consumers"]),
        ("for row in image.offsets.get(group, {}): pass", []),
        ("for row in image.brokers: pass", []),
        ("name in image.users", []),
    ],
)
def test_a_loop_over_a_whole_table_is_found(code: str, expected: list[str]) -> None:
    assert sorted(set(scans(ast.parse(code)))) == expected
