"""How long a client goes on while no node has ever responded."""

from math import inf

from milena.cluster.first_contact import LATE_CALL_MS, PAUSE_MS_MAX, FirstContact


def test_calls_end_when_the_time_is_over():
    contact = FirstContact(10_000)
    assert contact.deadline_ms(500) == 10_500
    assert not contact.on_failure(3_500, "refused")
    assert contact.deadline_ms(3_600) == 10_500


def test_the_last_attempt_is_the_one_after_which_another_could_be_late():
    contact = FirstContact(10_000)
    contact.deadline_ms(0)
    assert not contact.on_failure(10_000 - PAUSE_MS_MAX, "refused")
    assert contact.on_failure(10_001 - PAUSE_MS_MAX, "refused")


def test_a_call_after_that_is_short_and_the_last():
    contact = FirstContact(10_000)
    contact.deadline_ms(0)
    contact.on_failure(9_900, "refused")
    assert contact.deadline_ms(12_000) == 12_000 + LATE_CALL_MS
    assert contact.on_failure(12_001, "refused")


def test_a_program_that_did_other_things_meanwhile_has_the_whole_time_again():
    contact = FirstContact(10_000)
    contact.deadline_ms(0)
    assert not contact.on_failure(100, "refused")
    assert contact.deadline_ms(60_000) == 70_000
    assert not contact.on_failure(60_001, "refused")


def test_after_the_first_response_nothing_is_limited():
    contact = FirstContact(10_000)
    contact.deadline_ms(0)
    contact.on_failure(1, "refused")
    contact.is_made = True
    assert contact.deadline_ms(60_000) == inf
    assert contact.news() is None


def test_the_reasons_are_told_once_when_another_call_follows():
    contact = FirstContact(10_000)
    assert contact.news() is None
    contact.on_failure(1, "refused")
    assert [contact.news(), contact.news()] == ["refused", None]
