r"""Parse lines of an Apache access log into columns with Spark's own functions: no Python runs per record.

Both common formats are accepted, with and without referrer and agent:

    1.2.3.4 - bob [17/May/2015:10:05:03 +0200] "GET /a?b HTTP/1.1" 200 2326 "http://from/" "agent \"x\""
    1.2.3.4 - bob [17/May/2015:10:05:03 +0200] "GET /a?b HTTP/1.1" 200 2326

An unreadable line does not stop the job, but gets a ``reason``. A request that is not HTTP (a port scan, a timeout
logged as ``"-"``) was still answered: it counts, and its ``path`` is null.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

LINE_BYTES_MAX = 1 << 16
"""The longest line, in bytes. A server limits requests to 8 KB; longer input would only cost time."""

_TIME_FORMAT = "dd/MMM/yyyy:HH:mm:ss Z"
_TIME_SHAPE = r"\A\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}\z"
"""The form of a time as servers write it. The date format alone would also accept years before Christ."""

# Private-use characters replace the escape sequences in quoted fields, so that a field ends at the next quote. A
# regular expression with escapes has to repeat a group, and Java's recurses at each repetition until its stack is full.
_BACKSLASH, _QUOTE, _BETWEEN = "\ue000", "\ue001", "\ue002"
_RESERVED = _BACKSLASH + _QUOTE + _BETWEEN

_LINE = (
    r"\A([^ ]+) [^ ]+ [^\[]* \[([^\]]*)\] "  # client, identity, user, time
    r'"([^"]*)" (\d{3}) (\d+|-)'  # request, status, bytes
    r'(?: "[^"]*" "[^"]*")?\s*\z'  # referrer, agent
)
_FIELDS = _BETWEEN.join(("$1", "$2", "$3", "$4", "$5"))
_FIELD_COUNT = 5

_TARGET = r"\A[A-Za-z-]+ (\S.*?)(?: HTTP/[\d.]+)?\z"


def parsed(records: DataFrame) -> DataFrame:
    """Return the records with ``client, time, method, path, status, bytes`` and ``reason``; other columns stay.

    ``reason`` is null if the line could be read; otherwise it says why not, and the other new columns are undefined.
    The path has no query. The session's time zone has no effect, because lines have their own.
    """
    text = sf.make_valid_utf8(sf.col("value").cast("string"))
    plain = sf.translate(text, _RESERVED, "\ufffd" * len(_RESERVED))
    unescaped = sf.replace(
        sf.replace(plain, sf.lit("\\\\"), sf.lit(_BACKSLASH)), sf.lit('\\"'), sf.lit(_QUOTE)
    )
    # Extract all fields in one pass over the line; one by one, that would be five passes.
    fields = sf.split(sf.regexp_replace(unescaped, _LINE, _FIELDS), _BETWEEN)
    is_short = sf.octet_length("value") <= LINE_BYTES_MAX
    lines = records.withColumn("fields", sf.when(is_short, fields))
    request = _field(2)
    target = sf.regexp_extract(request, _TARGET, 1)
    path = _escaped(sf.substring_index(sf.substring_index(target, "?", 1), "#", 1))
    return (
        lines.withColumns(
            {
                "client": _escaped(_field(0)),
                "time": sf.when(
                    _field(1).rlike(_TIME_SHAPE),
                    sf.try_to_timestamp(_field(1), sf.lit(_TIME_FORMAT)),
                ),
                "method": sf.when(target != "", sf.substring_index(request, " ", 1)),
                "path": sf.when(target != "", path),
                "status": _field(3).try_cast("int"),
                "bytes": sf.when(_field(4) == "-", sf.lit(0)).otherwise(_field(4).try_cast("long")),
            }
        )
        .withColumn("reason", _reason())
        .drop("fields")
    )


def _field(number: int) -> Column:
    return sf.get("fields", number)


def _escaped(text: Column) -> Column:
    """Turn the private-use characters back into the server's escape sequences."""
    backslashes = sf.replace(text, sf.lit(_BACKSLASH), sf.lit("\\\\"))
    return sf.replace(backslashes, sf.lit(_QUOTE), sf.lit('\\"'))


def _reason() -> Column:
    return (
        sf.when(sf.col("value").isNull(), "no value")
        .when(sf.col("fields").isNull(), f"longer than {LINE_BYTES_MAX} bytes")
        .when(sf.trim(sf.col("value").cast("string")) == "", "empty line")
        .when(sf.size("fields") != _FIELD_COUNT, "not in the combined or common log format")
        .when(sf.col("time").isNull(), "no such time")
        .when(~sf.col("status").between(100, 599), "no such status")
        .when(sf.col("bytes").isNull(), "size out of range")
    )
