"""JSON lines of what was changed: a file that goes on where it ended, or the log; no file stops a node that runs."""

import json
import logging
import os
from pathlib import Path

import pytest

from milena.model.errors import StartupError
from milena.model.types import WallMs
from node.metadata.audit_lines import AuditLines
from raft_meta.machine.image import AuditEntry


def entry(index: int, principal: str = "User:ann") -> AuditEntry:
    return AuditEntry(
        number=index - 10,
        index=index,
        time_ms=WallMs(5),
        principal=principal,
        node_id=2,
        action="put_user",
        change='{"name":"bob"}',
    )


def test_each_change_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    lines = AuditLines(path)
    lines.write(entry(11))
    lines.write(entry(14, principal=""))
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {
            "number": 1,
            "index": 11,
            "time_ms": 5,
            "principal": "User:ann",
            "node_id": 2,
            "action": "put_user",
            "change": {"name": "bob"},
        },
        {
            "number": 4,
            "index": 14,
            "time_ms": 5,
            "principal": None,
            "node_id": 2,
            "action": "put_user",
            "change": {"name": "bob"},
        },
    ]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_node_that_starts_again_tells_of_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    for indices in ((11, 12), (11, 12, 13)):
        lines = AuditLines(path)
        for index in indices:
            lines.write(entry(index))
    found = [json.loads(line)["index"] for line in path.read_text().splitlines()]
    assert found == [11, 12, 13]


def test_a_line_that_a_crash_has_torn_is_left_behind_and_written_again(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    AuditLines(path).write(entry(11))
    with path.open("ab") as file:
        file.write(b'{"number":2,"ind')
    AuditLines(path).write(entry(12))
    first, torn, second = path.read_text().splitlines()
    assert (json.loads(first)["index"], json.loads(second)["index"]) == (11, 12)
    assert torn == '{"number":2,"ind'


def test_without_a_file_it_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "milena.audit")
    AuditLines(None).write(entry(11))
    assert caplog.messages == [
        'changed number=1 index=11 principal=User:ann node_id=2 action=put_user change={"name":"bob"}'
    ]


def test_the_log_gets_no_line_twice_when_a_node_starts_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "milena.audit")
    for indices in ((9, 12), (9, 12, 13), (9, 12, 13), (13, 100)):
        lines = AuditLines(None, mark=tmp_path / "mark")
        for index in indices:
            lines.write(entry(index))
    logged = [message.split()[2] for message in caplog.messages]
    assert logged == ["index=9", "index=12", "index=13", "index=100"]


def test_a_mark_that_a_crash_has_torn_repeats_lines_and_stops_no_node(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "milena.audit")
    (tmp_path / "mark").write_bytes(b"\0" * 21)
    AuditLines(None, mark=tmp_path / "mark").write(entry(11))
    AuditLines(None, mark=tmp_path / "mark").write(entry(11))
    assert len(caplog.records) == 1


def test_a_mark_that_cannot_be_written_stops_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "milena.audit")
    lines = AuditLines(None, mark=tmp_path / "mark")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    lines.write(entry(11))
    lines.write(entry(12))
    assert len([record for record in caplog.records if record.levelno == logging.INFO]) == 2


def test_a_file_that_cannot_be_is_told_of_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="audit_file"):
        AuditLines(tmp_path / "missing" / "audit")


def test_a_disk_that_is_full_stops_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lines = AuditLines(tmp_path / "audit")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        lines.write(entry(11))
    assert "cannot write audit_file index=11" in caplog.text
    lines.write(entry(12))
    assert json.loads((tmp_path / "audit").read_text())["index"] == 12
