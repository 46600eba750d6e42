"""Access-log lines in Spark's functions: each is read right or has a reason; none stops the job."""

from datetime import UTC, datetime
from random import Random

import pytest
from pyspark.sql import functions as sf

from examples.weblog.access_log import LINE_BYTES_MAX, parsed
from spark_ext.jobs.running.session import prepared
from tests.support.spark.access_lines import read_line, sample_lines

pytestmark = pytest.mark.integration

AGENT = b'"http://from/" "Mozilla/5.0 (X11)"'


def line(
    *,
    client: bytes = b"1.2.3.4",
    user: bytes = b"-",
    time: bytes = b"17/May/2015:10:05:03 +0000",
    request: bytes = b"GET / HTTP/1.1",
    answer: bytes = b"200 5",
    rest: bytes = b" " + AGENT,
) -> bytes:
    return b'%s - %s [%s] "%s" %s%s' % (client, user, time, request, answer, rest)


MORNING = datetime(2015, 5, 17, 10, 5, 3, tzinfo=UTC)

READ = {
    "combined": (line(), {"client": "1.2.3.4", "time": MORNING, "path": "/", "status": 200, "bytes": 5}),
    "common": (line(rest=b""), {"time": MORNING, "path": "/", "bytes": 5}),
    "windows line end": (line() + b"\r", {"path": "/"}),
    "east of Greenwich": (line(time=b"17/May/2015:15:35:03 +0530"), {"time": MORNING}),
    "west of Greenwich": (line(time=b"17/May/2015:00:35:03 -0930"), {"time": MORNING}),
    "another day in UTC": (
        line(time=b"01/Jan/2016:00:30:00 +0100"),
        {"time": datetime(2015, 12, 31, 23, 30, tzinfo=UTC)},
    ),
    "IPv6": (line(client=b"2001:db8::1"), {"client": "2001:db8::1"}),
    "a user with a blank": (line(user=b"Jo Doe"), {"path": "/"}),
    "no bytes": (line(answer=b"304 -"), {"status": 304, "bytes": 0}),
    "many bytes": (line(answer=b"200 5000000000"), {"bytes": 5_000_000_000}),
    "a query": (line(request=b"GET /a?b=/c HTTP/1.1"), {"path": "/a"}),
    "a fragment": (line(request=b"GET /a#b?c HTTP/1.1"), {"path": "/a"}),
    "blanks in the path": (line(request=b"GET /a b HTTP/1.1"), {"path": "/a b"}),
    "no version": (line(request=b"GET /old"), {"method": "GET", "path": "/old"}),
    "another method": (line(request=b"M-SEARCH * HTTP/1.1"), {"method": "M-SEARCH", "path": "*"}),
    "an escaped quote": (line(request=rb"GET /\"a\" HTTP/1.1"), {"path": r"/\"a\""}),
    "an escaped backslash": (line(request=rb"GET /\\ HTTP/1.1"), {"path": r"/\\"}),
    "a field that ends in a backslash": (line(rest=rb' "\\" "a\\"'), {"path": "/"}),
    "an escaped quote and what looks like an end": (
        line(request=rb"GET /\" 404 7 \"- HTTP/1.1"),
        {"status": 200, "bytes": 5},
    ),
    "no request": (line(request=b"-", answer=b"408 -"), {"method": None, "path": None, "status": 408}),
    "an empty request": (line(request=b""), {"path": None}),
    "a handshake": (line(request=rb"\x16\x03\x01", answer=b"400 226"), {"path": None, "status": 400}),
    "not UTF-8": (line(request=b"GET /\xe9 HTTP/1.1"), {"path": "/\ufffd"}),
    "reserved characters": (line(request="GET /\ue000\ue002 HTTP/1.1".encode()), {"path": "/\ufffd\ufffd"}),
    "very many escapes": (line(request=rb"GET /" + rb"\"" * 30_000), {"path": "/" + r"\"" * 30_000}),
}  # fmt: skip

FORMAT = "not in the combined or common log format"
REFUSED = {
    "nothing": (None, "no value"),
    "empty": (b"", "empty line"),
    "blank": (b"  ", "empty line"),
    "too long": (line(request=b"GET /" + b"a" * LINE_BYTES_MAX), "longer than 65536 bytes"),
    "JSON": (b'{"a": 1}', FORMAT),
    "cut off": (line()[:-3], FORMAT),
    "no client": (line()[7:], FORMAT),
    "an agent too many": (line() + b' "x"', FORMAT),
    "a referrer alone": (line(rest=b' "-"'), FORMAT),
    "two lines": (line() + b"\n" + line(), FORMAT),
    "bytes that are no number": (line(answer=b"200 five"), FORMAT),
    "a status of two digits": (line(answer=b"20 5"), FORMAT),
    "binary": (bytes(range(256)), FORMAT),
    "separators": ("\ue002".join("abcde").encode(), FORMAT),
    "a day that is none": (line(time=b"31/Feb/2015:10:05:03 +0000"), "no such time"),
    "a month that is none": (line(time=b"17/Mai/2015:10:05:03 +0000"), "no such time"),
    "an hour that is none": (line(time=b"17/May/2015:24:05:03 +0000"), "no such time"),
    "a time without an offset": (line(time=b"17/May/2015:10:05:03"), "no such time"),
    "no time": (line(time=b""), "no such time"),
    "a year before Christ": (line(time=b"17/May/-2015:10:05:03 +0000"), "no such time"),
    "a status that is none": (line(answer=b"600 5"), "no such status"),
    "too many bytes": (line(answer=b"200 99999999999999999999"), "size out of range"),
}

CASES = [*READ.items(), *REFUSED.items()]


@pytest.fixture(scope="module")
def rows(spark):
    """All cases in one query, by name; times as seconds since 1970."""
    records = prepared(spark).createDataFrame(
        [(name, None if value is None else bytearray(value)) for name, (value, _) in CASES],
        "name string, value binary",
    )
    found = parsed(records).withColumn("time", sf.unix_timestamp("time")).collect()
    return {row.name: row.asDict() for row in found}


@pytest.mark.parametrize("name", READ)
def test_lines_are_read(rows, name):
    row, wanted = rows[name], READ[name][1]
    if row["time"] is not None:
        row = {**row, "time": datetime.fromtimestamp(row["time"], UTC)}
    assert row["reason"] is None
    assert {column: row[column] for column in wanted} == wanted


@pytest.mark.parametrize("name", REFUSED)
def test_lines_that_cannot_be_read_say_why(rows, name):
    assert rows[name]["reason"] == REFUSED[name][1]


def test_the_cases_hold_in_plain_python_too():
    """Which is what the counts of whole logs are held against."""
    for name, (value, wanted) in READ.items():
        event = read_line(value)
        assert event is not None, name
        for column, attribute in (
            ("time", "time"),
            ("path", "path"),
            ("status", "status"),
            ("bytes", "size_bytes"),
        ):
            # Spark's side keeps three characters for itself.
            if column in wanted and name != "reserved characters":
                assert getattr(event, attribute) == wanted[column], (name, column)
    for name, (value, _) in REFUSED.items():
        # Java's limits are not Python's.
        if value is not None and name not in {"too long", "too many bytes"}:
            assert read_line(value) is None, name


def test_spoilt_lines_are_judged_as_plain_python_judges_them(spark):
    """Bytes of real lines replaced, dropped and doubled, 3,000 times over."""
    rng = Random(20150517)
    real = [line for line in sample_lines() if len(line) < 500]
    lines = [spoilt(rng, rng.choice(real)) for _ in range(3000)]
    records = prepared(spark).createDataFrame(
        [(number, bytearray(line)) for number, line in enumerate(lines)], "number int, value binary"
    )
    columns = ("number", "reason", "client", "path", "status", "bytes")
    found = parsed(records).select(*columns, sf.unix_timestamp("time").alias("time")).collect()
    assert len(found) == len(lines)
    read = 0
    for row in found:
        text, event = lines[row.number], read_line(lines[row.number])
        assert (row.reason is None) == (event is not None), (row.reason, text)
        if event is not None:
            read += 1
            seen = (row.client, row.path, row.status, row.bytes, row.time)
            when = int(event.time.timestamp())
            assert seen == (event.client, event.path, event.status, event.size_bytes, when), text
    assert 500 < read < 2500, "some of both kinds"


def spoilt(rng: Random, text: bytes) -> bytes:
    content = bytearray(text)
    for _ in range(rng.choice((1, 1, 2, 4))):
        # Where it matters: before the referrer.
        at = rng.randrange(min(len(content), 140))
        match rng.randrange(4):
            case 0:
                content[at] = rng.choice(b' "\\[]-0123456789+:/aGET')
            case 1:
                del content[at]
            case 2:
                content.insert(at, rng.choice(b' "\\[]-0'))
            case _:
                content[at:at] = content[at : at + rng.randrange(1, 6)]
    return bytes(content)
