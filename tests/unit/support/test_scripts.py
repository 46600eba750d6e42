"""The runner of golden scripts: what it accepts, what it rewrites and what it refuses."""

from pathlib import Path

import pytest

from milena.model.errors import TopicNotFoundError
from tests.support.machine.scripts import LINES_MAX, parse_script, run_script

SCRIPT = "# Words come back.\nsay a\n!fail\n---\na\ntopic_not_found: no\n"


def execute(line: str) -> list[str]:
    if line == "fail":
        raise TopicNotFoundError("no")
    return line.split()[1:]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "case.txt"


def test_a_script_that_says_what_happens_passes(path: Path) -> None:
    path.write_text(SCRIPT)
    run_script(path, execute)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (SCRIPT.replace("\na\n", "\nb\n"), r"-b\n\+a"),
        (SCRIPT.replace("say a", "!say a"), "was to fail"),
        (SCRIPT.replace("!fail", "fail"), "failed: topic_not_found"),
        (SCRIPT.replace("# Words come back.\n", ""), "opens with what it proves"),
        (SCRIPT.replace("---\n", ""), "without '---'"),
        ("# Nothing.\n---\n", "without commands"),
        ("\n\n".join(["# Word.\nsay a\n---\na"] * LINES_MAX) + "\n", "split it"),
    ],
)
def test_anything_else_is_complained_about(path: Path, text: str, complaint: str) -> None:
    path.write_text(text)
    with pytest.raises(AssertionError, match=complaint):
        run_script(path, execute)


def test_rewriting_puts_down_what_happens(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REWRITE_SCRIPTS", "1")
    path.write_text(SCRIPT.replace("\na\n", "\nb\n"))
    run_script(path, execute)
    assert path.read_text() == SCRIPT


def test_blocks_are_apart_by_a_blank_line() -> None:
    assert [len(block.commands) for block in parse_script(f"{SCRIPT}\n{SCRIPT}")] == [2, 2]
