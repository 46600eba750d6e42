"""Log lines as ``key=value`` text or as JSON, one per line, on standard error.

A call gives fixed text, then its fields: ``log.info("leader elected topic=%s partition=%d", ...)``. The text format
keeps this line. In JSON, the fixed text becomes ``event``, and each field becomes a member with its type.
"""

import logging
import re
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO

import orjson

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the present request. The code that accepts the request sets it; awaits and tasks keep it."""

_FIELD = re.compile(r"(?P<name>\w+)=(?P<slot>%[-#0 +]*\d*(?:\.\d+)?[sdrfxgi])")
_SLOT = re.compile(r"%(?:%|[-#0 +]*\d*(?:\.\d+)?[sdrfxgi])")
_FIELDS_CACHED_MAX = 4096
_fields_of: dict[str, tuple[str, tuple[str, ...]] | None] = {}


def configure_logs(*, level: str, form: str, stream: TextIO | None = None) -> None:
    """Send all log lines to one stream, as ``text`` or as ``json``. This replaces an earlier configuration."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class TextFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.000Z info node.control.controller fixed text key=value``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, followed by a traceback if there is one."""
        line = f"{_time(record)} {record.levelname.lower()} {record.name} {_one_line(record.getMessage())}"
        if request := request_id.get():
            line += f" request_id={request}"
        trace = _trace(self, record)
        return f"{line}\n{trace}" if trace else line


class JsonFormatter(logging.Formatter):
    """A JSON object with ``time``, ``level``, ``logger``, ``event`` and the fields; request id and traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, including a traceback if there is one."""
        event, fields = _split(record)
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": event,
        }
        # The names above replace fields of the same name, so that a field cannot forge a level.
        line = {**fields, **line}
        if request := request_id.get():
            line["request_id"] = request
        if trace := _trace(self, record):
            line["exception"] = trace
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _time(record: logging.LogRecord) -> str:
    stamp = datetime.fromtimestamp(record.created, UTC)
    return stamp.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _one_line(text: str) -> str:
    """Escape a text that has unprintable characters, so that a client's text cannot start a new log line."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = []
    if record.exc_info:
        parts.append(formatter.formatException(record.exc_info))
    if record.stack_info:
        parts.append(formatter.formatStack(record.stack_info))
    return "\n".join(parts)


def _split(record: logging.LogRecord) -> tuple[str, dict[str, object]]:
    """Return the fixed text and the fields. If the message has another form, return all of it, and no fields."""
    template = _template(str(record.msg))
    args = record.args
    if template is None or not isinstance(args, tuple) or len(args) != len(template[1]):
        return record.getMessage(), {}
    text, names = template
    return text, {name: _plain(value) for name, value in zip(names, args, strict=True)}


def _plain(value: object) -> object:
    return value if type(value) in {int, float, bool, str, type(None)} else str(value)


def _template(message: str) -> tuple[str, tuple[str, ...]] | None:
    if message not in _fields_of:
        if len(_fields_of) >= _FIELDS_CACHED_MAX:
            _fields_of.clear()
        _fields_of[message] = _parse_template(message)
    return _fields_of[message]


def _parse_template(message: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the fixed text and the keys; None without fields, or if a placeholder is not of the form ``key=%s``."""
    fields = list(_FIELD.finditer(message))
    if not fields or len(fields) != len(_SLOT.findall(message)):
        return None
    text = " ".join(_FIELD.sub("", message).replace(":", " ").split())
    return text or message, tuple(field["name"] for field in fields)
