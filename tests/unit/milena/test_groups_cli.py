"""``milena groups`` against a node on paper: what it prints, what it asks, what its exit codes say."""

import json

import pytest

from milena.cluster.group_admin import GroupAdmin
from milena.records import LastN
from tests.support.command_lines import runner
from tests.support.fakes.api import FakeApi
from tests.support.http.http_server import serving


@pytest.fixture
async def api():
    fake = FakeApi()
    fake.add_topic("t", partitions=2)
    async with serving(fake.app()) as fake.url:
        yield fake


@pytest.fixture
def milena(api, capsys):
    return runner(api.url, capsys)


async def test_list_has_a_line_a_group(api, milena):
    assert await milena("groups", "list") == (0, "", "no groups\n")
    api.groups.describe("b", members=[api.groups.member("m")], state="STABLE", kind="classic")
    api.groups.describe("a")
    code, out, _ = await milena("groups", "list")
    assert code == 0
    assert out.splitlines() == [
        "GROUP  KIND     STATE   MEMBERS  GENERATION  ASSIGNOR  COORDINATOR",
        "a      server   EMPTY         0           3  sticky              2",
        "b      classic  STABLE        1           3  sticky              2",
    ]
    _, out, _ = await milena("groups", "list", "--json")
    assert [(g["group_id"], g["member_count"]) for g in json.loads(out)] == [("a", 0), ("b", 1)]


async def test_describe_shows_offset_lag_and_owner_of_each_partition(api, milena):
    member = api.groups.member("m1", assignment=[("t", [0, 1])])
    api.groups.describe("g", members=[member], offsets={"t": {0: 40}}, state="STABLE")
    code, out, _ = await milena("groups", "describe", "g")
    assert code == 0
    assert out.splitlines() == [
        "group g: STABLE, generation 3, 1 members, coordinator 2, lag -",
        "",
        "MEMBER  CLIENT  HOST      KIND    EPOCH  HAS  GIVES BACK  WAITS FOR",
        "m1      app     10.0.0.1  native      3    2           0          0",
        "",
        "TOPIC  PARTITION  OFFSET  END OFFSET  LAG  MEMBER",
        "t              0      40          42    2  m1",
        "t              1       -          42    -  m1",
    ]
    _, out, _ = await milena("groups", "describe", "g", "--json")
    found = json.loads(out)
    assert found["lag"] is None, "of partition 1 it is not known"
    assert found["partitions"][1] == {
        "topic": "t",
        "partition": 1,
        "offset": None,
        "end_offset": 42,
        "lag": None,
        "member_id": "m1",
    }
    assert found["members"][0]["assignment"] == [
        {"topic": "t", "partition": 0},
        {"topic": "t", "partition": 1},
    ]


async def test_several_groups_are_described_one_after_the_other(api, milena):
    api.groups.describe("a")
    api.groups.describe("b")
    code, out, err = await milena("groups", "describe", "a", "b", "a")
    assert (code, err) == (0, "")
    assert [line.split(":")[0] for line in out.split("\n\n")] == ["group a", "group b"]
    code, out, err = await milena("groups", "describe", "a", "nope", "b", "--json")
    assert (code, json.loads(out)["group_id"]) == (4, "a")
    assert "nope" in err


@pytest.mark.parametrize(
    ("words", "to"),
    [
        (("--to-offset", "7"), 7),
        (("--to-offset", "earliest"), "earliest"),
        (("--to-offset", "latest", "-p", "1"), "latest"),
        (("--to-time", "2026-01-31T12:00:00Z"), "2026-01-31T12:00:00+00:00"),
    ],
)
async def test_reset_says_where_to(api, milena, words, to):
    api.groups.describe("g")
    code, out, _ = await milena("groups", "reset", "g", "--topic", "t", *words, "--yes")
    assert code == 0
    ((_, body),) = api.groups.bodies
    assert body["topic"] == "t"
    assert body["to"] == to
    assert out.splitlines()[0].split() == ["TOPIC", "PARTITION", "BEFORE", "OFFSET"]
    assert body.get("partitions") == ([1] if "-p" in words else None)


async def test_reset_says_that_a_group_is_new(api, milena):
    api.groups.describe("g")
    words = ("--topic", "t", "--to-offset", "7")
    _, _, err = await milena("groups", "reset", "g", *words, "--yes")
    assert err == ""
    code, _, err = await milena("groups", "reset", "gg", *words)
    assert code == 64
    assert "there is no group gg, and it would be created: say --yes" in err
    assert [path for path, _ in api.groups.bodies] == ["/groups/g/offsets:reset"]
    code, out, err = await milena("groups", "reset", "gg", *words, "--yes", "--json")
    assert code == 0
    assert "group gg is new" in err
    assert json.loads(out)[0] == {"topic": "t", "partition": 0, "before": None, "offset": 7}


async def test_a_dry_run_is_refused_as_the_reset_would_be(api, milena):
    api.groups.describe("busy", members=[api.groups.member("m")])
    words = ("groups", "reset", "busy", "--topic", "t", "--to-offset", "7")
    told = "milena: group busy has 1 member: stop it before its offsets are reset\n"
    assert await milena(*words, "--dry-run") == (1, "", told)
    assert await milena(*words) == (1, "", told), "before a question"
    assert api.groups.bodies == []


async def test_a_dry_run_says_that_the_group_would_be_created(api, milena):
    words = ("groups", "reset", "gg", "--topic", "t", "--to-offset", "7", "--dry-run")
    code, out, err = await milena(*words)
    assert (code, err) == (0, "there is no group gg: the reset would create it\n")
    assert len(out.splitlines()) == 3
    api.groups.describe("gg")
    assert (await milena(*words))[2] == ""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("describe", "nope"), 4),
        (("delete", "nope", "--yes"), 4),
        (("delete", "busy", "--yes"), 1),
        (("reset", "busy", "--topic", "t", "--to-offset", "1", "--yes"), 1),
        (("reset", "g", "--topic", "t", "--yes"), 64),
        (("reset", "g", "--topic", "t", "--to-offset", "x", "--yes"), 64),
        (("reset", "g", "--topic", "t", "--to-offset", "1"), 64),
        (("delete", "g"), 64),
        (("delete", "g", "--yes"), 0),
    ],
)
async def test_exit_codes(api, milena, words, code):
    api.groups.describe("busy", members=[api.groups.member("m")])
    api.groups.describe("g")
    found, _, err = await milena("groups", *words)
    assert found == code, err
    assert bool(err) == bool(code)


@pytest.mark.parametrize(
    "words", [("--order", "time"), ("--partition", "0"), ("--offset", "3")], ids=str
)
async def test_a_member_of_a_group_is_not_told_what_the_group_decides(milena, words):
    code, _, err = await milena("consume", "t", "--group", "g", *words)
    assert code == 64
    assert "--group" in err


async def test_a_member_of_a_group_needs_a_topic_that_is_there(milena):
    code, _, _ = await milena("consume", "nope", "--group", "g")
    assert code == 4


@pytest.mark.parametrize(("position", "error"), [("latest", TypeError), (LastN(3), ValueError)])
async def test_a_reset_to_what_is_no_offset_is_refused_before_anybody_is_asked(position, error):
    with pytest.raises(error, match=r"not a position|not to a number"):
        await GroupAdmin(None).reset_group("g", "t", position)


async def test_a_classic_group_is_named_as_one(api, milena):
    api.groups.describe("g", members=[api.groups.member("m1")], state="STABLE", kind="classic")
    _, out, _ = await milena("groups", "describe", "g")
    assert out.startswith("group g: classic, STABLE, generation 3, 1 members")
    assert "10.0.0.1  classic" in out
