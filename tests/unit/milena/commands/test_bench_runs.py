"""What ``milena bench`` says of a measurement, and when it ends; real nodes are measured by docs/command-line.md."""

from random import Random

import pytest

from milena import cli
from milena.commands.benchmarks.latencies import Latencies
from milena.commands.benchmarks.runs import BenchBound, BenchResult, Echo
from milena.errors import NotNowError
from milena.model.types import TimestampType
from milena.records import ConsumedRecord


@pytest.mark.parametrize(
    ("records", "seconds", "done", "is_reached"),
    [
        (10, None, (9, 99.0), False),
        (10, None, (10, 0.0), True),
        (None, 5.0, (99, 4.9), False),
        (None, 5.0, (0, 5.0), True),
        (10, 5.0, (10, 0.1), True),
    ],
)
def test_a_measurement_ends_at_whichever_bound_comes_first(records, seconds, done, is_reached):
    assert BenchBound(records=records, seconds=seconds).is_reached(*done) is is_reached


def test_the_share_of_the_client_is_a_part_of_the_report():
    result = BenchResult(what="x", records=100, record_bytes=10_000_000, seconds=2, client_cpu_s=1)
    assert result.text().splitlines() == [
        "x: 100 records, 10000000 bytes in 2.00 s: 50 records/s, 5.00 MB/s",
        "this client used 0.50 of a core, which is a part of what was measured",
    ]
    told = result.as_json()
    assert (told["records_per_s"], told["bytes_per_s"], told["client_cores"]) == (50, 5e6, 0.5)


def test_what_did_not_arrive_is_not_passed_over():
    error = NotNowError("no leader", status=503, error_code=50302)
    result = BenchResult(what="x", seconds=1, failed=3, not_read=2, first_error=error)
    assert "3 records were not acknowledged" in result.text()
    assert "2 records were acknowledged, and not read within 10 s" in result.text()
    assert result.as_json()["error"] == "no leader"


class Watch:
    def now(self):
        return 7.5


class Reader:
    async def batches(self):
        yield [ConsumedRecord("t", 0, n, 0, TimestampType.CREATE, None, value) for n, value in
               enumerate([b"mine", b"another's", None])]  # fmt: skip


async def test_own_records_are_known_among_others():
    seen = Latencies(Random(1))
    echo = Echo(seen)
    echo.due = {b"mine": 7.0, b"still under way": 7.4}
    await echo.read(Reader(), Watch())
    assert (seen.count, seen.max_ms) == (1, 500)
    assert list(echo.due) == [b"still under way"]


@pytest.mark.parametrize(
    "words", [("produce", "t", "--size", "15"), ("latency", "t", "--rate", "0"), ("consume",)]
)
def test_what_cannot_be_measured_is_refused(words, capsys):
    assert cli.run(["bench", *words]) == 64
    assert "Error" in capsys.readouterr().err
