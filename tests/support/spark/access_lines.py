"""Parse and count an access log in plain Python, for comparison with Spark's results."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from gzip import decompress
from pathlib import Path

SAMPLE = Path(__file__).parents[2] / "data" / "access_log.gz"
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


def sample_lines() -> list[bytes]:
    """Return the 10,000 lines of the sample."""
    return decompress(SAMPLE.read_bytes()).splitlines()


@dataclass
class Event:
    """A readable line."""

    client: str
    time: datetime
    path: str | None
    status: int
    size_bytes: int


def read_line(line: bytes) -> Event | None:
    """Return the fields of a line; None if it is not in the combined or common format."""
    try:
        text = line.decode("utf-8", "replace").rstrip(" \t\n\v\f\r")
        client, identity, rest = text.split(" ", 2)
        user, rest = rest.split("[", 1)
        stamp, rest = rest.split("] ", 1)
        assert client
        assert identity
        assert user.endswith(" ")
        request, rest = quoted(rest)
        parts = rest.split(" ", 3)
        assert parts[0] == ""
        status, size = parts[1], parts[2]
        if len(parts) == 4:
            _, rest = quoted(parts[3])
            assert rest[0] == " "
            _, rest = quoted(rest[1:])
            assert rest == ""
        assert len(status) == 3
        assert status.isascii()
        assert status.isdigit()
        assert 100 <= int(status) <= 599
        assert size == "-" or (size.isascii() and size.isdigit())
        return Event(
            client, read_time(stamp), path_of(request), int(status), int(size.replace("-", "0"))
        )
    except (AssertionError, ValueError, IndexError):
        return None


def quoted(text: str) -> tuple[str, str]:
    """Return the quoted field at the start of a text, still with its escapes, and the rest of the text."""
    assert text[0] == '"'
    at = 1
    while text[at] != '"':
        at += 2 if text[at] == "\\" else 1
    return text[1:at], text[at + 1 :]


def read_time(text: str) -> datetime:
    """Parse a time such as ``17/May/2015:10:05:03 +0200``."""
    clock, offset = text.split(" ")
    date, hour, minute, second = clock.split(":")
    day, month, year = date.split("/")
    assert offset[0] in "+-"
    assert len(year + offset[1:]) == 8
    assert year.isdigit()
    away = timedelta(hours=digits(offset[1:3]), minutes=digits(offset[3:]))
    # The largest offset from UTC in ISO 8601.
    assert away <= timedelta(hours=18)
    assert digits(offset[3:]) < 60
    zone = timezone(away if offset[0] == "+" else -away)
    numbers = (digits(day), digits(hour), digits(minute), digits(second))
    return datetime(int(year), MONTHS.index(month) + 1, *numbers, tzinfo=zone).astimezone(UTC)


def digits(text: str) -> int:
    """Parse a number of two digits."""
    assert len(text) == 2
    assert text.isascii()
    assert text.isdigit()
    return int(text)


def path_of(request: str) -> str | None:
    """Return the path of an HTTP request, without query and fragment."""
    method, _, target = request.partition(" ")
    is_method = bool(method) and all(c.isascii() and (c.isalpha() or c == "-") for c in method)
    if not is_method or not target or target[0].isspace():
        return None
    head, _, last = target.rpartition(" ")
    if head and last.startswith("HTTP/") and last[5:] and set(last[5:]) <= set("0123456789."):
        target = head
    return target.split("?")[0].split("#")[0]


@dataclass
class Tally:
    """The counts of an hour, or of all hours."""

    requests: int = 0
    size_bytes: int = 0
    clients: set[str] = field(default_factory=set)
    by_class: Counter[int] = field(default_factory=Counter)
    paths: Counter[str] = field(default_factory=Counter)
    error_paths: Counter[str] = field(default_factory=Counter)

    def add(self, event: Event) -> None:
        self.requests += 1
        self.size_bytes += event.size_bytes
        self.clients.add(event.client)
        self.by_class[event.status // 100] += 1
        if event.path is not None:
            self.paths[event.path] += 1
            if event.status >= 400:
                self.error_paths[event.path] += 1

    def top(self, paths: Counter[str], count: int) -> tuple[tuple[str, int], ...]:
        return tuple(sorted(paths.items(), key=lambda item: (-item[1], item[0]))[:count])


def tallies(lines: Iterable[bytes]) -> tuple[dict[datetime | None, Tally], int]:
    """Return the counts by hour (None for all hours), and the number of unreadable lines."""
    found: dict[datetime | None, Tally] = {None: Tally()}
    malformed = 0
    for line in lines:
        event = read_line(line)
        if event is None:
            malformed += 1
            continue
        hour = event.time.replace(minute=0, second=0)
        for key in (None, hour):
            found.setdefault(key, Tally()).add(event)
    return found, malformed
