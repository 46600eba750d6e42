"""Rules of the watch over a link: what silence means, and what it teaches."""

import pytest

from node.peers.codec import PeerChannel
from node.peers.watch import PATIENCE_MAX, RHYTHMS, WATCHED_MS, PeerWatch

RPC = RHYTHMS[PeerChannel.RPC]


def silent_rounds(watch: PeerWatch, count: int) -> None:
    for _ in range(count):
        watch.end_round(is_awaited=True)


def calm_rounds(watch: PeerWatch, count: int) -> None:
    for _ in range(count):
        watch.heard()
        watch.end_round(is_awaited=True)


def test_silence_makes_doubtful_then_silent_then_lost() -> None:
    watch = PeerWatch(RPC)
    silent_rounds(watch, RPC.silent_rounds // 2 - 1)
    assert not watch.is_doubtful
    silent_rounds(watch, 1)
    assert watch.is_doubtful
    silent_rounds(watch, RPC.silent_rounds // 2 - 1)
    assert watch.end_round(is_awaited=True).has_failed
    assert watch.is_silent
    assert not watch.is_doubtful
    assert watch.silent_ms == 800
    silent_rounds(watch, RPC.lost_rounds - RPC.silent_rounds - 1)
    assert watch.end_round(is_awaited=True).is_lost


def test_a_byte_ends_doubt_and_silence_at_once() -> None:
    watch = PeerWatch(RPC)
    silent_rounds(watch, RPC.silent_rounds)
    watch.heard()
    assert not watch.is_silent
    silent_rounds(watch, 1)
    assert not watch.is_doubtful


@pytest.mark.parametrize("channel", [PeerChannel.CONTROL, PeerChannel.FETCH])
def test_what_tells_that_a_peer_is_back_is_never_held_back(channel: PeerChannel) -> None:
    watch = PeerWatch(RHYTHMS[channel])
    silent_rounds(watch, watch.rhythm.silent_rounds - 1)
    assert not watch.is_doubtful


def test_every_round_asks_for_a_sign_unless_a_call_does() -> None:
    watch = PeerWatch(RPC)
    assert watch.end_round(is_awaited=True).wants_ping
    watch.heard()
    assert watch.end_round(is_awaited=False).wants_ping
    watch.heard()
    watch.asked()
    assert not watch.end_round(is_awaited=False).wants_ping
    watch.asked()
    assert watch.end_round(is_awaited=True).wants_ping, "the call may wait for something else"


def test_a_link_in_use_is_watched_between_calls_and_an_unused_one_is_not() -> None:
    watch = PeerWatch(RPC)
    watch.asked()
    rounds = 0
    while True:
        watch.heard()
        if watch.end_round(is_awaited=False).is_last:
            break
        rounds += 1
    assert rounds == WATCHED_MS // RPC.ping_ms - 1
    assert not watch.end_round(is_awaited=False).is_last, "a silent peer is watched until it speaks"


def test_a_slow_peer_is_waited_for_longer_and_forgotten_to_be_slow_in_calm() -> None:
    watch = PeerWatch(RPC)
    silent_rounds(watch, RPC.silent_rounds)
    calm_rounds(watch, 1)
    assert watch.patience == 2 * RPC.silent_rounds
    silent_rounds(watch, 2 * RPC.silent_rounds)
    calm_rounds(watch, 1)
    assert watch.patience == PATIENCE_MAX * RPC.silent_rounds
    calm_rounds(watch, 1_000)
    assert watch.patience == RPC.silent_rounds


def test_an_outage_teaches_no_patience() -> None:
    watch = PeerWatch(RPC)
    silent_rounds(watch, 2 * RPC.silent_rounds + 1)
    calm_rounds(watch, 1)
    assert watch.patience == RPC.silent_rounds
