"""A secret is seen by who asks for it, and by nobody else."""

import copy
import json
import logging
import pickle

import pytest

from milena.model.secret import Secret

CANARY = "canary-5f2a"


def test_a_secret_is_revealed_to_who_asks():
    assert Secret(CANARY).reveal() == CANARY


@pytest.mark.parametrize(
    "shown",
    [repr, str, "{}".format, "{!r:>9}".format, "%s".__mod__, lambda s: str([{"token": s}])],
)
def test_no_way_of_showing_it_shows_it(shown):
    assert CANARY not in shown(Secret(CANARY))
    assert "***" in shown(Secret(CANARY))


def test_a_log_does_not_show_it(caplog):
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("x").warning("token=%s %r", Secret(CANARY), (Secret(CANARY),))
    assert CANARY not in caplog.text


def test_it_is_no_json_by_mistake():
    with pytest.raises(TypeError):
        json.dumps({"token": Secret(CANARY)})


def test_equal_texts_are_equal_secrets_and_no_text_is_one():
    assert Secret("a") == Secret("a") != Secret("b")
    assert len({Secret("a"), Secret("a")}) == 1
    assert Secret("a") != "a"


def test_a_copy_that_goes_to_another_process_is_whole():
    for other in (pickle.loads(pickle.dumps(Secret(CANARY))), copy.deepcopy(Secret(CANARY))):
        assert other.reveal() == CANARY
