"""Lines to records: where a line ends, and what of it is the key."""

import pytest

from milena.commands.producing.lines import BadLineError, LineRule, LineSplitter, parse_separator


def split(*pieces, bytes_max=100):
    splitter = LineSplitter(bytes_max)
    found = [line for piece in pieces for line in splitter.feed(piece)]
    return [*found, *splitter.end()]


HOSTILE = b"\n\r\n\xff\xfe\x00\x80\n \t \n\xc3\nnul\x00\n\r\r\n\x85\xe2\x80\xa8\x0b\x0c\x1c\nlast"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (b"", []),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\n\nb", [b"a", b"", b"b"]),
        (b"\n", [b""]),
        (b"\n\n", [b"", b""]),
        (b"a\r\nb\r\n", [b"a\r", b"b\r"]),
        (HOSTILE, HOSTILE.split(b"\n")),
    ],
)
def test_a_line_feed_alone_ends_a_line_and_every_other_byte_stays(text, lines):
    assert split(text) == lines
    assert split(*(text[i : i + 1] for i in range(len(text)))) == lines
    for cut in range(len(text)):
        assert split(text[:cut], text[cut:]) == lines


@pytest.mark.parametrize("size", [5, 6, 7, 60])
def test_a_line_above_the_bound_is_none_wherever_it_is_cut(size):
    long = b"x" * size
    text = b"a\n" + long + b"\nb\n" + long
    expected = [b"a", long if size <= 5 else None, b"b", long if size <= 5 else None]
    for step in (1, 2, 3, 7, 200):
        pieces = [text[i : i + step] for i in range(0, len(text), step)]
        assert split(*pieces, bytes_max=5) == expected


def test_of_a_line_above_the_bound_no_more_is_held():
    splitter = LineSplitter(10)
    for _ in range(1000):
        assert list(splitter.feed(b"xxxxx")) == []
    assert splitter._held_bytes <= 10
    assert not splitter._held


# -- keys ------------------------------------------------------------------------------------------


def test_a_line_is_the_value_as_it_is():
    assert LineRule().parse(b"a\tb\xff\r") == (None, b"a\tb\xff\r")
    assert LineRule().parse(b"") == (None, b"")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"k:=v", (b"k", b"v")),
        (b"k:=v:=w", (b"k", b"v:=w")),
        (b":=v", (b"", b"v")),
        (b"k:=", (b"k", b"")),
        (b"\xff:=\xfe", (b"\xff", b"\xfe")),
        (b"k:=NULL", (b"k", None)),
    ],
)
def test_the_key_stands_before_the_first_separator(line, expected):
    assert LineRule(key_separator=b":=", null_marker=b"NULL").parse(line) == expected


@pytest.mark.parametrize("line", [b"", b"k", b"k:v"])
def test_a_line_without_the_separator_is_bad(line):
    with pytest.raises(BadLineError, match=r"no key separator ':=' in .*--on-bad-line skip"):
        LineRule(key_separator=b":=").parse(line)


@pytest.mark.parametrize(
    ("field", "key"),
    [
        ("s", b"text"),
        ("u", "naïve".encode()),
        ("n", b"17"),
        ("f", b"1.50"),
        ("t", b"true"),
        ("o", b'{"x":{"y":"deep"},"l":[1,2]}'),
        ("o.x.y", b"deep"),
        ("o.l", b"[1,2]"),
        ("nothing", None),
    ],
)
def test_a_json_field_is_the_key_and_the_line_stays_the_value(field, key):
    line = (
        '{"s":"text","u":"naïve","n":17,"f":1.5,"t":true,"nothing":null,'
        '"o": {"x": {"y": "deep"}, "l": [1, 2]}}'
    ).encode()
    found, value = LineRule(key_field=tuple(field.split("."))).parse(line)
    assert found == (b"1.5" if field == "f" else key)
    assert value == line


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"", "needs JSON"),
        (b"no json", "needs JSON"),
        (b"\xff", "needs JSON"),
        (b"[" * 100_000, "needs JSON"),
        (b"[1]", "no field a.b"),
        (b'{"a":1}', "no field a.b"),
        (b'{"a":{"c":1}}', "no field a.b"),
        (b'{"a":{"b":"\\ud800"}}', "not valid text"),
    ],
)
def test_a_line_without_the_field_is_bad(line, complaint):
    with pytest.raises(BadLineError, match=complaint):
        LineRule(key_field=("a", "b")).parse(line)


def test_a_long_line_is_not_repeated_in_whole():
    with pytest.raises(BadLineError) as caught:
        LineRule(key_separator=b"=").parse(b"x" * 10_000)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (",", b","),
        (r"\t", b"\t"),
        (r"\0", b"\0"),
        (r"\x1f", b"\x1f"),
        (r"\r\n", b"\r\n"),
        ("\\\\", b"\\"),
        ("é", "é".encode()),
        ("→", "→".encode()),
    ],
)
def test_separators_may_be_escapes(text, expected):
    assert parse_separator(text) == expected


@pytest.mark.parametrize("text", ["", "\\", r"\x1", r"\u12"])
def test_a_separator_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match=r"empty|escape"):
        parse_separator(text)
