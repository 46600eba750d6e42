"""The adapter of the library: its pinned version, and the queue of commands."""

import queue

import pytest

from milena.model.errors import StartupError
from raft_meta.consensus import library
from raft_meta.consensus.library import QUEUE_LENGTH_MAX, CommandQueue, Failure, check_version


def test_the_pinned_version_is_installed() -> None:
    check_version()


def test_another_version_refuses_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "VERSION", "0.3.18")
    with pytest.raises(StartupError, match=r"pysyncobj 0.3.18 is installed.*0.3.17"):
        check_version()


def test_only_two_failures_leave_a_command_in_doubt() -> None:
    in_doubt = {failure for failure in Failure if not failure.is_definite}
    assert in_doubt == {Failure.LEADER_CHANGED, Failure.UNKNOWN_OUTCOME}


def taking(refused: bytes = b"") -> CommandQueue:
    return CommandQueue(lambda command, _callback: command == refused)


def test_commands_leave_in_order() -> None:
    commands = taking()
    for command in (b"1", b"2"):
        commands.put_nowait((command, None))
    assert [commands.get_nowait()[0], commands.get_nowait()[0]] == [b"1", b"2"]
    with pytest.raises(queue.Empty):
        commands.get_nowait()


def test_a_withdrawn_command_does_not_leave() -> None:
    commands = taking()
    ticket = commands.put(b"1", None)
    commands.put(b"2", None)
    assert ticket is not None
    assert commands.withdraw(ticket)
    assert commands.get_nowait()[0] == b"2"
    assert len(commands) == commands.bytes == 0


def test_a_refused_command_is_passed_over() -> None:
    commands = taking(refused=b"1")
    commands.put(b"1", None)
    commands.put(b"2", None)
    assert commands.get_nowait()[0] == b"2"


def test_the_queue_is_bounded_in_number_and_bytes() -> None:
    commands = taking()
    for _ in range(QUEUE_LENGTH_MAX):
        assert commands.put(b"x", None) is not None
    with pytest.raises(queue.Full):
        commands.put_nowait((b"x", None))
    heavy = taking()
    assert heavy.put(bytes(64 << 20), None) is not None
    assert heavy.put(b"x", None) is None
