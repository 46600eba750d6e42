"""Parameters are read and described from one definition."""

import pytest

from http_api.describing.params import ChoiceParam, IntegerParam, ParamPlace
from http_api.describing.path_params import params_in
from milena.model.errors import MalformedRequestError

SIZE = IntegerParam(name="size", description="how large", least=1, default=7)
LIMIT = IntegerParam(name="limit", description="at most", least=0, default=None)
WORD = ChoiceParam(name="word", description="which", words={"all": -1, "one": 1}, hint="all or one")


def test_an_integer_has_a_default_or_is_absent():
    assert SIZE.read({}) == 7
    assert SIZE.read({"size": "12"}) == 12
    assert LIMIT.read({}) is None
    assert LIMIT.read({"limit": "0"}) == 0


@pytest.mark.parametrize(
    ("given", "why"), [("0", "below 1"), ("-3", "below 1"), ("x", "not an integer"), ("", "not an")]
)
def test_an_integer_that_is_none_or_too_small_is_refused(given, why):
    with pytest.raises(
        MalformedRequestError, match=f"Invalid parameter 'size' got '{given}': {why}"
    ):
        SIZE.read({"size": given})


def test_an_integer_is_described_with_its_bound_and_default():
    described = SIZE.param
    assert (described.name, described.place) == ("size", ParamPlace.QUERY)
    assert (described.schema["minimum"], described.schema["default"]) == (1, 7)
    assert "default" not in LIMIT.param.schema


def test_a_choice_is_one_of_its_words_whatever_their_case():
    assert WORD.read({}) == -1
    assert WORD.read({"word": "One"}) == 1
    with pytest.raises(MalformedRequestError, match="'word' got 'two': use all or one"):
        WORD.read({"word": "two"})
    assert WORD.param.schema["enum"] == ["all", "one"]
    assert WORD.param.schema["default"] == "all"


def test_names_in_a_path_are_described_in_their_order():
    found = params_in("/v3/clusters/{cluster}/topics/{topic}/configs:alter")
    assert [(p.name, p.place) for p in found] == [
        ("cluster", ParamPlace.PATH),
        ("topic", ParamPlace.PATH),
    ]
