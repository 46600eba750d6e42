"""Texts of others do nothing to a terminal: control characters are written out, wherever the command line prints."""

import json
import unicodedata

import pytest

from milena.commands import output
from milena.commands.formats import Format, Layout
from milena.model.plain_text import escaped, has_control
from milena.model.types import TimestampType
from milena.records import ConsumedRecord

HOSTILE = [
    chr(code) for code in range(0x3000) if unicodedata.category(chr(code)) in {"Cc", "Zl", "Zp"}
]
HOSTILE += ["\u202e", "\u2066"]


@pytest.mark.parametrize("character", HOSTILE, ids=ascii)
def test_each_control_character_is_seen_and_written_out(character):
    text = f"a{character}b"
    assert has_control(text)
    assert character not in escaped(text)
    assert output.table(("NOTE",), [(text,)]).splitlines() == ["NOTE", escaped(text)]
    (line,) = output.as_json([text]).splitlines()[1:-1]
    assert character not in line
    assert json.loads(line) == text


@pytest.mark.parametrize("text", ["", "plain", "naïve 日本語", "a b"])
def test_other_texts_stay_as_they_are(text):
    assert not has_control(text)
    assert escaped(text) == text


@pytest.mark.parametrize("form", list(Format))
def test_records_do_nothing_to_a_terminal_but_stay_whole_elsewhere(form):
    record = ConsumedRecord(
        topic="t",
        partition=0,
        offset=1,
        timestamp_ms=2,
        timestamp_type=TimestampType.CREATE,
        key=b"k\x1b]0;owned\x07",
        value="v\x1b[2J\x9b2J\tx".encode(),
        headers=(),
    )
    whole = Layout(format=form).encode([record])
    shown = Layout(format=form, is_for_terminal=True).encode([record])
    if form is Format.RAW:
        assert shown == whole == record.value
        return
    text = shown.decode()
    assert not has_control(text.replace("\t", "").replace("\n", ""))
    assert "\\x1b" in text or "\\u001b" in text
    assert text.endswith("\n")
