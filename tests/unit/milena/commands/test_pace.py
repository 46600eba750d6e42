"""When records are due at a rate."""

from milena.commands.producing.pace import RecordSchedule


def test_records_are_due_at_even_steps_from_the_first_on():
    pace = RecordSchedule(10)
    assert [round(pace.next_due(now), 3) for now in (5.0, 5.0, 5.0)] == [5.0, 5.1, 5.2]


def test_a_sender_that_was_held_up_catches_up_with_a_second_and_no_more():
    pace = RecordSchedule(10, catch_up_s=1.0)
    pace.next_due(0.0)
    assert pace.next_due(60.0) == 59.0


def test_without_that_bound_what_is_late_stays_late():
    pace = RecordSchedule(10, catch_up_s=float("inf"))
    pace.next_due(0.0)
    assert round(pace.next_due(60.0), 3) == 0.1
