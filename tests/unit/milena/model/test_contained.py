"""What is logged and counted of errors that a node survives."""

from milena.model import contained
from milena.model.contained import ContainedErrors, EntryPoint


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def test_a_kind_is_logged_with_its_traceback_once_and_counted_each_time(caplog):
    errors = ContainedErrors()
    for number in range(3):
        errors.report(
            EntryPoint.PEER, raised(ValueError(f"bad {number}")), "request_id", f"{number}"
        )
    assert errors.counts[EntryPoint.PEER] == 3
    assert caplog.text.count("Traceback") == 1
    assert "request_id=0" in caplog.text
    assert "unexpected error again request_id=2 entry=peer type=ValueError" in caplog.text


def test_another_type_place_or_entry_point_is_another_kind(caplog):
    errors = ContainedErrors()
    errors.report(EntryPoint.PEER, raised(ValueError()), "task", "a")
    errors.report(EntryPoint.PEER, raised(KeyError()), "task", "b")
    errors.report(EntryPoint.API, raised(ValueError()), "task", "c")
    try:
        int("x")
    except ValueError as error:
        errors.report(EntryPoint.API, error, "task", "d")
    errors.report(EntryPoint.API, IndexError(), "task", "never raised")
    assert caplog.text.count("unexpected error again") == 0
    assert sum(errors.counts.values()) == 5


def test_kinds_that_are_remembered_are_bounded(monkeypatch, caplog):
    monkeypatch.setattr(contained, "KINDS_MAX", 1)
    errors = ContainedErrors()
    errors.report(EntryPoint.API, raised(ValueError()), "task", "a")
    errors.report(EntryPoint.API, raised(KeyError()), "task", "b")
    assert caplog.text.count("Traceback") == 1
    assert errors.counts[EntryPoint.API] == 2
