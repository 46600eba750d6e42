"""Rules of broker sessions."""

from node.control.broker_sessions import BrokerSessions


def sessions() -> BrokerSessions:
    table = BrokerSessions(session_ms=1_500)
    table.arm({1: 10, 2: 20}, 0)
    return table


def beat(table: BrokerSessions, now_ms: int, echo: int = 0, epoch: int = 20) -> int | None:
    return table.on_heartbeat(
        2,
        epoch,
        echo=echo,
        applied_index=5,
        is_draining=False,
        is_disk_full=False,
        now_ms=now_ms,
    )


def test_session_ends_without_heartbeats() -> None:
    table = sessions()
    assert table.is_alive(2, 1_500)
    assert not table.is_alive(2, 1_501)
    assert list(table.expired(1_501)) == [1, 2]


def test_heartbeat_that_echoes_the_last_answer_extends() -> None:
    table = sessions()
    first = beat(table, 1_000)
    assert first is not None
    beat(table, 1_250, echo=first)
    assert table.is_alive(2, 2_750)
    assert not table.is_alive(2, 2_751)


def test_heartbeat_extends_as_far_as_the_answer_that_it_echoes_is_young() -> None:
    # Of a slow network: each heartbeat echoes the answer before the last.
    table = sessions()
    numbers = [beat(table, 300)]
    for turn in range(2, 20):
        numbers.append(beat(table, turn * 300, echo=numbers[-2] if turn > 2 else numbers[-1]))
        assert table.is_alive(2, turn * 300 + 1_100)
    assert not table.is_alive(2, 19 * 300 + 1_500)


def test_an_echo_that_never_changes_extends_no_further() -> None:
    table = sessions()
    first = beat(table, 1_000)
    assert first is not None
    for now_ms in range(1_300, 4_000, 300):
        beat(table, now_ms, echo=first)
    assert not table.is_alive(2, 1_000 + 250 + 1_501)


def test_heartbeat_of_a_broker_that_cannot_hear_us_does_not_extend() -> None:
    table = sessions()
    beat(table, 1_000)
    beat(table, 2_000, echo=0)
    beat(table, 2_400, echo=0)
    assert not table.is_alive(2, 2_501)


def test_stale_broker_epoch_is_refused_and_extends_nothing() -> None:
    table = sessions()
    assert beat(table, 1_000, epoch=19) is None
    assert not table.is_alive(2, 1_501)


def test_registration_under_a_new_epoch_starts_a_session() -> None:
    table = sessions()
    table.arm({1: 10, 2: 21}, 5_000)
    assert table.is_alive(2, 6_500)
    assert not table.is_alive(1, 6_500)


def test_ended_session_is_over_at_once_until_the_broker_speaks() -> None:
    table = sessions()
    table.end(2)
    assert not table.is_alive(2, 1)
    beat(table, 10)
    assert table.is_alive(2, 11)


def test_rearm_forgives_what_was_missed_during_our_own_stall() -> None:
    table = sessions()
    table.rearm(9_000)
    assert table.is_alive(2, 10_500)


def test_backdate_counts_from_an_earlier_sign_of_life_unless_the_broker_spoke_since() -> None:
    table = sessions()
    table.arm({1: 10, 2: 20, 3: 30}, 1_000)
    table.backdate(3, 200)
    assert not table.is_alive(3, 1_701)
    beat(table, 1_000)
    table.backdate(2, -900)
    assert table.is_alive(2, 1_701)


def test_gone_broker_is_forgotten() -> None:
    table = sessions()
    table.arm({1: 10}, 0)
    assert table.get(2) is None
