"""Results of the suites of Kafka clients, as each of them writes it, and the table that is made of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest import kafka_suites as suites
from loadtest.kafka_suites import Suite, SuiteOutcome

JUNIT = """<testsuites><testsuite name="pytest">
<testcase classname="test.integration.test_a" name="test_good"/>
<testcase classname="test.integration.test_a" name="test_bad"><failure message="m">text</failure></testcase>
<testcase classname="test.integration.test_b" name="test_setup"><error message="m">text</error></testcase>
<testcase classname="test.integration.test_b" name="test_left"><skipped message="m"/></testcase>
</testsuite></testsuites>"""


def test_a_junit_report_is_read() -> None:
    found = suites.read_junit(JUNIT)
    assert found.passed == ["test_a::test_good"]
    assert found.failed == ["test_a::test_bad", "test_b::test_setup"]
    assert found.skipped == ["test_b::test_left"]


def test_a_report_of_librdkafka_is_read() -> None:
    states = {"<MAIN>": "PASSED", "0001": "PASSED", "0002": "FAILED", "0003": "SKIPPED", "4": "DNS"}
    text = json.dumps(
        {"tests": {name: {"name": name, "state": state} for name, state in states.items()}}
    )
    found = suites.read_rdkafka(text)
    assert (found.passed, found.failed, found.skipped) == (["0001"], ["0002"], ["0003"])


def test_the_output_of_go_is_read() -> None:
    events = [
        {"Action": "run", "Test": "TestA"},
        {"Action": "output", "Test": "TestA", "Output": "text"},
        {"Action": "pass", "Test": "TestA/part"},
        {"Action": "pass", "Test": "TestA"},
        {"Action": "fail", "Test": "TestB"},
        {"Action": "skip", "Test": "TestC"},
        {"Action": "fail"},
    ]
    text = "not JSON\n" + "\n".join(map(json.dumps, events))
    found = suites.read_go(text)
    assert (found.passed, found.failed, found.skipped) == (["TestA"], ["TestB"], ["TestC"])


def test_the_table_names_what_failed() -> None:
    text = suites.table(
        {
            "kafka-python": SuiteOutcome(passed=["a"], failed=["c", "b"], skipped=["d"]),
            "franz-go": SuiteOutcome(error="it wrote no results"),
        }
    )
    assert text.splitlines()[2:] == [
        "| kafka-python | 1 | 2 | 1 | `b`, `c` |",
        "| franz-go | 0 | 0 | 0 | it wrote no results |",
    ]


def suite_of(program: str, *, is_output: bool = False) -> Suite:
    return Suite(
        name="own",
        variable="OWN",
        folder=".",
        needs=".",
        command=lambda brokers, results: (sys.executable, "-c", program, brokers, str(results)),
        environment=lambda brokers, _: {"BROKERS": brokers},
        read=suites.read_go if is_output else suites.read_junit,
        is_output=is_output,
    )


def test_a_suite_gets_the_brokers_and_its_results_are_read(tmp_path: Path) -> None:
    program = (
        "import os, sys; assert os.environ['BROKERS'] == sys.argv[1] == 'a:1,b:2'; "
        f"open(sys.argv[2], 'w').write({JUNIT!r}); sys.exit(1)"
    )
    assert len(suites.run_suite(suite_of(program), tmp_path, "a:1,b:2").failed) == 2
    line = json.dumps({"Action": "pass", "Test": "TestA"})
    found = suites.run_suite(suite_of(f"print({line!r})", is_output=True), tmp_path, "a:1")
    assert found.passed == ["TestA"]


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("pass", "it wrote no results"),
        ("import sys; open(sys.argv[2], 'w').write('not XML')", "it wrote no results"),
        (
            "import sys; open(sys.argv[2], 'w').write('<a/>'); sys.exit(4)",
            "no test ran; exit code 4",
        ),
    ],
)
def test_a_suite_without_results_says_so(program: str, said: str, tmp_path: Path) -> None:
    assert said in suites.run_suite(suite_of(program), tmp_path, "a:1").error


def test_a_checkout_that_is_not_there_or_none_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka_python = suites.SUITES[0]
    assert "does not exist" in suites.run_suite(kafka_python, tmp_path, "a:1").error
    assert suites.main({"KAFKA_PYTHON": ""}) == 2
    said = capsys.readouterr().err
    assert all(f" {suite.variable}=..." in said for suite in suites.SUITES)


@pytest.mark.parametrize("suite", suites.SUITES, ids=lambda suite: suite.name)
def test_each_suite_is_told_where_a_broker_is_and_where_its_results_go(
    suite: Suite, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    told = suite.environment("127.0.0.1:9092,127.0.0.1:9093", results)
    files = [path.read_text() for path in tmp_path.glob("*.conf")]
    assert any("127.0.0.1:9092" in text for text in [*told.values(), *files])
    command = suite.command("127.0.0.1:9092", results)
    is_named = any(str(results) in text for text in [*command, *told.values()])
    assert is_named is not suite.is_output


def test_aiokafka_finds_the_stand_ins(tmp_path: Path) -> None:
    (suite,) = (suite for suite in suites.SUITES if suite.name == "aiokafka")
    told = suite.environment("127.0.0.1:9092", tmp_path / "results")
    program = (
        "import docker, shutil, subprocess; assert docker.from_env().containers; "
        "subprocess.run(['ktutil'], check=True)"
    )
    subprocess.run([sys.executable, "-c", program], env={**os.environ, **told}, check=True)
