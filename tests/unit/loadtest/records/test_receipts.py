"""What an answer says of each record: acknowledged, refused, or not known."""

import json

import pytest

from loadtest.records.receipts import Fate, RecordReceipt, parse_answer, unanswered


def answer(*items):
    return json.dumps({"offsets": list(items)}).encode()


GOOD = {"partition": 2, "offset": 7, "error_code": None, "error": None}


def test_receipts_are_in_the_order_of_the_records():
    parsed = parse_answer(200, answer(GOOD, {**GOOD, "offset": 8}), 2)
    assert parsed.receipts == (
        RecordReceipt(Fate.ACKNOWLEDGED, 2, 7),
        RecordReceipt(Fate.ACKNOWLEDGED, 2, 8),
    )
    assert parsed.trouble == ""
    assert not parsed.is_final


def test_without_acknowledgement_there_is_no_offset():
    parsed = parse_answer(200, answer({**GOOD, "offset": None}), 1)
    assert parsed.receipts == (RecordReceipt(Fate.ACKNOWLEDGED, 2, -1),)


@pytest.mark.parametrize(
    ("status", "fate", "is_final"),
    [
        (503, Fate.REFUSED, False),
        (429, Fate.REFUSED, False),
        (408, Fate.REFUSED, False),
        (422, Fate.REFUSED, True),
        (504, Fate.UNKNOWN, False),
        (500, Fate.UNKNOWN, False),
        (502, Fate.UNKNOWN, False),
    ],
)
def test_a_status_decides_for_all_records(status, fate, is_final):
    parsed = parse_answer(status, b"why", 3)
    assert parsed.receipts == (RecordReceipt(fate),) * 3
    assert parsed.is_final is is_final
    assert parsed.trouble == f"HTTP {status} why"


def test_records_may_have_fates_of_their_own():
    parsed = parse_answer(
        200,
        answer(GOOD, {"error_code": 50302, "error": "no leader"}, {"error_code": 50401}),
        3,
    )
    assert [receipt.fate for receipt in parsed.receipts] == [
        Fate.ACKNOWLEDGED,
        Fate.REFUSED,
        Fate.UNKNOWN,
    ]
    assert parsed.trouble == "50302 no leader"
    assert not parsed.is_final


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"offsets":3}', b'{"offsets":[1]}', b'{"offsets":[]}', answer(GOOD, GOOD),
             answer({"offset": 1}), answer({**GOOD, "partition": None})],
)  # fmt: skip
def test_an_answer_that_makes_no_sense_says_nothing(body):
    parsed = parse_answer(200, body, 1)
    assert parsed.receipts == (RecordReceipt(Fate.UNKNOWN),)
    assert parsed.trouble


def test_what_was_not_sent_was_not_written():
    assert unanswered(1, "refused", is_sent=False).receipts == (RecordReceipt(Fate.REFUSED),)
    assert unanswered(1, "refused", is_sent=False).is_unsent
    assert unanswered(1, "broke", is_sent=True).receipts == (RecordReceipt(Fate.UNKNOWN),)
