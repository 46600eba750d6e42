"""Run the test suites of Kafka clients, unchanged, against three nodes, and write what passed.

    make kafka-suites KAFKA_PYTHON=../kafka-python AIOKAFKA=../aiokafka

The variables are ``KAFKA_PYTHON``, ``AIOKAFKA``, ``CONFLUENT_KAFKA_PYTHON``, ``LIBRDKAFKA`` and ``FRANZ_GO``. Each
names a checkout of a client's sources, prepared as its own page says: librdkafka's ``tests/test-runner`` is built,
franz-go needs ``go``, and those in Python need pytest and what else their tests import (``SUITES_PYTHON`` names a
Python that has it). aiokafka's fixtures want docker; ``loadtest.stand_ins.docker`` takes its place. Each suite has a
new cluster. Nothing is downloaded. Only the suites themselves write into a checkout. ``SELECT`` limits the tests: words
for ``pytest -k``, numbers for librdkafka's ``TESTS``, or a pattern for ``go test -run``.

Exit codes: 0 all suites ran to their end, whatever they found; 1 one did not; 2 the cluster failed, or none was named.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from loadtest.cluster.local_cluster import ClusterError, LocalCluster, LocalNode
from loadtest.stand_ins.docker import BROKER

SUITE_S_MAX = 3_600
"""How long one suite may run, in seconds."""
REPORT = Path("kafka-suites.md")
NODE_COUNT = 3
SETTINGS = {
    # The suites create topics by writing to them.
    "MILENA_KAFKA_LISTEN": "127.0.0.1:0",
    "MILENA_AUTO_CREATE_TOPICS": "true",
    "MILENA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
}
STAND_INS = Path(__file__).parent / "stand_ins"
"""The folder of modules that take the place of others in a suite."""
AIOKAFKA_IMAGE = "aiolibs/kafka:2.13_2.8.1"
"""The name of Kafka's image, from which aiokafka's suite takes the version: the newest that it knows."""
KAFKA_VERSION = "4.3.0"
"""The version of Kafka that kafka-python's suite takes the nodes for; it chooses tests and versions of messages."""


@dataclass(slots=True)
class SuiteOutcome:
    """The names of a suite's tests by their results. ``error``: why it did not run to its end."""

    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """One suite.

    ``command``: from the checkout, the brokers and the file for results. ``read``: from that file, or from the output.
    """

    name: str
    variable: str
    folder: str
    needs: str
    command: Callable[[str, Path], Sequence[str]]
    environment: Callable[[str, Path], Mapping[str, str]]
    read: Callable[[str], SuiteOutcome]
    is_output: bool = False
    """Whether the results are the output, and not a file."""
    partitions: int = 4
    """Partitions of topics that are created by writing to them; the tests count on them."""


# -- results ---------------------------------------------------------------------------------------


def read_junit(text: str) -> SuiteOutcome:
    """Return the outcome in a JUnit report, as pytest writes it."""
    outcome = SuiteOutcome()
    for case in ElementTree.fromstring(text).iter("testcase"):  # noqa: S314 - written by our own pytest
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name', '')}"
        found = {child.tag for child in case}
        if found & {"failure", "error"}:
            outcome.failed.append(name)
        elif "skipped" in found:
            outcome.skipped.append(name)
        else:
            outcome.passed.append(name)
    return outcome


_RDKAFKA_STATES = {"PASSED": "passed", "FAILED": "failed", "SKIPPED": "skipped"}


def read_rdkafka(text: str) -> SuiteOutcome:
    """Return the outcome in a report of librdkafka's ``test-runner``. Tests that were not asked for are left out."""
    outcome = SuiteOutcome()
    for test in json.loads(text)["tests"].values():
        kind = _RDKAFKA_STATES.get(test["state"])
        if kind is not None and test["name"] != "<MAIN>":
            getattr(outcome, kind).append(test["name"])
    return outcome


_GO_ACTIONS = {"pass": "passed", "fail": "failed", "skip": "skipped"}


def read_go(text: str) -> SuiteOutcome:
    """Return the outcome in the output of ``go test -json``; subtests are parts of their test."""
    outcome = SuiteOutcome()
    for line in text.splitlines():
        event = json.loads(line) if line.startswith("{") else {}
        name, kind = event.get("Test", ""), _GO_ACTIONS.get(event.get("Action", ""))
        if name and "/" not in name and kind is not None:
            getattr(outcome, kind).append(name)
    return outcome


# -- suites ----------------------------------------------------------------------------------------


def _pytest(*arguments: str) -> Callable[[str, Path], Sequence[str]]:
    """Return the command of a suite that runs with pytest. ``arguments``: its options, and where its tests are."""
    return lambda _, results: (
        os.environ.get("SUITES_PYTHON") or sys.executable,
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={results}"),
        *arguments,
        *(("-k", os.environ["SELECT"]) if os.environ.get("SELECT") else ()),
    )


def _kafka_python_environment(brokers: str, results: Path) -> Mapping[str, str]:
    return {
        "KAFKA_URI": f"kafka://{brokers.partition(',')[0]}",
        "KAFKA_VERSION": os.environ.get("KAFKA_VERSION") or KAFKA_VERSION,
        # The fixtures look for a broker's folder, which no test uses: the broker runs already.
        "KAFKA_ROOT": str(results.parent),
        "PYTHONPATH": ".",
    }


def _aiokafka_environment(brokers: str, results: Path) -> Mapping[str, str]:
    # A fixture of every test makes a keytab for Kerberos, which only tests in a file that is left out use.
    (results.parent / "ktutil").symlink_to(shutil.which("true") or "/bin/true")
    return {
        BROKER: brokers.partition(",")[0],
        "PATH": f"{results.parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": str(STAND_INS),
    }


def _rdkafka_environment(brokers: str, results: Path) -> Mapping[str, str]:
    configuration = results.parent / "test.conf"
    configuration.write_text(
        f"metadata.broker.list={brokers}\ntest.topic.prefix=rdk\n", encoding="utf-8"
    )
    return {
        "RDKAFKA_TEST_CONF": str(configuration),
        "TEST_REPORT": str(results),
        **({"TESTS": os.environ["SELECT"]} if os.environ.get("SELECT") else {}),
    }


SUITES = (
    Suite(
        name="kafka-python",
        variable="KAFKA_PYTHON",
        folder=".",
        needs="test/integration",
        command=_pytest(
            *(
                f"test/integration/test_{kind}_integration.py"
                for kind in ("admin", "consumer", "producer")
            )
        ),
        environment=_kafka_python_environment,
        read=read_junit,
    ),
    Suite(
        name="aiokafka",
        variable="AIOKAFKA",
        folder=".",
        needs="tests/conftest.py",
        # Its tests of SASL need users with passwords of four characters, which are refused here.
        command=_pytest(
            *("--docker-image", AIOKAFKA_IMAGE, "--no-pull"),
            *("--ignore=tests/test_sasl.py", "tests"),
        ),
        environment=_aiokafka_environment,
        read=read_junit,
        partitions=2,
    ),
    Suite(
        name="confluent-kafka-python",
        variable="CONFLUENT_KAFKA_PYTHON",
        folder=".",
        needs="tests/integration",
        command=_pytest(
            *(f"tests/integration/{kind}" for kind in ("admin", "consumer", "producer"))
        ),
        environment=lambda brokers, _: {"BROKERS": brokers},
        read=read_junit,
    ),
    Suite(
        name="librdkafka",
        variable="LIBRDKAFKA",
        folder="tests",
        needs="tests/test-runner",
        command=lambda _, results: ("./test-runner", "-p1", "-Q", "-E"),
        environment=_rdkafka_environment,
        read=read_rdkafka,
    ),
    Suite(
        name="franz-go",
        variable="FRANZ_GO",
        folder="pkg/kgo",
        needs="pkg/kgo",
        command=lambda _, results: (
            os.environ.get("GO") or "go",
            *("test", "-json", "-count=1", f"-timeout={SUITE_S_MAX}s"),
            *(("-run", os.environ["SELECT"]) if os.environ.get("SELECT") else ()),
            ".",
        ),
        environment=lambda brokers, _: {"KGO_SEEDS": brokers, "KGO_TEST_RF": "3"},
        read=read_go,
        is_output=True,
    ),
)


def run_suite(suite: Suite, checkout: Path, brokers: str) -> SuiteOutcome:
    """Run a suite and return what it found; its output goes to the terminal, too, if it is no result itself."""
    if not (checkout / suite.needs).exists():
        return SuiteOutcome(error=f"{checkout / suite.needs} does not exist")
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results"
        command = suite.command(brokers, results)
        environment = {**os.environ, **suite.environment(brokers, results)}
        try:
            done = subprocess.run(
                command,
                cwd=checkout / suite.folder,
                env=environment,
                stdout=subprocess.PIPE if suite.is_output else None,
                text=True,
                timeout=SUITE_S_MAX,
                check=False,
            )
            outcome = suite.read(
                done.stdout if suite.is_output else results.read_text(encoding="utf-8")
            )
        except subprocess.TimeoutExpired:
            return SuiteOutcome(error=f"it ran for more than {SUITE_S_MAX} s")
        except (OSError, ValueError, KeyError, ElementTree.ParseError) as error:
            return SuiteOutcome(error=f"it wrote no results: {error}")
    if not (outcome.passed or outcome.failed or outcome.skipped):
        outcome.error = f"no test ran; exit code {done.returncode}"
    return outcome


def run_on_cluster(suite: Suite, checkout: Path) -> SuiteOutcome:
    """Run a suite against a cluster of its own.

    Raises:
        ClusterError: the cluster did not start.
    """
    directory = Path(tempfile.mkdtemp(prefix="kafka-suites-"))
    settings = {**SETTINGS, "MILENA_DEFAULT_PARTITIONS": str(suite.partitions)}
    cluster = LocalCluster(directory, node_count=NODE_COUNT, environment=settings)
    try:
        cluster.start()
        asyncio.run(cluster.wait_ready())
        brokers = ",".join(map(LocalNode.kafka_address, cluster.nodes))
        print(f"kafka-suites: {suite.name} against {brokers}", flush=True)
        return run_suite(suite, checkout, brokers)
    finally:
        cluster.kill()
        shutil.rmtree(directory, ignore_errors=True)


# -- the table -------------------------------------------------------------------------------------


def table(outcomes: Mapping[str, SuiteOutcome]) -> str:
    """Return the outcomes as Markdown."""
    lines = [
        "| suite | passed | failed | skipped | failed tests |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, found in outcomes.items():
        failed = ", ".join(f"`{test}`" for test in sorted(found.failed)) or found.error
        counts = (len(found.passed), len(found.failed), len(found.skipped))
        lines.append(f"| {name} | {' | '.join(map(str, counts))} | {failed} |")
    return "\n".join(lines) + "\n"


def main(variables: Mapping[str, str]) -> int:
    """Run the suites whose checkouts the variables name; return the exit code."""
    asked = [
        (suite, variables[suite.variable]) for suite in SUITES if variables.get(suite.variable)
    ]
    if not asked:
        names = ", ".join(f"{suite.variable}=..." for suite in SUITES)
        sys.stderr.write(f"kafka-suites: name a checkout of at least one suite: {names}\n")
        return 2
    outcomes: dict[str, SuiteOutcome] = {}
    for suite, checkout in asked:
        try:
            outcomes[suite.name] = run_on_cluster(suite, Path(checkout).resolve())
        except ClusterError as error:
            sys.stderr.write(f"kafka-suites: {error}\n")
            return 2
        report(outcomes)
    print(table(outcomes), end="")
    return 1 if any(found.error for found in outcomes.values()) else 0


def report(outcomes: Mapping[str, SuiteOutcome]) -> None:
    """Write the table of the suites that have run so far."""
    REPORT.write_text(table(outcomes), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(os.environ))
