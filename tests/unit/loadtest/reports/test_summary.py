"""The report says what was found, for people, for programs and as pictures."""

import json
from pathlib import Path

import pytest

from loadtest.judging.ledger import Failed, Incident, Spent
from loadtest.judging.plants import Plant
from loadtest.reports.plots import GAPS, OVERVIEW, draw
from loadtest.reports.summary import Summary
from loadtest.reports.timeline import timeline_of
from loadtest.settings import Settings, locust_command
from tests.support.pictures import cut_off, saved_figures
from tests.support.spark.load_runs import LoadRun

PNG = b"\x89PNG\r\n"


def a_run():
    run = LoadRun()
    for _ in range(5):
        run.write(2, 0, seconds=0.2)
        run.write(3, 1, seconds=0.1, count=10, endpoint="produce batch binary")
    run.events.append(Incident(at_s=0.5, text="killed node 1, a leader, with -9"))
    run.events.append(
        Failed(at_s=0.5, endpoint="fetch pages", node="http://n", reason="HTTP 503 a|b")
    )
    run.poll(1, 1, run.logs[1], is_seek=True)
    return run


def summary_of(run, logs=None, planted=""):
    return Summary(
        settings={"users": 3, "acks": "all"},
        verdict=run.judged(logs),
        timeline=timeline_of(run.events),
        planted=planted,
    )


def test_a_good_run_says_so():
    summary = summary_of(a_run())
    assert summary.headline == (
        "All 55 acknowledged records are there, once, in order, as they were written."
    )
    text = "\n".join(summary.lines())
    assert "killed node 1, a leader, with -9" in text
    assert "longest gap after the kill" in text
    assert "FAULT" not in text
    told = json.loads(summary.as_json())
    assert told["is_good"]
    assert told["verdict"]["found"]["lost-write"] == 0
    assert told["gap_after_kill_s"] == pytest.approx(0.4, abs=0.2)


def test_a_fault_is_in_every_form_of_the_report():
    run = a_run()
    summary = summary_of(run, {0: run.logs[0][:-1], 1: run.logs[1]}, planted="a record was lost")
    assert summary.headline == "FAILED: 1 faults among 55 acknowledged records."
    assert any(line.startswith("  FAULT lost-write: 1, as 2:4") for line in summary.lines())
    markdown = summary.markdown(["overview.png"])
    assert "| lost-write | 1 |" in markdown
    assert "- 2:4, acknowledged at p0@4, is not there" in markdown
    assert "| planted | a record was lost |" in markdown
    assert not json.loads(summary.as_json())["is_good"]


@pytest.mark.parametrize(("cpu_s", "is_warned"), [(7.9, False), (8.1, True)])
def test_a_client_that_takes_most_of_its_cores_is_what_was_measured(cpu_s, is_warned):
    run = a_run()
    run.events += [Spent(since_s=2.0, at_s=12.0, cpu_s=cpu_s)] * 2
    summary = summary_of(run)
    text, markdown = "\n".join(summary.lines()), summary.markdown([])
    assert f"{cpu_s / 5:.2f} cores, processes: 2" in text
    assert f"| users' CPU | {cpu_s / 5:.2f} cores, processes: 2 |" in markdown
    for form in (text, markdown, json.loads(summary.as_json())["warning"]):
        assert ("users' processes took 81% of their cores" in form) == is_warned
    assert ("--processes" in text) == is_warned


def test_ledgers_of_before_do_not_say_what_users_took():
    summary = summary_of(a_run())
    assert "CPU" not in "\n".join(summary.lines())
    assert json.loads(summary.as_json())["cores_of_users"] == []


def test_a_loss_that_nobody_promised_to_prevent_is_named():
    run = LoadRun(acks="1")
    for _ in range(5):
        run.write(2, 0)
    summary = summary_of(run, {0: run.logs[0][:-2], 1: []})
    assert summary.headline == (
        "5 records were acknowledged; no promise was broken (2 lost-unsafe)."
    )


def test_what_could_not_be_judged_is_no_success():
    run = a_run()
    summary = summary_of(run, {0: run.logs[0]})
    assert summary.headline == "NOT JUDGED: partition 1: not read to its end."
    assert "Not judged:" in summary.markdown([])
    assert not json.loads(summary.as_json())["is_good"]
    empty = summary_of(LoadRun())
    assert empty.headline.startswith("NOT JUDGED: nothing was acknowledged")


def test_tables_of_markdown_have_as_many_cells_in_every_row():
    tables = [
        block.splitlines()
        for block in summary_of(a_run()).markdown(["a.png"]).split("\n\n")
        if block.startswith("|")
    ]
    assert len(tables) == 6
    for table in tables:
        assert len({line.count("|") for line in table}) == 1, table[0]


def test_pictures_are_drawn(tmp_path):
    assert draw(timeline_of(a_run().events), tmp_path, title="a run") == [OVERVIEW, GAPS]
    for name in (OVERVIEW, GAPS):
        assert (tmp_path / name).read_bytes().startswith(PNG)


def test_nothing_is_cut_off_in_a_picture_with_a_long_title(tmp_path, monkeypatch):
    figures = saved_figures(monkeypatch)
    urls = ", ".join(f"http://milena-{n}.milena.logs.svc.cluster.local:8082" for n in range(5))
    draw(timeline_of(a_run().events), tmp_path, title=f"a run\n{urls}, acks=all")
    assert [cut_off(figure) for figure in figures] == [[], []]


def test_a_run_in_which_nothing_happened_can_be_drawn(tmp_path):
    draw(timeline_of(LoadRun().events), tmp_path, title="nothing")
    assert (tmp_path / OVERVIEW).exists()


def test_each_value_of_a_picture_is_seen_without_a_neighbour(tmp_path, monkeypatch):
    """A line needs two points: the value of a run of a second, or between two gaps, would not be there."""
    figures = saved_figures(monkeypatch)
    run = LoadRun()
    run.write(2, 0, seconds=0.2)
    draw(timeline_of(run.events), tmp_path, title="one second")
    curves = [line for axis in figures[0].axes for line in axis.lines]
    assert curves
    assert {line.get_marker() for line in curves} == {"."}


def settings(**changed):
    given = {
        "urls": (), "topic": "t", "partitions": 6, "replication_factor": 3, "run_time_s": 90.0,
        "users": 7, "spawn_rate": 2.5, "acks": "1", "record_bytes": 10, "batch_records": 20,
        "keys": 0, "think_ms": 1.5, "seed": 4, "is_kill": True, "down_s": 3.0, "plant": Plant.LOSS,
        "is_web": False, "web_port": 8089, "directory": Path("out"), "judged": None,
        "locust_options": ("JsonOne",),
    }  # fmt: skip
    return Settings(**{**given, **changed})


def command_of(asked):
    return locust_command(asked, ("http://a", "http://b"), python="py", locustfile=Path("l.py"))


def test_every_knob_reaches_locust():
    command = " ".join(command_of(settings()))
    for words in (
        "py -m locust --locustfile l.py --host http://a --nodes http://b --topic t",
        "--ledger out/ledger --acks 1 --record-bytes 10 --keys 0 --batch-records 20",
        "--think-ms 1.5 --seed 4 --users 7 --spawn-rate 2.5",
        "--headless --only-summary --run-time 90s --html out/locust.html --csv out/locust",
    ):
        assert words in command
    assert command.endswith(" JsonOne")


def test_the_web_page_is_on_this_machine_alone():
    command = " ".join(command_of(settings(is_web=True, web_port=99)))
    assert "--web-host 127.0.0.1 --web-port 99" in command
    assert "--headless" not in command


def test_the_report_names_what_was_asked_for():
    told = settings().described()
    assert told["plant"] == "loss"
    assert told["urls"] == "three nodes on this machine"
    assert settings(urls=("a", "b"), plant=None).described()["urls"] == "a, b"
