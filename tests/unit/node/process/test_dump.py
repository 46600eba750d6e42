"""``milena dump``: shows what is on the disk, finds what is damaged, and touches nothing."""

import json
import os
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from milena.cli import load_command
from milena.commands.target import EXIT_MISSING_EXTRA
from milena.model.batch.header import HEADER_BYTES, ProducerStamp
from node.process.dump import dump
from tests.support.disk.log_model import NOW_MS, make_batch, stamped
from tests.support.disk.transactions import marker, transactional

FIRST, SECOND = "00000000000000000000.log", "00000000000000000004.log"


def batches(count, *, base_offset=0, **options):
    return [
        stamped(
            make_batch(2, **options),
            base_offset=base_offset + 2 * number,
            leader_epoch=3,
            append_time_ms=NOW_MS,
        )
        for number in range(count)
    ]


@pytest.fixture
def folder(tmp_path):
    """A replica of two segments; the second has room set aside."""
    (tmp_path / FIRST).write_bytes(b"".join(batches(2)))
    (tmp_path / SECOND).write_bytes(batches(1, base_offset=4)[0] + bytes(5000))
    (tmp_path / "meta").write_bytes(b"not looked at")
    return tmp_path


def run(*words):
    return CliRunner().invoke(dump, [str(word) for word in words])


def test_batches_of_kafka_clients_are_shown_with_their_records(tmp_path):
    (tmp_path / FIRST).write_bytes(b"".join(batches(2, kafka=2)))
    done = run(tmp_path, "--records")
    assert done.exit_code == 0, done.output
    assert done.output.count("bytes, kafka, snappy, leader epoch 3") == 2
    assert [json.loads(line)["offset"] for line in done.output.splitlines() if line[0] == "{"] == [
        0,
        1,
        2,
        3,
    ]
    shown = json.loads(run(tmp_path, "--json").output.splitlines()[0])
    assert (shown["format"], shown["codec"], shown["faults"]) == ("kafka", "snappy", [])


def test_a_folder_is_shown_segment_by_segment(folder):
    done = run(folder)
    assert done.exit_code == 0
    lines = done.output.splitlines()
    size = len(batches(1)[0])
    assert lines[0] == f"segment {folder / FIRST}: {2 * size} bytes"
    assert lines[1].startswith(
        f"byte 0: offsets 0-1, 2 records, {size} bytes, none, leader epoch 3"
    )
    assert lines[1].endswith(" ok")
    assert lines[2].startswith(f"byte {size}: offsets 2-3")
    assert lines[3] == f"end at byte {2 * size}"
    assert lines[4].startswith(f"segment {folder / SECOND}")
    assert lines[-1] == f"end at byte {size}, then 5000 zeros"


def test_transactions_and_their_ends_are_told(tmp_path):
    stored = [
        transactional(7, 2, (b"k", b"v")),
        marker(7, 2, 0, commit=1),
        transactional(7, 3, (b"k", b"v"), sequence=0),
        marker(7, 3, 2),
    ]
    content = b"".join(
        stamped(batch, base_offset=offset, leader_epoch=0, append_time_ms=NOW_MS)
        for offset, batch in enumerate(stored)
    )
    (tmp_path / FIRST).write_bytes(content)
    lines = run(tmp_path).output.splitlines()[1:5]
    assert "producer 7 epoch 2, transaction, crc" in lines[0]
    assert "transaction committed 0-0" in lines[1]
    assert "producer 7 epoch 3 sequences 0-0, transaction, crc" in lines[2]
    assert "transaction aborted from 2" in lines[3]
    rows = [json.loads(line) for line in run(tmp_path, "--json").output.splitlines()]
    found = [row["marker"] for row in rows if "is_transactional" in row]
    assert found == [None, "committed 0-0", None, "aborted from 2"]


def test_nothing_is_touched(folder):
    os.chmod(folder, 0o555)
    for name in (FIRST, SECOND):
        os.chmod(folder / name, 0o444)
    before = {e.name: (e.stat().st_mtime_ns, e.stat().st_size) for e in os.scandir(folder)}
    assert run(folder, "--records").exit_code == 0
    assert {e.name: (e.stat().st_mtime_ns, e.stat().st_size) for e in os.scandir(folder)} == before
    os.chmod(folder, 0o755)


def test_records_are_shown_as_consume_shows_them(folder):
    done = run(folder / FIRST, "--records", "--offset", "3")
    found = [json.loads(line) for line in done.output.splitlines() if line.startswith("{")]
    assert [record["offset"] for record in found] == [2, 3]
    assert set(found[0]) >= {"offset", "timestamp", "key", "value"}


def test_programs_get_a_batch_a_line(folder):
    done = run(folder, "--json", "--batches", "2")
    found = [json.loads(line) for line in done.output.splitlines()]
    assert [(row["base_offset"], row["last_offset"], row["faults"]) for row in found] == [
        (0, 1, []),
        (2, 3, []),
    ]


def test_a_producer_is_shown(tmp_path):
    path = tmp_path / FIRST
    path.write_bytes(batches(1, producer=ProducerStamp(7, 1, 40))[0])
    assert "producer 7 epoch 1 sequences 40-41" in run(path).output


def test_a_flipped_bit_in_a_body_is_found_and_what_follows_is_shown(folder):
    data = bytearray((folder / FIRST).read_bytes())
    data[HEADER_BYTES + 1] ^= 1
    (folder / FIRST).write_bytes(data)
    done = run(folder)
    assert done.exit_code == 1
    lines = done.output.splitlines()
    assert lines[1].endswith("DAMAGED: the checksum of the batch does not match")
    assert lines[2].endswith(" ok")


def test_a_header_that_is_none_ends_the_segment(folder):
    (folder / FIRST).write_bytes(batches(1)[0] + b"x" * 300)
    done = run(folder)
    assert done.exit_code == 1
    assert "damaged: no batch at byte" in done.output
    assert "300 bytes not understood" in done.output


def test_a_batch_that_is_cut_off_at_the_end_of_a_log_is_what_a_crash_leaves(tmp_path):
    path = tmp_path / FIRST
    path.write_bytes(b"".join(batches(2))[:-1])
    done = run(path)
    assert done.exit_code == 1
    assert "bytes are left" in done.output


def test_offsets_that_do_not_follow_are_a_fault(folder):
    (folder / SECOND).write_bytes(batches(1, base_offset=6)[0])
    done = run(folder)
    assert done.exit_code == 1
    assert "DAMAGED: offset 4 was to come" in done.output
    (folder / SECOND).rename(folder / SECOND.replace("4", "6"))
    done = run(folder)
    assert "damaged: begins at offset 6, and 4 was to come" in done.output


def test_a_folder_without_segments_says_where_they_are(tmp_path):
    done = run(tmp_path)
    assert done.exit_code == 1
    assert "replicas are in DATA_DIR/topics/TOPIC_ID/PARTITION" in done.output


def test_it_is_announced_as_a_command_of_the_server(monkeypatch):
    project = tomllib.loads((Path(__file__).parents[4] / "node" / "pyproject.toml").read_text())
    value = project["project"]["entry-points"]["milena.commands"]["dump"]
    point = EntryPoint(name="dump", value=value, group="milena.commands")
    assert load_command(point) is dump

    def missing(self):
        raise ModuleNotFoundError("No module named 'orjson'", name="orjson")

    monkeypatch.setattr(EntryPoint, "load", missing)
    stand_in = load_command(point)
    with pytest.raises(click.ClickException, match="dump needs the server") as caught:
        stand_in.main(["x"], standalone_mode=False)
    assert caught.value.exit_code == EXIT_MISSING_EXTRA


def test_every_option_is_told_of():
    page = (Path(__file__).parents[4] / "docs" / "command-line.md").read_text()
    section = page.partition("\n## dump\n")[2].partition("\n## ")[0]
    for parameter in dump.params:
        if isinstance(parameter, click.Option):
            assert f"`{parameter.opts[0]}" in section
