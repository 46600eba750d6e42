"""The command line against a node on paper: what it prints, what it asks, what its exit codes say."""

import asyncio
import json
from importlib.metadata import EntryPoint

import click
import pytest

from milena import cli
from tests.support.fake_api import FakeApi
from tests.support.http_server import serving


@pytest.fixture
async def api():
    fake = FakeApi()
    async with serving(fake.app()) as fake.url:
        yield fake


@pytest.fixture
def milena(api, capsys):
    async def call(*words):
        code = await asyncio.to_thread(cli.run, ["--url", api.url, *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


async def test_status_of_a_healthy_cluster_exits_0(api, milena):
    api.add_topic("flights", partitions=6)
    code, out, _ = await milena("status")
    assert code == 0
    assert out.splitlines()[0] == "cluster c1: 1 topics, 6 partitions"
    assert out.splitlines()[-1] == "healthy"


async def test_status_names_under_replicated_partitions_and_exits_1(api, milena):
    api.add_topic("flights", partitions=2, isr=(1, 3))
    code, out, _ = await milena("status")
    assert code == 1
    assert "flights          0       1  1,2,3     1,3      under-replicated" in out
    assert out.splitlines()[-1] == "degraded: 2 partitions under-replicated"


@pytest.mark.parametrize("trouble", ["fenced", "leaderless", "no controller"])
async def test_status_is_degraded_by(api, milena, trouble):
    api.add_topic("flights", leader=None if trouble == "leaderless" else 1)
    if trouble == "fenced":
        api.brokers[1] = api.broker(2, is_fenced=True)
    if trouble == "no controller":
        api.controller_id = None
    code, out, _ = await milena("status", "--json")
    assert code == 1
    assert json.loads(out)["is_healthy"] is False


async def test_status_json_is_the_whole_view(api, milena):
    api.add_topic("flights", partitions=2, isr=(1,))
    _, out, _ = await milena("status", "--json")
    view = json.loads(out)
    assert [n["node_id"] for n in view["nodes"]] == [1, 2, 3]
    assert view["under_replicated"] == [
        {"topic": "flights", "partition": 0},
        {"topic": "flights", "partition": 1},
    ]
    assert view["topics"][0]["partitions"][0]["isr"] == [1]


async def test_no_node_exits_2_with_one_line(capsys, unused_tcp_port):
    url = f"http://127.0.0.1:{unused_tcp_port}"
    code = await asyncio.to_thread(cli.run, ["--url", url, "status"])
    assert code == 2
    assert capsys.readouterr().err == f"milena: cannot reach {url}: connection refused\n"


async def test_url_comes_from_the_environment(api, capsys, monkeypatch):
    monkeypatch.setenv("MILENA_URL", api.url)
    assert await asyncio.to_thread(cli.run, ["topics", "list"]) == 0
    assert capsys.readouterr().err == "no topics\n"


async def test_create_sends_what_was_asked(api, milena):
    code, out, _ = await milena(
        "topics", "create", "flights", "--partitions", "6", "--replication-factor", "3",
        "--config", "retention.ms=1000", "--config", "a=b=c",
    )  # fmt: skip
    assert code == 0
    assert out == "created topic flights: 6 partitions, replication factor 3\n"
    sent = next(json.loads(body) for method, _, body in api.requests if method == "POST")
    assert sent == {
        "topic_name": "flights",
        "partitions_count": 6,
        "replication_factor": 3,
        "configs": [{"name": "retention.ms", "value": "1000"}, {"name": "a", "value": "b=c"}],
    }


async def test_create_of_an_existing_topic_exits_5_unless_that_is_fine(api, milena):
    api.add_topic("flights", partitions=6)
    code, _, err = await milena("topics", "create", "flights")
    assert (code, err) == (5, "milena: Topic 'flights' already exists.\n")
    code, out, _ = await milena("topics", "create", "flights", "--if-not-exists", "--json")
    assert code == 0
    assert json.loads(out)["is_new"] is False


async def test_create_with_a_bad_config_exits_64(milena):
    code, _, err = await milena("topics", "create", "flights", "--config", "retention.ms")
    assert code == 64
    assert "'retention.ms' is not NAME=VALUE" in err


async def test_list_has_a_line_a_topic(api, milena):
    api.add_topic("flights", partitions=6)
    api.add_topic("planes", replicas=(2,), leader=2)
    _, out, _ = await milena("topics", "list")
    assert [line.split()[:3] for line in out.splitlines()[1:]] == [
        ["flights", "6", "3"],
        ["planes", "1", "1"],
    ]


async def test_describe_shows_offsets_and_configs(api, milena):
    api.add_topic("flights", isr=(1, 2), configs={"retention.ms": "1000"})
    code, out, _ = await milena("topics", "describe", "flights")
    assert code == 0
    assert ["0", "1", "1,2,3", "1,2", "5", "42"] in [line.split() for line in out.splitlines()]
    assert ["retention.ms", "1000"] in [line.split() for line in out.splitlines()]


async def test_describe_without_a_leader_leaves_offsets_out(api, milena):
    api.add_topic("flights", leader=None)
    code, out, _ = await milena("topics", "describe", "flights", "--json")
    assert code == 0
    assert "high_watermark" not in json.loads(out)["partitions"][0]


async def test_describe_of_an_unknown_topic_exits_4(milena):
    code, _, err = await milena("topics", "describe", "flights")
    assert (code, err) == (4, "milena: Topic 'flights' does not exist.\n")


async def test_delete_asks_a_person_and_refuses_a_script(api, milena, monkeypatch):
    api.add_topic("flights")
    code, _, err = await milena("topics", "delete", "flights")
    assert code == 64
    assert "say --yes" in err
    assert "flights" in api.topics
    code, out, _ = await milena("topics", "delete", "flights", "--yes")
    assert (code, out) == (0, "deleted topic flights\n")
    assert api.topics == {}


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (400, {"error_code": 40002, "message": "replication.factor too large"}, 1),
        (503, {"error_code": 50301, "message": "no quorum"}, 1),
        (504, {"error_code": 50401, "message": "not known"}, 3),
        (404, {"error_code": 404, "message": "no such path"}, 4),
        (200, {"something": "else"}, 1),
        (200, "<html>", 1),
    ],
)
async def test_an_answer_decides_the_exit_code(api, milena, status, body, code):
    api.answer = (status, body)
    assert (await milena("status"))[0] == code


async def test_a_lost_answer_to_a_change_is_not_known(api, capsys):
    api.add_topic("flights")

    async def never(request):
        await asyncio.Event().wait()

    api._delete = never
    async with serving(api.app()) as url:
        words = ["--url", url, "--timeout", "0.3"]
        words += ["topics", "delete", "flights", "--yes"]
        assert await asyncio.to_thread(cli.run, words) == cli.EXIT_UNKNOWN
    assert "no answer" in capsys.readouterr().err


def test_an_unknown_command_exits_64(capsys):
    assert cli.run(["bogus"]) == 64
    assert "No such command" in capsys.readouterr().err


def test_version_is_printed(capsys):
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("milena, version ")


def point(value):
    return EntryPoint(name="start", value=value, group=cli.COMMAND_GROUP)


def test_a_missing_extra_is_named_in_a_sentence(capsys, monkeypatch):
    def fail(self):
        raise ModuleNotFoundError("No module named 'pysyncobj'", name="pysyncobj.utility")

    monkeypatch.setattr(EntryPoint, "load", fail)
    monkeypatch.setattr(cli, "_announced", lambda: {"start": point("node.cli:start")})
    assert cli.run(["start", "--node-id", "1"]) == cli.EXIT_MISSING_EXTRA
    assert "pip install 'milena[node]'" in capsys.readouterr().err
    assert cli.run(["--help"]) == 0
    assert "(pip install 'milena[node]')" in capsys.readouterr().out


def test_a_broken_installation_is_not_taken_for_a_missing_extra(monkeypatch):
    def fail(self):
        raise ModuleNotFoundError("No module named 'storage.segment'", name="storage.segment")

    monkeypatch.setattr(EntryPoint, "load", fail)
    with pytest.raises(ModuleNotFoundError):
        cli.load_command(point("node.cli:start"))


def test_an_announced_command_is_found():
    command = cli.load_command(point("milena.cli:status"))
    assert isinstance(command, click.Command)
