"""The page on the record batch: its program and its tables are true."""

import re
import runpy
from pathlib import Path

import pytest

from milena.model.batch.client_checks import validate_client_batch
from milena.model.batch.decode import decode_columns
from milena.model.batch.encode import encode_batch, encode_filler, encode_marker, rewrite_batch
from milena.model.batch.header import HEADER, HEADER_BYTES, Marker, decode_header
from milena.model.columns import RecordColumns
from milena.model.types import Codec

PAGE = (Path(__file__).parents[4] / "docs" / "record-batch.md").read_text(encoding="utf-8")
FAR_MS = 1 << 50


@pytest.fixture
def program(tmp_path):
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "program.py"
    path.write_text(source, encoding="utf-8")
    return runpy.run_path(str(path), run_name="page")


def test_a_batch_of_the_program_is_taken(program):
    batch = program["encode"]([(b"u1", b"3"), (None, None)])
    header = validate_client_batch(batch, bytes_max=1_000, now_ms=FAR_MS)
    columns = decode_columns(batch, header)
    assert columns.keys == [b"u1", None]
    assert columns.values == [b"3", None]


def test_the_program_reads_what_a_log_holds(program):
    columns = RecordColumns(None, None, [b"a", b"b", b"c"], [b"1", b"2", None], None)
    whole = encode_batch(columns, base_timestamp_ms=1)
    kept = RecordColumns([0, 2], None, [b"a", b"c"], [b"1", None], None)
    marker = encode_marker(Marker(True, 0, 3), producer_id=7, producer_epoch=0, timestamp_ms=1)
    filler = encode_filler(
        base_offset=3, last_offset=9, leader_epoch=0, append_time_ms=1, timestamp_ms=1
    )
    compacted = rewrite_batch(decode_header(whole), kept)
    found = program["decode"](whole + marker + filler + compacted)
    assert found == [
        (0, b"a", b"1"),
        (1, b"b", b"2"),
        (2, b"c", None),
        (0, b"a", b"1"),
        (2, b"c", None),
    ]


def test_the_table_is_the_header():
    rows = re.findall(r"^\| (\d+) \| (\d+) \| `\w+` \|", PAGE, re.MULTILINE)
    end = 0
    for offset, size in rows:
        assert int(offset) == end
        end += int(size)
    assert end == HEADER.size == HEADER_BYTES


def test_every_codec_is_named():
    (row,) = re.findall(r"^\| 0.2 \| (.*) \|$", PAGE, re.MULTILINE)
    assert [int(number) for number in re.findall(r"\b(\d) \w", row)] == sorted(Codec)
