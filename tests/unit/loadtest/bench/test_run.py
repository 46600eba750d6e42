"""The whole program on its cheapest rows, with real nodes."""

import json

import pytest
from click.testing import CliRunner

from loadtest.bench.__main__ import main


def test_the_rows_can_be_listed():
    done = CliRunner().invoke(main, ["--list"])
    assert done.exit_code == 0
    assert "json-all" in done.output


def test_an_unknown_row_is_refused():
    done = CliRunner().invoke(main, ["--rows", "fetch,nonsense"])
    assert done.exit_code == 2
    assert "no row or stage is called nonsense" in done.output


@pytest.mark.integration
@pytest.mark.parametrize(
    ("row", "stage"),
    [("json-all", "requests"), ("kafka-one-host", "kafka")],
    ids=[
        "loadtest.bench.stages.produce",
        "loadtest.bench.stages.kafka, loadtest.bench.stages.kafka_peers",
    ],
)
def test_a_short_run_of_one_row_leaves_a_table_a_record_and_a_picture(tmp_path, row, stage):
    words = ["--rows", row, "--rounds", "1", "--seconds", "0.1"]
    places = ["--directory", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(main, [*words, *places])
    # How fast it is depends on who else is here; that it was measured does not.
    assert done.exit_code in {0, 1}, done.output
    record = json.loads((tmp_path / "out" / "bench.json").read_text())
    (found,) = record["rows"]
    assert found["value"]["count"] == 1
    assert found["verdict"] in {"ambition", "floor", "below"}
    missing = {
        name for name, why in record["stages"][stage]["failures"].items() if "install" in why
    }
    assert record["stages"][stage]["failures"].keys() == missing
    assert (tmp_path / "out" / "bench.txt").read_text().splitlines()[-1].startswith(stage)
    assert (tmp_path / "out" / "bench.png").stat().st_size > 0
    assert not list((tmp_path / "data").iterdir())
