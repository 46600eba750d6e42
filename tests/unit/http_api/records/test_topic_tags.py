"""Rules of topic ids that clients send back."""

import pytest

from http_api.describing.schemas import Fields
from http_api.protocol.errors import InvalidFieldError
from http_api.records.topic_tags import named_topic_id

ID = "9f3a12bc44de40718f6e2a63a1b5c7d9"


def fields(**values: object) -> Fields:
    return Fields(values, "the body", frozenset({"topic_id"}))


@pytest.mark.parametrize("found", [ID, ID[:12], ID[:20]])
def test_an_id_or_its_first_digits_name_a_topic(found: str) -> None:
    assert named_topic_id(fields(topic_id=found)) == found


def test_a_client_may_name_no_id() -> None:
    assert named_topic_id(fields()) == named_topic_id(fields(topic_id=None)) == ""


@pytest.mark.parametrize("wrong", ["", ID[:11], ID + "0", ID.upper(), "orders", f"{ID[:12]}.42"])
def test_anything_else_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidFieldError, match="topic_id"):
        named_topic_id(fields(topic_id=wrong))
