"""JSON bodies and query parameters."""

import re

import pytest

from http_api.describing.schemas import (
    Fields,
    integer_text,
    parse_json,
    parse_query,
)
from http_api.protocol.errors import InvalidFieldError
from milena.model.errors import MalformedRequestError

KNOWN = frozenset({"name", "count", "flag", "items"})


def fields(**values):
    return Fields(values, "the body", KNOWN)


@pytest.mark.parametrize("body", [b"", b"{", b"nope", b"\xff", b'{"a":1}x', b"NaN", b'"\\ud800"'])
def test_refuses_what_is_not_json(body):
    with pytest.raises(MalformedRequestError):
        parse_json(body)


def test_refuses_nesting_without_end():
    with pytest.raises(MalformedRequestError):
        parse_json(b"[" * 100_000)


@pytest.mark.parametrize("value", [None, [], "x", 1, True])
def test_a_body_must_be_an_object(value):
    with pytest.raises(MalformedRequestError, match="must be a JSON object, not"):
        Fields(value, "the body", KNOWN)


def test_names_the_unknown_field():
    with pytest.raises(InvalidFieldError, match="Unrecognized field: other"):
        fields(other=1)


def test_names_the_field_of_a_wrong_type():
    with pytest.raises(MalformedRequestError, match="'name' must be a string, not a number"):
        fields(name=1).text("name")
    with pytest.raises(MalformedRequestError, match="'count' must be an integer, not a boolean"):
        fields(count=True).integer("count", least=0)
    with pytest.raises(MalformedRequestError, match="'count' must be an integer, not a number"):
        fields(count=1.5).integer("count", least=0)
    with pytest.raises(MalformedRequestError, match="'flag' must be a boolean, not a list"):
        fields(flag=[]).boolean("flag")
    with pytest.raises(MalformedRequestError, match="'items' must be a list, not an object"):
        fields(items={}).items("items")
    with pytest.raises(MalformedRequestError, match=r"items\[1\] must be a JSON object, not null"):
        list(fields(items=[{}, None]).objects("items", KNOWN))


def test_numbers_and_booleans_may_be_text():
    assert fields(count="12").integer("count", least=1) == 12
    assert fields(flag="True").boolean("flag") is True
    assert fields(flag="false").boolean("flag") is False
    assert fields(name=5).setting("name") == "5"
    assert fields(name=True).setting("name") == "true"


def test_refuses_text_that_is_no_boolean():
    with pytest.raises(MalformedRequestError, match="'flag' is 'maybe'; expected true or false"):
        fields(flag="maybe").boolean("flag")


def test_null_is_absent():
    empty = fields(name=None, count=None, flag=None, items=None)
    assert empty.text("name") is None
    assert empty.integer("count", least=1) is None
    assert empty.boolean("flag") is False
    assert empty.items("items") == []
    assert not empty.has("name")


@pytest.mark.parametrize("values", [{}, {"name": None}, {"name": ""}])
def test_a_required_field_may_not_be_empty(values):
    with pytest.raises(InvalidFieldError, match="'name' may not be empty"):
        fields(**values).required_text("name")


def test_names_the_least_value():
    with pytest.raises(InvalidFieldError, match="'count' is 0; at least 1"):
        fields(count=0).integer("count", least=1)


@pytest.mark.parametrize("value", [2**63, 2**64 - 1, 1e20])
def test_no_integer_has_more_than_64_bits(value):
    with pytest.raises(
        InvalidFieldError, match=re.escape(f"'count' is {value}; at most {2**63 - 1}")
    ):
        fields(count=value).integer("count", least=0)
    with pytest.raises(InvalidFieldError, match=re.escape(f"'items' holds {value}; at most")):
        fields(items=[1, value]).integers("items", least=0)
    with pytest.raises(InvalidFieldError, match=r"'count' is -1e\+20; at least 0"):
        fields(count=-1e20).integer("count", least=0)
    assert fields(count=2**63 - 1).integer("count", least=0) == 2**63 - 1


@pytest.mark.parametrize("text", ["", "-", "x", "1.0", "1e3", "٣", " 1", "+1", "9" * 20, "1_000"])
def test_refuses_text_that_is_no_integer(text):
    with pytest.raises(MalformedRequestError, match="Invalid parameter 'n' got"):
        integer_text("n", text)


def test_refuses_more_than_64_bits():
    assert integer_text("n", str(2**63 - 1)) == 2**63 - 1
    assert integer_text("n", str(-(2**63))) == -(2**63)
    for text in (str(2**63), "9" * 20, "9" * 5000):
        with pytest.raises(MalformedRequestError, match=f"too large: at most {2**63 - 1} is"):
            integer_text("n", text)
    with pytest.raises(MalformedRequestError, match=f"too small: at least -{2**63} is possible"):
        integer_text("n", str(-(2**63) - 1))


def test_query_parameters():
    query = parse_query("a=1&b=x%20y&a=2&c=&flag")
    assert query == {"a": "2", "b": "x y", "c": "", "flag": ""}


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ("&".join(["a=1"] * 65), "the query string has more than 64 parameters"),
        ("a=%FF", "the query string is not UTF-8, percent-encoded"),
    ],
)
def test_refuses_hostile_query_strings(raw, told):
    with pytest.raises(MalformedRequestError, match=f"^{told}$"):
        parse_query(raw)
