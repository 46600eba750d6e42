"""A ledger gives back what was noted, whatever became of the process that wrote it."""

import os

import pytest

from loadtest.judging.ledger import (
    Failed,
    Incident,
    LedgerError,
    LedgerWriter,
    Opened,
    Polled,
    Sent,
    Settled,
    Spent,
    Stopping,
    decode_payload,
    encode_frame,
    is_complete,
    ledger_files,
    read_all,
    read_ledger,
)
from loadtest.records.receipts import Fate

EVENTS = [
    Opened(at_s=0.5, topic="t", acks="all", starts={0: 7, 5: 0}),
    Sent(at_s=1.0, writer=1 << 51, first=0, endpoint="produce one json", fingerprints=b"12345678"),
    Failed(at_s=1.5, endpoint="produce one json", node="http://n", reason="HTTP 503 ☹"),
    Settled(
        at_s=2.0,
        sent_s=1.0,
        writer=1 << 51,
        first=0,
        count=1,
        endpoint="produce one json",
        fate=Fate.ACKNOWLEDGED,
        value_bytes=100,
        partitions=(5,),
        offsets=(1 << 40,),
    ),
    Polled(
        at_s=3.0,
        sent_s=2.0,
        reader=9,
        endpoint="fetch pages",
        partition=5,
        asked=0,
        is_seek=True,
        value_bytes=3,
        offsets=(0, 1),
        fingerprints=b"12345678abcdefgh",
    ),
    Incident(at_s=4.0, text="killed node 1"),
    Spent(since_s=0.5, at_s=5.1, cpu_s=4.5),
    Stopping(at_s=5.1),
]


def written(directory, events=EVENTS, name="1.ledger"):
    path = directory / name
    with LedgerWriter(path) as ledger:
        for event in events:
            ledger.add(event)
    return path


def test_what_was_added_is_read(tmp_path):
    assert list(read_ledger(written(tmp_path))) == EVENTS


def test_a_fate_is_still_one_after_reading(tmp_path):
    settled = list(read_ledger(written(tmp_path)))[3]
    assert settled.fate is Fate.ACKNOWLEDGED


def test_what_was_added_is_in_the_file_at_once(tmp_path):
    ledger = LedgerWriter(tmp_path / "1.ledger")
    ledger.add(EVENTS[0])
    assert list(read_ledger(ledger.path)) == EVENTS[:1]
    ledger.close()


def test_a_ledger_cut_anywhere_gives_the_frames_before_the_cut(tmp_path):
    path = written(tmp_path)
    whole = path.read_bytes()
    ends = [0]
    for event in EVENTS:
        ends.append(ends[-1] + len(encode_frame(event)))
    for size in range(len(whole) + 1):
        os.truncate(path, 0)
        path.write_bytes(whole[:size])
        complete = sum(end <= size for end in ends[1:])
        assert list(read_ledger(path)) == EVENTS[:complete]


def test_a_torn_last_frame_of_full_length_is_left_out(tmp_path):
    path = written(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5] + b"\0\0\0\0\0")
    assert list(read_ledger(path)) == EVENTS[:-1]


@pytest.mark.parametrize("at", [0, 5, 20])
def test_damage_before_the_end_is_an_error(tmp_path, at):
    path = written(tmp_path)
    whole = bytearray(path.read_bytes())
    whole[at] ^= 0xFF
    path.write_bytes(whole)
    with pytest.raises(LedgerError, match="byte 0 is damaged"):
        list(read_ledger(path))


def test_frames_of_another_version_are_an_error():
    with pytest.raises(LedgerError, match="cannot read"):
        decode_payload(b"\x92\x63\x01")
    with pytest.raises(LedgerError, match="cannot read"):
        decode_payload(b"\x91\x00")


def test_a_ledger_is_never_written_over(tmp_path):
    path = written(tmp_path)
    with pytest.raises(FileExistsError):
        LedgerWriter(path)


def test_a_closed_ledger_takes_nothing_more(tmp_path):
    ledger = LedgerWriter(tmp_path / "1.ledger")
    ledger.close()
    ledger.add(EVENTS[0])
    ledger.close()
    assert list(read_ledger(ledger.path)) == []


def test_a_run_is_complete_once_all_of_its_ledgers_are_closed(tmp_path):
    assert not is_complete(tmp_path)
    written(tmp_path, EVENTS[:2])
    other = LedgerWriter(tmp_path / "2.ledger")
    other.add(EVENTS[5])
    assert not is_complete(tmp_path)
    other.close()
    assert is_complete(tmp_path)
    assert [path.name for path in ledger_files(tmp_path)] == ["1.ledger", "2.ledger"]
    assert list(read_all(tmp_path)) == [*EVENTS[:2], EVENTS[5]]


def test_a_run_without_a_ledger_is_an_error(tmp_path):
    with pytest.raises(LedgerError, match="holds no ledger"):
        list(read_all(tmp_path))
