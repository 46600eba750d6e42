"""Patterns of topics: what Python's ``re`` says, without what it may cost."""

import re
from random import Random

import pytest

from milena.model.errors import InvalidConsumerError
from node.groups.subscriptions import TopicPattern

ATOMS = [
    "a", "b", ".", "[ab]", "[^a]", "(a|b)", "(?:ab|)", r"\.", "(a*b)", "x", "[a-c-]", r"\d", r"\W", "^", "$", "[]a]",
    r"[\w-]", "(a{2}|b?)",
]  # fmt: skip
REPEATS = ["", "", "*", "+", "?", "{2}", "{1,2}", "{0,}", "*?", "+?", "|"]


@pytest.mark.parametrize("seed", range(20))
def test_a_pattern_matches_what_python_says(seed: int) -> None:
    rng = Random(seed)
    compared = 0
    for _ in range(150):
        text = "".join(rng.choice(ATOMS) + rng.choice(REPEATS) for _ in range(rng.randint(1, 5)))
        try:
            reference, pattern = re.compile(text), TopicPattern(text)
        except (re.error, InvalidConsumerError):
            continue
        for _ in range(6):
            name = "".join(rng.choice("abx.-1") for _ in range(rng.randint(0, 6)))
            assert pattern.matches(name) == bool(reference.fullmatch(name)), (text, name)
            compared += 1
    assert compared > 300


@pytest.mark.parametrize(
    "text",
    ["(a*)*b", "(a|a)*(a?){30}a{30}b", "(.*)(.*)(.*)(.*)(.*)x", "((a+)+)+b", "(.*[a-z]{1,5}){20}x"],
)
def test_patterns_that_keep_backtrackers_busy_are_matched_at_once(text: str) -> None:
    assert not TopicPattern(text).matches("a" * 249)


@pytest.mark.parametrize(
    "text",
    ["*a", "(", "[", "a)", "a{2,1}", r"\1", "(?=a)", "(?<!a)b", "a**", "x{1001}", "[b-a]", "\\", "\ud800",
     "((((a{100}){100}){100}){100})", "a" * 1_001],
)  # fmt: skip
def test_what_is_not_understood_is_refused_in_words(text: str) -> None:
    with pytest.raises(InvalidConsumerError) as refused:
        TopicPattern(text)
    assert "topic pattern" in refused.value.message


def test_a_whole_name_must_match() -> None:
    assert TopicPattern("orders.*").matches("orders.eu")
    assert not TopicPattern("orders").matches("orders.eu")
    assert TopicPattern("^orders$").matches("orders")
    assert TopicPattern("").matches("")
