"""``milena rebalance`` and ``milena reassignments`` against a node on paper."""

import json

import pytest

from milena.commands import rebalance
from tests.support.command_lines import runner
from tests.support.fakes.api import FakeApi
from tests.support.http.http_server import serving


@pytest.fixture
async def api():
    fake = FakeApi()
    async with serving(fake.app()) as fake.url:
        yield fake


@pytest.fixture
def milena(api, capsys, monkeypatch):
    monkeypatch.setattr(rebalance, "POLL_MS", 1)

    return runner(api.url, capsys)


def asked(api):
    """The last request's method, path and JSON."""
    method, path, body = api.requests[-1]
    return method, path, json.loads(body) if body else None


async def test_it_asks_for_an_even_cluster_and_says_what_moves(api, milena):
    api.planned = [api.planned_move(), api.planned_move("u", after=(2, 1))]
    code, out, _ = await milena("rebalance")
    assert code == 0
    assert out.splitlines() == [
        "TOPIC  PARTITION  FROM  TO",
        "t              0  1,2   2,3",
        "u              0  1,2   2,1",
        "moving 2 partitions, 1 new replicas",
    ]
    assert asked(api) == ("POST", "/reassignments", {"rebalance": True, "dry_run": False})


async def test_options_reach_the_node(api, milena):
    words = ("--drain", "3", "--throttle", "50MB/s", "--max-concurrent", "0", "--dry-run")
    code, out, _ = await milena("rebalance", *words)
    assert (code, out) == (0, "nothing to move\n")
    assert asked(api)[2] == {
        "drain": 3, "throttle_bytes_per_s": 50_000_000, "max_concurrent": 0, "dry_run": True,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["fast", "-1", "1.0001k", "5X"])
async def test_a_throttle_that_is_no_number_is_a_wrong_command_line(milena, text):
    code, _, err = await milena("rebalance", "--throttle", text)
    assert code == 64
    assert "write 800000, 50M" in err


async def test_it_waits_until_everything_has_arrived(api, milena):
    api.planned = [api.planned_move()]
    far, near = api.running_move(bytes_left=None), api.running_move(bytes_left=10)
    api.moves = [[api.running_move(state="waiting")], [far], [near], [api.running_move("other")]]
    code, out, _ = await milena("rebalance", "--wait")
    assert code == 0
    assert out.splitlines()[-1].startswith("arrived after ")
    assert sum(path == "/reassignments" for _, path, _ in api.requests) == 5


async def test_what_was_refused_is_named(api, milena):
    api.planned = [api.planned_move(), api.planned_move("u", error="look again")]
    code, out, _ = await milena("rebalance")
    assert code == 1
    assert out.splitlines()[-2:] == ["u-0: look again", "moving 1 partitions, 1 new replicas"]
    code, out, _ = await milena("rebalance", "--json")
    assert code == 1
    assert [row["error"] for row in json.loads(out)["partitions"]] == [None, "look again"]


async def test_moves_are_listed_with_what_is_left(api, milena):
    api.moves = [[api.running_move(), api.running_move("u", state="waiting")]]
    code, out, _ = await milena("reassignments", "list")
    assert code == 0
    assert out.splitlines() == [
        "TOPIC  PARTITION  STATE        FROM  TO   IN-SYNC  BYTES-LEFT",
        "t              0  catching up  1,2   2,3  1,2            1000",
        "u              0  waiting      1,2   2,3  1,2               -",
    ]
    _, out, _ = await milena("reassignments", "list", "--json")
    assert json.loads(out)[0]["added"] == [
        {"node": 3, "is_in_sync": False, "offsets_left": 7, "bytes_left": 1000}
    ]


async def test_nothing_on_the_move(milena):
    assert await milena("reassignments", "list") == (0, "", "no moves in progress\n")


async def test_moves_are_taken_back(api, milena):
    api.planned = [api.planned_move(before=(2, 3), after=(1, 2), is_cancelled=True)]
    code, out, _ = await milena("reassignments", "cancel", "--topic", "t", "-p", "0")
    assert (code, out.splitlines()[-1]) == (0, "cancelled 1 partitions")
    assert asked(api)[:2] == ("DELETE", "/reassignments")
    api.planned = []
    assert (await milena("reassignments", "cancel"))[1] == "no moves in progress\n"
    assert (await milena("reassignments", "cancel", "--partition", "0"))[0] == 64
