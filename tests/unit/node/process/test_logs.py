"""Log lines in both forms, and what hostile text may not do to them."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from node.process.logs import configure_logs, request_id


@pytest.fixture
def root() -> Iterator[None]:
    handlers, level = logging.root.handlers[:], logging.root.level
    logging.root.handlers = []
    yield
    logging.root.handlers = handlers
    logging.root.setLevel(level)


def lines(form: str, *calls, level: str = "info") -> list[str]:
    stream = io.StringIO()
    configure_logs(level=level, form=form, stream=stream)
    log = logging.getLogger("node.test")
    for call in calls:
        call(log)
    return stream.getvalue().splitlines()


def test_text_lines_carry_time_level_logger_and_message(root):
    (line,) = lines("text", lambda log: log.info("leader elected topic=%s partition=%d", "t", 3))
    assert line.endswith("Z info node.test leader elected topic=t partition=3")


def test_json_lines_have_fixed_text_and_typed_fields(root):
    (line,) = lines(
        "json",
        lambda log: log.warning("leader elected topic=%s partition=%d hint=%s", "a b", 3, None),
    )
    parsed = json.loads(line)
    assert parsed.pop("time").endswith("Z")
    assert parsed == {
        "level": "warning",
        "logger": "node.test",
        "event": "leader elected",
        "topic": "a b",
        "partition": 3,
        "hint": None,
    }


def test_a_message_of_another_form_is_the_event_as_a_whole(root):
    texts = [
        json.loads(line)["event"]
        for line in lines(
            "json",
            lambda log: log.info("plain"),
            lambda log: log.info("fetch failed leader=%d: %s", 3, "gone"),
            lambda log: log.info("%d%% done n=%d", 5, 6),
        )
    ]
    assert texts == ["plain", "fetch failed leader=3: gone", "5% done n=6"]


def test_a_field_cannot_forge_the_level(root):
    (line,) = lines("json", lambda log: log.info("x level=%s", "error"))
    assert json.loads(line)["level"] == "info"


def test_text_of_a_client_cannot_start_a_line(root):
    (line,) = lines("text", lambda log: log.info("refused name=%s", "a\n2026 error node fake"))
    assert "a\\n2026" in line
    (line,) = lines("json", lambda log: log.info("refused name=%s", "a\nb"))
    assert json.loads(line)["name"] == "a\nb"


def test_lines_below_the_level_are_dropped(root):
    assert lines("text", lambda log: log.info("x"), level="warning") == []


def test_lines_name_the_request_that_is_worked_on(root):
    token = request_id.set("r-1")
    try:
        (text,) = lines("text", lambda log: log.info("x"))
        (line,) = lines("json", lambda log: log.info("x"))
    finally:
        request_id.reset(token)
    assert text.endswith("x request_id=r-1")
    assert json.loads(line)["request_id"] == "r-1"


@pytest.mark.parametrize("form", ["text", "json"])
def test_tracebacks_are_kept(root, form: str):
    def fail(log: logging.Logger) -> None:
        try:
            raise ValueError("inside")
        except ValueError:
            log.exception("request failed id=%d", 7)

    written = lines(form, fail)
    assert "ValueError: inside" in "\n".join(written)
    assert form == "text" or len(written) == 1
