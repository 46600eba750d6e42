"""What the stage of the tail looks at on the disk, and the rows that its turns are held against."""

import os

from loadtest.bench.clients.cold_readers import ColdLoad, make_cold
from loadtest.bench.measuring.samples import Quantity, Rounds, Sample
from loadtest.bench.rows import reading as reading_rows
from loadtest.bench.rows.table import TARGETS
from loadtest.bench.servers.subject import fetch_ask
from loadtest.bench.stages.tail import stored_bytes
from loadtest.bench.targets import TargetVerdict, judge


def test_only_segments_count_as_stored(tmp_path):
    assert stored_bytes(tmp_path / "not there yet") == 0
    (tmp_path / "0.log").write_bytes(b"x" * 10)
    (tmp_path / "9.log").write_bytes(b"x" * 5)
    (tmp_path / "0.index").write_bytes(b"x" * 100)
    assert stored_bytes(tmp_path) == 15


def test_a_log_that_was_made_cold_has_lost_nothing(tmp_path):
    path = tmp_path / "0.log"
    path.write_bytes(b"x" * 10_000)
    make_cold(tmp_path)
    assert path.read_bytes() == b"x" * 10_000


def test_a_cold_reader_drops_the_pages_before_every_request(tmp_path, monkeypatch):
    dropped: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *what: dropped.append(what))
    ask = fetch_ask("http://a:1", "old", [0, 5], max_bytes=9)
    load = ColdLoad("http://a:1", ask, [3, 4])
    requests = [load.next_request() for _ in range(3)]
    assert dropped == [(fd, 0, 0, os.POSIX_FADV_DONTNEED) for _ in range(3) for fd in (3, 4)]
    assert [b"offset=5&" in request for request in requests] == [True, False, True]


def test_a_tail_that_is_held_up_is_below_the_floor():
    rounds = Rounds()
    for name, p50, p99 in ((reading_rows.TAIL_ACK, 4.0, 10.0), (reading_rows.COLD_ACK, 13.0, 40.0)):
        rounds.note(name, Sample(figures={Quantity.P50: p50, Quantity.P99: p99}))
    rows = {t.name: judge(t, rounds, is_disk_real=True) for t in TARGETS if t.stage == "tail"}
    assert rows["cold-ack"].verdict is TargetVerdict.BELOW
    assert rows["cold-ack-p99"].verdict is TargetVerdict.FLOOR
    assert rows["catch-up-ack"].verdict is TargetVerdict.ABSENT
