"""How long failures are put up with."""

from milena.reading.patience import BAD_ANSWERS_MAX, WAIT_MS_MAX, Patience


def test_waits_double_up_to_a_bound_and_fit_into_the_limit():
    patience, now_ms, waits = Patience(4_000), 100.0, []
    while (wait_ms := patience.on_failure(now_ms)) is not None:
        waits.append(wait_ms)
        now_ms += wait_ms
    assert waits[:7] == [20, 40, 80, 160, 320, 640, WAIT_MS_MAX]
    assert sum(waits) == 4_000


def test_a_success_forgets_what_was_before():
    patience = Patience(1_000)
    for _ in range(5):
        assert patience.on_failure(0) is not None
    patience.on_success()
    assert patience.on_failure(5_000) == 20
    assert patience.on_failure(5_999) is not None
    assert patience.on_failure(6_000) is None


def test_bad_answers_in_a_row_are_few():
    patience = Patience(1e9)
    for _ in range(BAD_ANSWERS_MAX - 1):
        assert patience.on_failure(0, is_bad_answer=True) is not None
    assert patience.on_failure(0) is not None
    for _ in range(BAD_ANSWERS_MAX - 1):
        assert patience.on_failure(0, is_bad_answer=True) is not None
    assert patience.on_failure(0, is_bad_answer=True) is None
