"""Commands for nodes, partitions (``milena.commands.partitions``), topics and groups, against a node on paper."""

import json

import pytest

from milena.cluster.moves import with_replicas
from milena.cluster.view import ClusterView, NodeView, PartitionView, TopicView
from milena.records import TopicPartition
from tests.support.command_lines import runner
from tests.support.fakes.api import FakeApi
from tests.support.http.http_server import serving


@pytest.fixture
async def api():
    fake = FakeApi()
    async with serving(fake.app()) as fake.url:
        for broker in fake.brokers:
            broker["url"] = fake.url
        yield fake


@pytest.fixture
def milena(api, capsys):
    return runner(api.url, capsys)


def sent(api, method):
    return [json.loads(body) for verb, _, body in api.requests if verb == method and body]


# -- nodes and partitions ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "told"), [("leader", "voter"), ("follower", "voter"), ("observer", "observer")]
)
async def test_nodes_are_listed_with_what_they_say_themselves(api, milena, role, told):
    api.metrics = f'milena_ready 1.0\nmilena_raft_role{{role="{role}"}} 1.0\n'
    api.brokers[1]["rack"] = "r2"
    code, out, _ = await milena("nodes", "list")
    assert code == 0
    assert out.splitlines()[2].split() == ["2", "up", "0", told, "r2", "0.1.0", api.url]
    _, out, _ = await milena("nodes", "list", "--json")
    row = json.loads(out)[1]
    assert (row["rack"], row["version"], row["is_voter"]) == ("r2", "0.1.0", told == "voter")


async def test_a_node_that_shows_no_metrics_is_listed_with_its_version(api, milena):
    api.is_metrics_denied = True
    _, out, _ = await milena("nodes", "list")
    assert out.splitlines()[2].split() == ["2", "up", "0", "-", "-", "0.1.0", api.url]


async def test_a_drain_is_confirmed_and_moves_everything_away(api, milena):
    api.planned = [api.planned_move()]
    code, _, err = await milena("nodes", "drain", "1")
    assert (code, "say --yes" in err, sent(api, "POST")) == (64, True, [])
    code, out, _ = await milena("nodes", "drain", "1", "--dry-run")
    assert (code, out.splitlines()[-1]) == (0, "would move 1 partitions, 1 new replicas")
    code, out, _ = await milena("nodes", "drain", "1", "--yes", "--throttle", "5Mi")
    assert (code, out.splitlines()[-1]) == (0, "moving 1 partitions, 1 new replicas")
    assert sent(api, "POST")[-1] == {"drain": 1, "dry_run": False, "throttle_bytes_per_s": 5 << 20}


async def test_undo_cancels_the_moves_away_from_the_node_and_no_others(api, milena):
    api.moves = [[api.running_move("t"), {**api.running_move("u"), "replicas": [1, 3]}]]
    api.planned = [api.planned_move(is_cancelled=True)]
    code, out, _ = await milena("nodes", "drain", "1", "--undo")
    assert (code, out.splitlines()[-1]) == (0, "cancelled 1 partitions")
    assert sum(method == "DELETE" for method, _, _ in api.requests) == 1
    code, out, _ = await milena("nodes", "drain", "3", "--undo")
    assert (code, out.startswith("no move away from node 3")) == (0, True)


async def test_a_partition_is_moved_to_the_named_nodes(api, milena):
    api.planned = [api.planned_move()]
    code, _, _ = await milena("partitions", "move", "t", "-p", "0", "-p", "2", "--to", "2,3")
    assert code == 0
    moves = [{"topic": "t", "partition": p, "replicas": [2, 3]} for p in (0, 2)]
    assert sent(api, "POST") == [{"partitions": moves, "dry_run": False}]


async def test_a_move_to_the_same_replicas_changes_nothing_and_says_so(api, milena):
    same, other = api.planned_move(before=(1, 2), after=(1, 2)), api.planned_move("u")
    api.planned = [same]
    words = ("partitions", "move", "t", "-p", "0", "--to", "1,2")
    assert (await milena(*words, "--dry-run"))[1].splitlines()[-1] == "nothing would change"
    assert (await milena(*words))[1].splitlines()[-1] == "nothing changes"
    assert (await milena(*words, "--wait"))[1].splitlines()[-1] == "nothing changes"
    api.planned = [same, other]
    summary = "would move 1 partitions, 1 new replicas; 1 stays as it is"
    assert (await milena(*words, "--dry-run"))[1].splitlines()[-1] == summary
    api.planned = [api.planned_move(before=(1, 2), after=(2, 1))]
    assert (await milena(*words, "--dry-run"))[1].splitlines()[-1] == "would move 1 partitions"


@pytest.mark.parametrize("to", ["", "a", "1,", "1,1", "0", "-1", "1.5", "99999999999"])
async def test_a_list_of_nodes_that_is_none_is_a_wrong_command_line(api, milena, to):
    code, _, err = await milena("partitions", "move", "t", "-p", "0", "--to", to)
    assert (code, "--to" in err, api.requests) == (64, True, [])


async def test_the_preferred_leader_comes_first_and_the_others_stay(api, milena):
    api.add_topic("t", replicas=(1, 2, 3), leader=1)
    api.planned = [api.planned_move()]
    code, out, _ = await milena("partitions", "lead", "t", "-p", "0", "--by", "3")
    told = (
        "node 3 is the preferred leader of t-0. Node 1 leads it until the cluster balances leaders next, "
        "by default within a minute\n"
    )
    assert (code, out) == (0, told)
    assert sent(api, "POST")[-1]["partitions"][0]["replicas"] == [3, 1, 2]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("-p", "0", "--by", "4"), 64, "node 4 holds no replica of t-0; these do: 1,2,3"),
        (("-p", "5", "--by", "1"), 4, "topic 't' has partitions 0 to 0, not 5"),
    ],
)
async def test_a_leader_without_a_replica_is_refused(api, milena, words, code, told):
    api.add_topic("t")
    found, _, err = await milena("partitions", "lead", "t", *words)
    assert (found, told in err, sent(api, "POST")) == (code, True, [])


async def test_a_preferred_leader_that_is_draining_is_refused(api, milena):
    api.add_topic("t")
    api.brokers[2]["is_draining"] = True
    told = (
        "milena: node 3 is draining and leads nothing until it is started again: "
        "start it again, or choose one of 1,2\n"
    )
    assert await milena("partitions", "lead", "t", "-p", "0", "--by", "3") == (1, "", told)
    assert sent(api, "POST") == []


@pytest.mark.parametrize(
    ("leader", "isr", "is_fenced", "told"),
    [
        (3, (1, 2, 3), False, "It leads it already"),
        (1, (1, 2), False, "Node 1 leads it until the replica of node 3 is in sync, and"),
        (1, (1, 2), True, "Node 1 leads it until node 3 is up, its replica is in sync, and"),
        (None, (3,), True, "It has no leader until node 3 is up, its replica is in sync, and"),
    ],
)
async def test_a_preferred_leader_is_told_what_it_waits_for(
    api, milena, leader, isr, is_fenced, told
):
    api.add_topic("t", isr=isr, leader=leader)
    api.brokers[2]["is_fenced"] = is_fenced
    api.planned = [api.planned_move()]
    code, out, _ = await milena("partitions", "lead", "t", "-p", "0", "--by", "3")
    assert code == 0
    assert out.startswith(f"node 3 is the preferred leader of t-0. {told}")


# -- topics ------------------------------------------------------------------------------------


def view_of(*replicas, nodes=(1, 2, 3, 4), racks=None, isr=None, down=()):
    return ClusterView(
        cluster_id="c",
        version=1,
        controller_id=1,
        nodes=tuple(
            NodeView(
                node_id=n,
                url="",
                rack=(racks or {}).get(n),
                is_live=n not in down,
                is_draining=False,
            )
            for n in nodes
        ),
        topics=(
            TopicView(
                name="t",
                partitions=tuple(
                    PartitionView(
                        partition=p, leader=r[0], leader_epoch=0, replicas=r, isr=isr or r
                    )
                    for p, r in enumerate(replicas)
                ),
            ),
        ),
    )


def resized(view, factor):
    return [*with_replicas(view, "t", factor).values()]


def test_new_replicas_go_to_the_nodes_with_the_fewest():
    assert resized(view_of((1,), (1,), (2,)), 2) == [[1, 3], [1, 4], [2, 3]]


def test_new_replicas_go_to_other_racks_first():
    assert resized(view_of((1,), racks={1: "a", 2: "a", 3: "b", 4: "b"}), 2) == [[1, 3]]


def test_new_replicas_go_to_no_node_that_is_down():
    assert resized(view_of((1,), down=(2, 3)), 2) == [[1, 4]]
    with pytest.raises(ValueError, match="3 replicas need 3 nodes that are up"):
        resized(view_of((1,), down=(2, 3)), 3)


def test_replicas_out_of_sync_are_dropped_first_and_the_leader_last():
    assert resized(view_of((1, 2, 3), isr=(1, 3)), 2) == [[1, 3]]
    assert resized(view_of((1, 2, 3), isr=(1, 3)), 1) == [[1]]
    assert resized(view_of((1, 2, 3), isr=(3,)), 1) == [[3]]


def test_partitions_that_have_the_number_do_not_move():
    assert with_replicas(view_of((1, 2), (3,)), "t", 2).keys() == {TopicPartition("t", 1)}


async def test_the_replication_factor_is_changed_by_moves(api, milena):
    api.add_topic("t", replicas=(1, 2))
    api.planned = [api.planned_move()]
    code, out, _ = await milena("topics", "alter", "t", "--replication-factor", "3")
    assert (code, "replication factor 3" in out, "reassignments list" in out) == (0, True, True)
    assert sent(api, "POST")[-1]["partitions"][0]["replicas"] == [1, 2, 3]


async def test_several_topics_are_created_and_deleted_by_one_command(api, milena):
    code, out, _ = await milena("topics", "create", "a", "b", "a")
    assert code == 0
    assert [line.split(":")[0] for line in out.splitlines()] == [
        "created topic a",
        "created topic b",
    ]
    code, out, err = await milena("topics", "delete", "a", "gone", "b", "--yes")
    assert (code, out, "'gone'" in err) == (4, "deleted topic a\n", True)
    assert [*api.topics] == ["b"]


async def test_several_groups_are_deleted_by_one_command(api, milena):
    api.groups.describe("g")
    api.groups.describe("h")
    code, out, _ = await milena("groups", "delete", "g", "h", "--yes", "--json")
    assert (code, out.count('"deleted"')) == (0, 2)
    assert api.groups.described == {}


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("retention.ms=3d", "259200000"),
        ("retention.ms=-1", "-1"),
        ("segment.bytes=64M", "64000000"),
        ("segment.bytes=64Mi", "67108864"),
        ("flush.messages=5", "5"),
        ("cleanup.policy=compact", "compact"),
        ("min.cleanable.dirty.ratio=0.5", "0.5"),
    ],
)
async def test_settings_may_have_units(api, milena, said, value):
    code, _, _ = await milena("topics", "create", "t", "--config", said)
    assert (code, api.topics["t"]["configs"][said.split("=")[0]]) == (0, value)


# -- groups ------------------------------------------------------------------------------------


async def test_a_dry_run_shows_the_offsets_and_resets_nothing(api, milena):
    api.groups.describe("g", offsets={"t": {0: 10}})
    words = ("groups", "reset", "g", "--topic", "t", "--to-offset", "latest", "--dry-run")
    code, out, _ = await milena(*words)
    assert code == 0
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["t", "0", "10", "42"],
        ["t", "1", "-", "42"],
    ]
    assert sent(api, "POST") == []


@pytest.mark.parametrize(
    ("shift", "offset"), [("5", 15), ("-5", 5), ("-20", 2), ("1k", 42), ("-1k", 2), ("0", 10)]
)
async def test_a_shift_ends_at_the_start_and_the_end(api, milena, shift, offset):
    api.groups.describe("g", offsets={"t": {0: 10}})
    words = ("groups", "reset", "g", "--topic", "t", "--shift-by", shift, "--yes", "--json")
    code, out, _ = await milena(*words)
    assert code == 0
    assert json.loads(out) == [{"topic": "t", "partition": 0, "before": 10, "offset": offset}]


async def test_several_topics_are_reset_and_no_partition_that_was_not_named(api, milena):
    api.groups.ends["u"] = 9
    api.groups.describe("g", offsets={"t": {0: 10, 1: 10}})
    topics = ("--topic", "t", "--topic", "u")
    words = ("groups", "reset", "g", *topics, "-p", "1", "--to-offset", "latest", "--yes", "--json")
    code, out, _ = await milena(*words)
    assert code == 0
    assert [(r["topic"], r["partition"], r["offset"]) for r in json.loads(out)] == [
        ("t", 1, 7),
        ("u", 1, 7),
    ]
    assert [body["partitions"] for _, body in api.groups.bodies] == [[1], [1]]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--shift-by", "1"), 1, "no committed offset to shift"),
        (("--to-offset", "1", "-p", "7"), 4, "topic 't' has partitions 0 to 1, not 7"),
        (("--to-offset", "1", "--shift-by", "1"), 64, "give one of"),
    ],
)
async def test_a_reset_without_sense_is_refused(api, milena, words, code, told):
    api.groups.describe("g")
    found, _, err = await milena("groups", "reset", "g", "--topic", "t", "--yes", *words)
    assert (found, told in err, sent(api, "POST")) == (code, True, [])


# -- access ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "mode", "code"),
    [
        (None, "off", 64),
        ("alice", "off", 64),
        ("bare", "off", 64),
        ("gone", "off", 64),
        ("root", "off", 0),
        (None, "optional", 0),
    ],
)
async def test_closing_a_cluster_takes_the_name_of_a_superuser(
    api, milena, monkeypatch, user, mode, code
):
    api.access.add_user("root", "x", is_superuser=True)
    api.access.add_user("bare", is_superuser=True)
    api.access.add_user("alice", "x")
    api.access.mode = mode
    if user is not None:
        monkeypatch.setenv("MILENA_USER", user)
        monkeypatch.setenv("MILENA_PASSWORD", "x")
    found, _, err = await milena("access", "set", "required")
    assert (found, "would lock you out" in err) == (code, code == 64)
    assert api.access.mode == (mode if code else "required")
    assert (await milena("access", "set", "required", "--yes"))[0] == 0
