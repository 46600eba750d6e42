"""The compiled tree is what it says, and whoever asks it gets the answers of the sources, refusals included."""

import re

import pytest

import build_support

pytestmark = pytest.mark.integration

SKIPPED_SHARE_MAX = 0.02
"""Of the tests: those that stand in for something that is compiled, see plugin.py."""
TIMEOUT_S = 1_800
"""For one suite. The longest takes 5 minutes beside another one, and more on a machine with other guests."""

SUITES = {
    # The folders whose modules are compiled, or call those that are. The longest suite comes first.
    "node": (
        *(
            f"tests/unit/node/{folder}"
            for folder in (
                "containment",
                "kafka",
                "metadata",
                "peers",
                "process",
                "replica",
                "replication",
                "services",
            )
        ),
        "tests/unit/node/test_nodes.py",
        "tests/unit/node/test_wrong_clocks.py",
        # Whether a call is allowed is decided before compiled code gets it.
        "--ignore=tests/unit/node/kafka/test_rights.py",
    ),
    "storage": ("tests/unit/storage",),
    "api": (
        *(
            f"tests/unit/http_api/{folder}"
            for folder in ("formats", "quick", "records", "v2", "v3")
        ),
        "tests/unit/http_api/test_wire.py",
    ),
    "serving": (
        "tests/unit/http_api/serving/test_connections.py",
        "tests/unit/http_api/serving/test_dispatch.py",
        "tests/unit/http_api/serving/test_separate_requests.py",
    ),
    "quorum": ("tests/unit/raft_meta/consensus",),
    "any history": (
        "tests/property/test_batch_property.py",
        "tests/property/test_compaction_property.py",
        "tests/property/test_partition_log_property.py",
        "tests/property/test_wal_property.py",
    ),
    "hostile input": ("tests/fuzz",),
    "clusters": (
        "tests/integration/test_nodes.py",
        "tests/integration/test_idempotence.py",
        "tests/integration/test_reads.py",
        "tests/integration/test_produce_consume.py::test_a_reader_outlives_every_node_one_after_the_other",
        "tests/integration/test_produce_consume.py::test_a_leader_that_is_killed_is_not_noticed_by_those_who_follow",
        "tests/integration/test_produce_consume.py::test_a_real_access_log_comes_back_byte_for_byte",
    ),
}

KINDS = """
import importlib, pathlib, sys
for path in sys.argv[1:]:
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    print(path, pathlib.Path(module.__file__).suffix, module.__file__)
"""


def packages():
    return ("storage", "raft_meta", "http_api", "node", "milena")


def sources():
    return sorted(
        path.relative_to(build_support.ROOT).as_posix()
        for package in packages()
        for path in (build_support.ROOT / package).rglob("*.py")
        if path.name not in {"__init__.py", "__main__.py"}
    )


def test_every_module_of_the_tree_can_be_imported_and_those_that_are_listed_are_extensions(tree):
    """A class that is not compiled cannot inherit from one that is: the module with it fails here."""
    done = tree.run("-c", KINDS, *sources())
    assert done.returncode == 0, done.stdout
    found = {}
    for line in done.stdout.splitlines():
        path, suffix, where = line.split()
        assert where.startswith(str(tree.path)), where
        found[path] = suffix
    assert {path for path, suffix in found.items() if suffix == ".so"} == {
        *build_support.compiled_modules()
    }


def test_the_tree_says_what_it_is(tree):
    done = tree.run("-m", "milena", "--version")
    assert done.stdout.endswith(" (compiled)\n"), done.stdout


def test_nothing_compiled_lies_beside_the_sources(tree):
    assert not [
        found for package in packages() for found in (build_support.ROOT / package).rglob("*.so")
    ]
    assert not list(build_support.ROOT.glob("*.so"))


@pytest.mark.parametrize("suite", SUITES.values(), ids=list(SUITES))
def test_a_suite_passes_on_the_compiled_tree(tree, suite):
    done = tree.run(
        *("-m", "pytest", "-o", "pythonpath=", "-p", "no:cacheprovider"),
        *("-p", "tests.compiled.plugin", "-m", "not long and not deep", "--tb", "short", *suite),
        timeout_s=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|skipped)", done.stdout)}
    assert counts["passed"], done.stdout
    assert counts.get("skipped", 0) <= SKIPPED_SHARE_MAX * counts["passed"], done.stdout


def test_simulated_clusters_keep_their_promises_on_the_compiled_tree(tree):
    done = tree.run(
        "-m", "tests.sim.cluster", "--seeds", "990000:990003", "--keep-going", timeout_s=TIMEOUT_S
    )
    assert done.returncode == 0, done.stdout[-20_000:]
    assert "3 seeds" in done.stdout
    assert "; 0 failed" in done.stdout
