"""Contenders take turns, turned round every other time; one that fails is left out and named."""

import pytest

from loadtest.bench.clients.http_load import HttpLoadError
from loadtest.bench.measuring.rounds import Contender, Turn, alternate
from loadtest.bench.measuring.samples import Quantity, Rounds
from loadtest.bench.servers.peers import PeerMissingError, executable
from loadtest.bench.stages.soak import growth_of


def _contender(name: str, order: list[str], *, fails_at: int = -1) -> Contender:
    async def turn(seconds: float) -> Turn:
        if order.count(name) == fails_at:
            raise HttpLoadError("it fell over")
        order.append(name)
        return Turn(latencies_s=[seconds], units=10, seconds=2)

    return Contender(name=name, turn=turn, pids=())


async def test_the_order_turns_round_and_the_first_turns_do_not_count():
    order: list[str] = []
    rounds, said = Rounds(), []
    contenders = [_contender("a", order), _contender("b", order)]
    await alternate(contenders, rounds, count=2, seconds=0.5, say=said.append)
    assert order == ["b", "a", "a", "b", "b", "a"]
    assert rounds.figures("a", Quantity.RATE) == [5, 5]
    assert rounds.figures("b", Quantity.P50) == [500, 500]
    assert said == ["round 1 of 2", "round 2 of 2"]


async def test_who_fails_is_left_out_from_then_on():
    order: list[str] = []
    rounds = Rounds()
    contenders = [_contender("a", order, fails_at=2), _contender("b", order)]
    await alternate(contenders, rounds, count=3, seconds=0.5, say=lambda _: None)
    assert rounds.failures == {"a": "a: it fell over"}
    assert len(rounds.figures("a", Quantity.RATE)) == 1
    assert len(rounds.figures("b", Quantity.RATE)) == 3
    assert len(rounds.ratios("b", "a", Quantity.RATE)) == 1


def test_a_peer_that_is_not_there_is_named_with_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(PeerMissingError, match="nginx is not installed; to get it: apt-get"):
        executable("nginx")
    (tmp_path / "nginx").touch()
    assert executable("nginx") == str(tmp_path / "nginx")


@pytest.mark.parametrize(
    ("values", "growth"),
    [([100] * 9, 0), ([50] * 3 + [100] * 3 + [110] * 3, 10), ([1] * 8, None)],
)
def test_growth_is_of_the_last_third_over_the_second(values, growth):
    assert growth_of(values) == (None if growth is None else pytest.approx(growth))
