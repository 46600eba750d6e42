"""The jobs on events of topics, held against plain Python: run by run, with events that come late, and killed."""

import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from examples import alerts, demand_prices, sessions, site_stats
from examples.market.market_events import market_events
from examples.market_sample import market_sample
from examples.weblog.visits import sessions_of
from spark_ext.jobs.running.session import prepared
from tests.support.clusters.live_cluster import BASE_TIMESTAMP_MS, create_topic
from tests.support.disk.stored_topics import put
from tests.support.spark.access_lines import Tally, read_line, sample_lines
from tests.support.spark.committed_rows import values_in
from tests.support.spark.event_windows import Sessions, Windows

pytestmark = pytest.mark.integration

BASE = datetime.fromtimestamp(BASE_TIMESTAMP_MS / 1000, UTC)
DEADLINE_S = 300
LATE_S = 600


def rows_of(cluster, topic):
    """What is in the topic, as the job wrote it."""
    return [json.loads(value) for value in values_in(cluster.node(1).url, topic)]


def instant(text):
    return datetime.fromisoformat(text)


def printed(capsys):
    return json.loads(capsys.readouterr().out)


# -- alerts ------------------------------------------------------------------------------------------

ALERT_WINDOW_S = 3_600
RATE, REQUESTS = 0.05, 20


def requests():
    return Windows(
        window_s=ALERT_WINDOW_S,
        late_s=LATE_S,
        time_of=lambda event: event.time,
        key_of=lambda event: "site",
    )


def alerts_in(windows):
    """Window, requests and errors of each alert."""
    found = []
    for (start, _), events in windows.items():
        errors = sum(event.status >= 400 for event in events)
        if len(events) >= REQUESTS and errors > 0 and errors / len(events) >= RATE:
            found.append((start, len(events), errors))
    return sorted(found)


def written_alerts(rows):
    for row in rows:
        assert instant(row["window_end"]) - instant(row["window_start"]) == timedelta(
            seconds=ALERT_WINDOW_S
        )
        assert row["rate"] == pytest.approx(row["errors"] / row["requests"])
        assert row["path"] is None
    return sorted((instant(r["window_start"]), r["requests"], r["errors"]) for r in rows)


def alert_words(cluster, topic, to, *more):
    words = ["--url", cluster.node(1).url, "--topic", topic, "--to", to, "--window", "1h"]
    words += ["--late", f"{LATE_S}s", "--rate", str(RATE), "--min-requests", str(REQUESTS)]
    return [*words, *more]


def test_alerts_of_a_stream_are_those_of_its_closed_windows(cluster, spark, tmp_path, capsys):
    """In two runs, the second of which gets requests of windows that are over."""
    node = cluster.node(1)
    topic, to = create_topic(node, "alerts-from", partitions=3), create_topic(node, "alerts-to")
    lines = [line for line in sample_lines() if b"\x00" not in line]
    ordered = sorted((e.time, line) for line in lines if (e := read_line(line)) is not None)
    first, second = ordered[:6000], ordered[6000:]
    # Of the first day of four.
    second[100:100] = ordered[:50]
    expected = requests()
    checkpoint = str(tmp_path / "checkpoint")
    for part in (first, second):
        unreadable = [b"no line"] * 3
        for partition in range(3):
            put(node, topic, partition, [line for _, line in part[partition::3]] + unreadable)
        expected.run(read_line(line) for _, line in part)
        words = alert_words(cluster, topic, to, "--checkpoint", checkpoint, "--once", "--json")
        assert alerts.run(words) == 0
        assert written_alerts(rows_of(cluster, to)) == alerts_in(expected.closed)
        report = printed(capsys)
        assert report["records"] == len(part) + 9
        assert report["unreadable"] == 9
        assert (report["late"] > 0) == (part is second)
    assert len(expected.late) == 50
    assert len(alerts_in(expected.closed)) == 5


def test_alerts_of_a_table_are_those_of_all_windows(cluster, spark, tmp_path, capsys):
    node = cluster.node(1)
    topic = create_topic(node, "alerts-table", partitions=2)
    lines = sample_lines()[:3000]
    for partition in range(2):
        put(node, topic, partition, lines[partition::2])
    words = ["--url", node.url, "--topic", topic, "--output", str(tmp_path / "out"), "--batch"]
    words += ["--window", "1h", "--rate", str(RATE), "--min-requests", str(REQUESTS), "--json"]
    assert alerts.run(words) == 0
    expected = requests()
    expected.run(event for line in lines if (event := read_line(line)) is not None)
    found = prepared(spark).read.parquet(str(tmp_path / "out")).collect()
    wanted = alerts_in({**expected.opened, **expected.closed})
    got = sorted((r.window_start.astimezone(UTC), r.requests, r.errors) for r in found)
    assert got == wanted
    assert printed(capsys)["written"] == len(wanted) > 0


# -- sessions ----------------------------------------------------------------------------------------

GAP_S = 1_800


def visits():
    return Sessions(
        gap_s=GAP_S,
        late_s=LATE_S,
        time_of=lambda event: event.time,
        key_of=lambda event: event.client,
    )


def visits_in(sessions):
    """Client, first and last time, requests, errors, bytes, first and last path of each session."""
    found = []
    for client, events in sessions:
        paths = sorted((e.time, e.path) for e in events if e.path is not None)
        errors = sum(e.status >= 400 for e in events)
        size = sum(e.size_bytes for e in events)
        ends = (paths[0][1], paths[-1][1]) if paths else (None, None)
        times = (events[0].time, events[-1].time)
        found.append((client, *times, len(events), errors, size, *ends))
    return sorted(found, key=str)


def written_visits(rows):
    found = []
    for row in rows:
        start, end = instant(row["session_start"]), instant(row["session_end"])
        assert row["duration_s"] == (end - start).total_seconds()
        counts = (row["requests"], row["errors"], row["bytes"])
        found.append((row["client"], start, end, *counts, row["entry_path"], row["exit_path"]))
    return sorted(found, key=str)


def visit_words(cluster, topic, to, *more):
    words = ["--url", cluster.node(1).url, "--topic", topic, "--to", to]
    return [*words, "--gap", "30m", "--late", f"{LATE_S}s", *more]


def test_sessions_of_a_stream_are_those_that_are_over(cluster, spark, tmp_path, capsys):
    """In two runs, the second of which goes on with sessions of the first, and gets requests of some that are over."""
    node = cluster.node(1)
    topic, to = create_topic(node, "visits", partitions=3), create_topic(node, "sessions")
    ordered = sorted((e.time, line) for line in sample_lines() if (e := read_line(line)))
    first, second = ordered[:5000], ordered[5000:]
    second[100:100] = ordered[:50]
    expected = visits()
    for part in (first, second):
        for partition in range(3):
            put(node, topic, partition, [line for _, line in part[partition::3]])
        expected.run(read_line(line) for _, line in part)
        words = visit_words(cluster, topic, to, "--checkpoint", str(tmp_path), "--once", "--json")
        assert sessions.run(words) == 0
        assert written_visits(rows_of(cluster, to)) == visits_in(expected.closed)
        assert (printed(capsys)["late"] > 0) == (part is second)
    assert len(expected.late) == 50
    assert len(expected.closed) > 1000
    assert expected.opened


@pytest.mark.parametrize(("pause_s", "counts"), [(59, [2]), (60, [2]), (61, [1, 1])])
def test_a_pause_as_long_as_the_gap_is_within_a_session(spark, pause_s, counts):
    times = [BASE, BASE + timedelta(seconds=pause_s)]
    schema = "topic string, client string, time timestamp, path string, status int, bytes bigint"
    events = spark.createDataFrame([("t", "c", time, "/", 200, 1) for time in times], schema)
    assert [row.requests for row in sessions_of(events, gap_s=60).collect()] == counts


# -- demand and prices -------------------------------------------------------------------------------

PRICE_WINDOW_S = 60
PERCENT_MAX = 150


def market(lines):
    return [json.loads(line) for line in lines]


def offers(late_s=LATE_S):
    return Windows(
        window_s=PRICE_WINDOW_S,
        late_s=late_s,
        time_of=lambda event: instant(event["time"]),
        key_of=lambda event: event["area"],
    )


def prices_in(windows):
    """Area, window, demand, supply and percent of each price."""
    found = []
    for (start, area), events in windows.items():
        demand = sum(e["count"] for e in events if e["kind"] == "demand")
        supply = sum(e["count"] for e in events if e["kind"] == "supply")
        if supply == 0:
            percent = PERCENT_MAX if demand else 0
        else:
            percent = min(PERCENT_MAX, max(0, (demand - supply) * 100 // supply))
        found.append((area, start, demand, supply, percent))
    return sorted(found)


def written_prices(rows):
    return sorted(
        (r["area"], instant(r["window_start"]), r["demand"], r["supply"], r["surcharge_percent"])
        for r in rows
    )


def price_words(cluster, topic, to, *more):
    words = ["--url", cluster.node(1).url, "--topic", topic, "--to", to, "--window", "1m"]
    return [*words, "--late", f"{LATE_S}s", "--max-surcharge", str(PERCENT_MAX), *more]


def put_events(node, topic, lines, partitions):
    for partition in range(partitions):
        values = [line.encode() for line in lines[partition::partitions]]
        put(node, topic, partition, values, timestamp_ms=BASE_TIMESTAMP_MS)


def test_prices_of_a_stream_are_those_of_its_closed_windows(cluster, spark, tmp_path, capsys):
    node = cluster.node(1)
    topic, to = create_topic(node, "rides", partitions=2), create_topic(node, "prices")
    start = BASE - timedelta(hours=2)
    lines = list(market_sample(9000, seed=3, start=start, per_second=2))
    expected = offers()
    checkpoint = str(tmp_path / "checkpoint")
    for part in (lines[:4000], lines[4000:]):
        put_events(node, topic, part, 2)
        expected.run(market(part))
        words = price_words(cluster, topic, to, "--checkpoint", checkpoint, "--once", "--json")
        assert demand_prices.run(words) == 0
        assert written_prices(rows_of(cluster, to)) == prices_in(expected.closed)
        report = printed(capsys)
        assert 0 < report["delay_mean_ms"] <= report["delay_max_ms"]
    assert len(expected.late) > 10
    percents = {percent for *_, percent in prices_in(expected.closed)}
    assert {0, PERCENT_MAX} < percents


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"kind":"demand","area":"a","time":"2026-01-31T08:15:00Z"}', None),
        (b'{"kind":"supply","area":"a","time":"2026-01-31T08:15:00.5+01:00","count":7}', None),
        (b'{"kind":"supply","area":"a","time":"2026-01-31T08:15:00Z","count":0}', "no such count"),
        (b'{"kind":"supply","area":"a","time":"2026-01-31T08:15:00Z","count":-1}', "no such count"),
        (
            b'{"kind":"supply","area":"a","time":"2026-01-31T08:15:00Z","count":"x"}',
            "no such count",
        ),
        (b'{"kind":"supply","area":"","time":"2026-01-31T08:15:00Z"}', "no area"),
        (b'{"kind":"offer","area":"a","time":"2026-01-31T08:15:00Z"}', "neither demand nor supply"),
        (b'{"kind":"supply","area":"a","time":"2026"}', "no such time"),
        (b'{"kind":"supply","area":"a","time":"2026-13-31T08:15:00Z"}', "no such time"),
        (b'{"kind":"supply","area":"a","time":12}', "no such time"),
        (b"[]", "neither demand nor supply"),
        (b"\xff\x00", "neither demand nor supply"),
        (None, "no value"),
    ],
)
def test_what_is_no_event_has_a_reason(spark, value, reason):
    records = spark.createDataFrame([(value,)], "value binary")
    assert [row.reason for row in market_events(records).collect()] == [reason]


def test_an_event_that_claims_to_be_of_next_year_closes_nothing(cluster, spark, tmp_path, capsys):
    node = cluster.node(1)
    topic, to = create_topic(node, "rides-ahead"), create_topic(node, "prices-ahead")
    event = {"kind": "demand", "area": "a", "time": (BASE + timedelta(days=365)).isoformat()}
    put_events(node, topic, [json.dumps(event)], 1)
    words = price_words(cluster, topic, to, "--checkpoint", str(tmp_path), "--once", "--json")
    assert demand_prices.run(words) == 0
    assert rows_of(cluster, to) == []
    report = printed(capsys)
    assert (report["records"], report["unreadable"], report["watermark"]) == (1, 1, None)


def test_the_same_seed_makes_the_same_events():
    def made(seed):
        return list(market_sample(50, seed=seed, start=BASE, per_second=5))

    assert made(1) == made(1) != made(2)


# -- hours of a site ---------------------------------------------------------------------------------

HOUR_S, TOP = 3_600, 3


def hours():
    return Windows(
        window_s=HOUR_S,
        late_s=LATE_S,
        time_of=lambda event: event.time,
        key_of=lambda event: "all",
    )


def hours_in(windows):
    """Hour, requests, bytes, clients, answers by class, errors and rankings of each window."""
    found = []
    for (start, _), events in windows.items():
        tally = Tally()
        for event in events:
            tally.add(event)
        classes = tuple(tally.by_class[digit] for digit in range(1, 6))
        counts = (tally.requests, tally.size_bytes, len(tally.clients), *classes, sum(classes[3:]))
        found.append(
            (start, *counts, tally.top(tally.paths, TOP), tally.top(tally.error_paths, TOP))
        )
    return sorted(found)


def written_hours(rows):
    names = ["requests", "bytes", "clients", *(f"status_{d}xx" for d in range(1, 6)), "errors"]
    return sorted(
        (
            instant(row["hour"]),
            *(row[name] for name in names),
            tuple((p["path"], p["requests"]) for p in row["top_paths"]),
            tuple((p["path"], p["errors"]) for p in row["top_error_paths"]),
        )
        for row in rows
    )


def hour_words(cluster, topic, to, *more):
    words = ["--url", cluster.node(1).url, "--topic", topic, "--to", to, "--top", str(TOP)]
    return [*words, "--late", f"{LATE_S}s", *more]


def test_hours_of_a_stream_are_those_that_are_over(cluster, spark, tmp_path, capsys):
    """In three runs: the second goes on with an hour of the first, the third gets requests of hours that are over."""
    node = cluster.node(1)
    topic, to = create_topic(node, "hours-from", partitions=3), create_topic(node, "hours-to")
    ordered = sorted((e.time, line) for line in sample_lines() if (e := read_line(line)))
    parts = [ordered[:3000], ordered[3000:6000], ordered[6000:]]
    parts[2][100:100] = ordered[:50]
    expected = hours()
    for part in parts:
        for partition in range(3):
            put(node, topic, partition, [line for _, line in part[partition::3]] + [b"no line"])
        expected.run(read_line(line) for _, line in part)
        words = hour_words(cluster, topic, to, "--checkpoint", str(tmp_path), "--once", "--json")
        assert site_stats.run(words) == 0
        assert written_hours(rows_of(cluster, to)) == hours_in(expected.closed)
        report = printed(capsys)
        assert (report["records"], report["unreadable"]) == (len(part) + 3, 3)
        assert (report["late"] > 0) == (part is parts[2])
    assert len(expected.late) == 50
    assert len(expected.closed) > 70


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--archive", "a", "--checkpoint", "c"], "an archive is none"),
        (["--topic", "t", "--to", "x"], "say --checkpoint, too"),
        (["--topic", "t", "--once"], "say --checkpoint, too"),
        (["--topic", "t", "--checkpoint", "c"], "--to a topic, or --output"),
    ],
)
def test_options_of_a_stream_of_hours_that_make_no_sense_are_refused(words, told, capsys):
    assert site_stats.run(words) == 64
    assert told in capsys.readouterr().err


# -- what is wrong is told before anything is written ----------------------------------------------------


@pytest.mark.parametrize(
    ("more", "code", "told"),
    [
        (["--to", "x", "--output", "y", "--batch"], 64, "--to a topic, or --output"),
        (["--to", "x"], 64, "--checkpoint for a stream, or --batch"),
        (["--to", "x", "--batch", "--once"], 64, "--once is for streams"),
        (["--to", "t", "--batch"], 64, "cannot be read and written"),
        (["--to", "x", "--batch", "--window", "0s"], 64, "span of time"),
        (["--to", "x", "--batch", "--late", "soon"], 64, "span of time"),
    ],
)
def test_options_that_make_no_sense_are_refused(more, code, told, capsys):
    assert alerts.run(["--topic", "t", *more]) == code
    assert told in capsys.readouterr().err


def test_a_topic_that_is_not_there_ends_it_before_spark_begins(cluster, tmp_path, capsys):
    to = create_topic(cluster.node(1), "alerts-there")
    words = alert_words(cluster, "no-such-topic", to, "--checkpoint", str(tmp_path / "c"))
    assert alerts.run(words) == 4
    assert "no-such-topic" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


# -- killed ------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["alerts", "demand_prices", "sessions", "site_stats"])
def test_a_job_that_is_killed_writes_each_row_once(seed, name, cluster, tmp_path):
    """Three times, with its whole Spark, at a moment of the seed; then it runs to its end."""
    chance = Random(f"{name}-{seed}")
    node = cluster.node(1)
    topic = create_topic(node, f"killed-{name}-{seed}", partitions=2)
    to = create_topic(node, f"killed-{name}-{seed}-to")
    if name != "demand_prices":
        lines = [line for line in sample_lines() if read_line(line) is not None]
        for partition in range(2):
            put(node, topic, partition, lines[partition::2])
        windows = {"alerts": requests, "sessions": visits, "site_stats": hours}[name]()
        windows.run(map(read_line, lines))
        if name == "alerts":
            words = alert_words(cluster, topic, to)
            wanted, written = alerts_in(windows.closed), written_alerts
        elif name == "site_stats":
            words = hour_words(cluster, topic, to)
            wanted, written = hours_in(windows.closed), written_hours
        else:
            words = visit_words(cluster, topic, to)
            wanted, written = visits_in(windows.closed), written_visits
    else:
        made = list(market_sample(5000, seed=seed, start=BASE - timedelta(hours=1), per_second=2))
        put_events(node, topic, made, 2)
        windows, words = offers(), price_words(cluster, topic, to)
        windows.run(market(made))
        wanted, written = prices_in(windows.closed), written_prices

    command = [sys.executable, "-m", f"examples.{name}", *words]
    command += ["--checkpoint", str(tmp_path / "checkpoint"), "--once", "--json"]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    log = tmp_path / "log"

    def start():
        with log.open("ab") as out:
            return subprocess.Popen(
                command, stdout=out, stderr=out, env=environment, start_new_session=True
            )

    offsets = tmp_path / "checkpoint" / "offsets"
    for _ in range(3):
        job = start()
        deadline_s = time.monotonic() + DEADLINE_S
        while job.poll() is None and not (offsets.exists() and list(offsets.iterdir())):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 12))
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    last = start()
    assert last.wait(DEADLINE_S) == 0, log.read_text()[-3000:]
    assert written(rows_of(cluster, to)) == wanted
