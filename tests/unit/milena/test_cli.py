"""The command line against a node on paper: what it prints, what it asks, what its exit codes say."""

import asyncio
import gzip
import io
import json
import re
import sys
from importlib.metadata import EntryPoint

import click
import pytest

from milena import cli
from milena.client import Client
from milena.cluster.admin import AdminClient
from milena.commands.target import EXIT_UNKNOWN
from milena.errors import NotPermittedError
from milena.model.build_kind import build_kind
from tests.support.command_lines import runner
from tests.support.fakes.api import FakeApi
from tests.support.http.http_server import serving


@pytest.fixture
async def api():
    fake = FakeApi()
    async with serving(fake.app()) as fake.url:
        yield fake


@pytest.fixture
def milena(api, capsys):
    return runner(api.url, capsys)


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


@pytest.mark.parametrize("trouble", ["fenced", "leaderless", "no controller", "no majority"])
async def test_status_is_degraded_by(api, milena, trouble):
    api.add_topic("flights", leader=None if trouble == "leaderless" else 1)
    if trouble == "fenced":
        api.brokers[1] = api.broker(2, is_fenced=True)
    if trouble == "no controller":
        api.controller_id = None
    api.is_current = trouble != "no majority"
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


@pytest.mark.parametrize("command", [("status",), ("nodes", "list")])
async def test_without_a_majority_a_node_that_does_not_answer_is_not_called_up(
    api, milena, command, unused_tcp_port
):
    api.brokers[:] = [
        {**api.broker(1), "url": api.url},
        {**api.broker(2), "url": f"http://127.0.0.1:{unused_tcp_port}"},
        api.broker(3, is_fenced=True),
    ]

    async def states():
        _, out, _ = await milena(*command)
        return [line.split()[1] for line in out.splitlines() if line.lstrip()[:1].isdigit()]

    assert await states() == ["up", "up", "down"]
    api.is_current = False
    known = "up" if command == ("nodes", "list") else "unknown"
    assert await states() == [known, "unknown", "down"]


@pytest.mark.parametrize("command", [("status",), ("topics", "list"), ("nodes", "list")])
async def test_a_view_that_may_be_old_is_called_so(api, milena, command):
    api.add_topic("flights")
    api.is_current = False
    _, _, err = await milena(*command)
    assert err == f"no majority of the metadata quorum answers: this is what {api.url} knew last\n"


async def test_https_of_a_port_without_it_is_told_that_the_port_may_want_http(api, capsys):
    url = api.url.replace("http://", "https://")
    assert await asyncio.to_thread(cli.run, ["--url", url, "status"]) == 2
    told = f"milena: cannot reach {url}: it answers without TLS: use http://\n"
    assert capsys.readouterr().err == told


async def test_no_node_exits_2_with_one_line(capsys, unused_tcp_port):
    url = f"http://127.0.0.1:{unused_tcp_port}"
    code = await asyncio.to_thread(cli.run, ["--url", url, "status"])
    assert code == 2
    assert capsys.readouterr().err == f"milena: cannot reach {url}: connection refused\n"


async def test_url_comes_from_the_environment(api, capsys, monkeypatch):
    monkeypatch.setenv("MILENA_URL", api.url)
    assert await asyncio.to_thread(cli.run, ["topics", "list"]) == 0
    assert capsys.readouterr().err == "no topics\n"


async def test_drain_says_how_long_to_try_and_exits_1_when_it_did_not_come_to_an_end(api, milena):
    code, out, _ = await milena("drain", "--timeout", "2.5")
    assert (code, out) == (0, "drained\n")
    method, path, body = api.requests[-1]
    assert (method, path, json.loads(body)) == ("POST", "/drain", {"timeout_ms": 2500})
    api.can_drain = False
    code, out, _ = await milena("drain", "--json")
    assert (code, json.loads(out)) == (1, {"is_drained": False, "left": []})
    told = "not drained within 30 s: replicas of node 1 still count as in sync\n"
    assert await milena("drain") == (1, told, "")


async def test_drain_names_the_partitions_that_the_node_still_leads(api, milena):
    api.can_drain = False
    api.add_topic("lone", partitions=5, replicas=(1,))
    api.add_topic("other", replicas=(2,), leader=2)
    code, out, _ = await milena("drain")
    why = "node 1 still leads 5 partitions, which no other node can lead"
    assert (code, out) == (1, f"not drained: {why}: lone-0, lone-1, lone-2 and 2 more\n")
    code, out, _ = await milena("drain", "--json")
    assert [(row["topic"], row["partition"]) for row in json.loads(out)["left"]] == [
        ("lone", p) for p in range(5)
    ]


async def test_drain_asks_first_if_topics_would_then_refuse_writes(api, milena, monkeypatch):
    for name in "abcd":
        api.add_topic(name, partitions=2, isr=(1, 3))
    api.add_topic("alone", replicas=(1,))
    api.add_topic("pair", replicas=(1, 2))
    api.add_topic("refuses-already", isr=(1,))
    api.add_topic("elsewhere", replicas=(2, 3), configs={"min.insync.replicas": "2"})
    why = (
        "draining node 1 stops writes to 4 topics (a, b, c and 1 more): "
        "fewer replicas than min.insync.replicas would be in sync"
    )
    monkeypatch.setattr("sys.stdin", io.StringIO())
    code, out, err = await milena("drain")
    assert (code, out) == (64, "")
    assert (
        f"not drained, because there is no terminal on which to confirm that {why}: say --yes"
        in err
    )
    monkeypatch.setattr("sys.stdin", Typed("n\n"))
    code, out, err = await milena("drain")
    assert (code, out) == (1, "")
    assert err == f"{why}. Drain it? [y/N]: milena: not drained\n"
    assert "/drain" not in {path for _, path, _ in api.requests}
    assert await milena("drain", "--yes") == (0, "drained\n", "")


async def test_a_pair_that_must_both_have_a_record_counts_too(api, milena, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    api.add_topic("pair", replicas=(1, 2), configs={"min.insync.replicas": "2"})
    code, _, err = await milena("drain")
    assert code == 64
    assert "stops writes to 1 topic (pair)" in err


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


@pytest.mark.parametrize("words", [(), ("--json",)])
async def test_a_change_counts_as_done_if_the_caller_may_not_describe_the_topic(
    api, milena, monkeypatch, words
):
    async def refuse(*_):
        raise NotPermittedError("may not DESCRIBE TOPIC flights", status=403)

    api.add_topic("planes")
    monkeypatch.setattr(AdminClient, "topic", refuse)
    code, out, err = await milena("topics", "create", "flights", *words)
    assert (code, err) == (0, "")
    assert (json.loads(out) if words else out) == (
        {"is_new": True, "name": "flights"} if words else "created topic flights\n"
    )
    code, out, err = await milena("topics", "alter", "planes", "--config", "a=b", *words)
    assert (code, err) == (0, "")
    assert (json.loads(out) if words else out) == (
        {"name": "planes"} if words else "altered topic planes\na=b\n"
    )


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
    assert "id f1c6, 300 bytes on all nodes" in out
    assert ["0", "1", "1,2,3", "1,2", "5", "42", "300"] in map(str.split, out.splitlines())
    assert ["retention.ms", "1000", "set"] in map(str.split, out.splitlines())


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


async def test_a_refusal_names_the_request_that_nodes_log(api, milena):
    api.answer, api.request_id = (500, {"error_code": 500, "message": "a bug"}), "2-17"
    assert await milena("status") == (1, "", "milena: a bug (request 2-17)\n")


async def test_a_lost_answer_to_a_change_is_not_known(api, capsys):
    api.add_topic("flights")

    async def never(request):
        await asyncio.Event().wait()

    api._delete = never
    async with serving(api.app()) as url:
        words = ["--url", url, "--timeout", "3"]
        words += ["topics", "delete", "flights", "--yes"]
        assert await asyncio.to_thread(cli.run, words) == EXIT_UNKNOWN
    assert "no answer" in capsys.readouterr().err


def test_an_unknown_command_exits_64(capsys):
    assert cli.run(["bogus"]) == 64
    assert "No such command 'bogus': there are access, acls," in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["topic"], "No such command 'topic': did you mean topics?"),
        (["topics", "lst"], "No such command 'lst': did you mean list?"),
        (["acls", "create"], "No such command 'create': there are add, list, remove"),
    ],
)
def test_who_asks_for_a_command_that_is_not_there_is_told_which_are(capsys, words, told):
    assert cli.run(words) == 64
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--server", "x", "status"], "'--server': use milena --url …"),
        (
            ["consume", "t", "--bootstrap-servers", "x"],
            "'--bootstrap-servers': use milena --url … consume",
        ),
        (["consume", "t", "--from", "x"], "'--from': did you mean --from-beginning?"),
        (["status", "--wach"], "'--wach'. Did you mean '--watch'?"),
    ],
)
def test_an_option_with_another_name_or_in_part_is_told_how_it_is_said(capsys, words, told):
    assert cli.run(words) == 64
    assert f"No such option {told}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--url", "http://127.0.0.1:9", "topics", "list"],
        ["topics", "--url", "http://127.0.0.1:9", "list"],
        ["topics", "list", "--url", "http://127.0.0.1:9"],
        ["topics", "list", "--timeout", "2", "--url=http://127.0.0.1:9"],
        ["topics", "list", "--json", "--url", "http://127.0.0.1:9"],
    ],
)
def test_the_cluster_may_be_named_before_and_behind_the_command(capsys, words):
    assert cli.run(words) == 2
    assert "cannot reach http://127.0.0.1:9" in capsys.readouterr().err


def test_an_option_of_the_command_is_the_commands_own(capsys):
    assert cli.run(["--url", "http://127.0.0.1:9", "drain", "--timeout", "0"]) == 64
    assert "drain [OPTIONS]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["topics", "list", "--url"], "Option '--url' requires an argument."),
        (
            ["topics", "list", "--url", "8082"],
            "'8082' is not the URL of a node: 8082 is not a host",
        ),
        (["--url", "http://a", "topics", "list", "--url", "http://b"], "--url is given twice"),
        (["status", "--url", "http://a", "--url=http://b"], "--url is given twice"),
        (["topics", "list", "--", "--url", "http://a"], "unexpected extra argument"),
    ],
)
def test_a_wrong_option_behind_the_command_is_refused_as_before_it(capsys, words, told):
    assert cli.run(words) == 64
    assert told in capsys.readouterr().err


def test_the_version_may_be_asked_for_behind_a_command(capsys):
    assert cli.run(["status", "--version"]) == 0
    assert capsys.readouterr().out.startswith("milena, version ")


def test_version_is_printed(capsys):
    assert cli.run(["--version"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("milena, version ")
    assert said.endswith(f" ({build_kind()})\n")


def point(value):
    return EntryPoint(name="start", value=value, group=cli.COMMAND_GROUP)


def test_a_missing_extra_is_named_in_a_sentence(capsys, monkeypatch):
    def fail(self):
        raise ModuleNotFoundError("No module named 'pysyncobj'", name="pysyncobj.utility")

    monkeypatch.setattr(EntryPoint, "load", fail)
    monkeypatch.setattr(cli, "_announced", lambda: {"start": point("node.cli:start")})
    assert cli.run(["start", "--node-id", "1"]) == cli.EXIT_MISSING_EXTRA
    assert (
        "pip install milena-node, or in a checkout pip install . ./node" in capsys.readouterr().err
    )
    assert cli.run(["--help"]) == 0
    assert "(pip install milena-node)" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(cli.SERVER_COMMANDS))
def test_the_servers_commands_are_known_without_it(capsys, monkeypatch, name):
    monkeypatch.setattr(cli, "_announced", dict)
    assert cli.run([name, "--any", "thing"]) == cli.EXIT_MISSING_EXTRA
    error = capsys.readouterr().err
    assert error == (
        f"milena: {name} needs the server: pip install milena-node, or in a checkout pip install . ./node\n"
    )
    assert cli.run(["--help"]) == 0
    assert name in capsys.readouterr().out


def test_the_server_announces_what_is_known_of_it():
    assert cli._announced().keys() == cli.SERVER_COMMANDS


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://localhost:abc", "Port"),
        ("http://localhost:99999", "range"),
        ("ftp://localhost", "must begin with http:// or https://"),
        ("", "it has no host"),
        ("http://localhost:8082/foo", "say http://localhost:8082"),
        ("http://[::1", "IPv6"),
    ],
)
def test_what_is_no_url_of_a_node_exits_64_with_one_line(capsys, url, why):
    assert cli.run(["--url", url, "status"]) == 64
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"Error: {url!r} is not the URL of a node: ")
    assert why in error


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    "words",
    [
        ["--timeout", "{}", "status"],
        ["status", "--watch", "--interval", "{}"],
        ["produce", "t", "--rate", "{}"],
        ["produce", "t", "--linger-ms", "{}"],
        ["bench", "produce", "t", "--seconds", "{}"],
        ["drain", "--timeout", "{}"],
    ],
)
def test_numbers_are_finite(capsys, words, number):
    assert cli.run([word.format(number) for word in words]) == 64
    assert "Invalid value" in capsys.readouterr().err


def test_an_interval_is_for_watching(capsys):
    assert cli.run(["status", "--interval", "3"]) == 64
    assert "--watch" in capsys.readouterr().err


class Typed(io.StringIO):
    """What somebody types at a terminal."""

    def isatty(self):
        return True


async def test_who_says_no_is_told_that_nothing_was_deleted(api, milena, monkeypatch):
    api.add_topic("flights")
    monkeypatch.setattr("sys.stdin", Typed("n\n"))
    code, _, error = await milena("topics", "delete", "flights")
    assert (code, error.endswith("milena: not deleted\n")) == (1, True)
    assert "flights" in api.topics


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        ("topics list >/dev/full", 1, "milena: cannot read or write: No space left on device\n"),
        *(
            (f"{words} >&-", 1, "milena: cannot write to standard output: it is closed\n")
            for words in ("topics list", "topics list --json", "status", "version", "--help")
        ),
        ("topics list 2>&-", 0, ""),
        ("topics delete flights <&-", 64, "--yes"),
        ("consume flights >&-", 1, "milena: cannot write to standard output: it is closed\n"),
        ("produce flights <&-", 1, "milena: cannot read standard input: it is closed\n"),
        ("produce flights 2>&- </dev/null", 0, ""),
    ],
)
async def test_standard_streams_that_are_closed_or_full(api, command, code, told):
    api.add_topic("flights")
    process = await asyncio.create_subprocess_shell(
        f"{sys.executable} -m milena --url {api.url} {command}", stderr=asyncio.subprocess.PIPE
    )
    _, error = await process.communicate()
    assert (process.returncode, b"Traceback" in error) == (code, False), error
    assert told in error.decode()


def test_a_broken_installation_is_not_taken_for_a_missing_extra(monkeypatch):
    def fail(self):
        raise ModuleNotFoundError(
            "No module named 'storage.segments.segment'", name="storage.segments.segment"
        )

    monkeypatch.setattr(EntryPoint, "load", fail)
    with pytest.raises(ModuleNotFoundError):
        cli.load_command(point("node.cli:start"))


def test_an_announced_command_is_found():
    command = cli.load_command(point("milena.commands.health.status:status"))
    assert isinstance(command, click.Command)


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("is_input", [False, True])
async def test_a_file_that_names_a_partition_too_many_writes_nothing(
    api, milena, tmp_path, monkeypatch, is_packed, is_input
):
    api.add_topic("t", partitions=2)
    text = (
        b'{"value":"v","partition":1}\n' * 2_000
        + b'{"value":"v","partition":5}\n{"value":"w","partition":2}'
    )
    path = tmp_path / "records.json"
    path.write_bytes(gzip.compress(text) if is_packed else text)
    with path.open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        words = ("--gzip",) if is_packed else ()
        place = "-" if is_input else str(path)
        code, _, err = await milena("produce", "t", place, "--format", "json", *words)
    name = "standard input" if is_input else path
    assert code == 4
    assert err.endswith(
        f"{name} has records for partition 5, and topic t has partitions 0 to 1: nothing was written; "
        "first say milena topics alter t --partitions 6\n"
    )
    assert {method for method, _, _ in api.requests} == {"GET"}


async def test_a_topic_gets_more_partitions_and_other_settings(api, milena):
    api.add_topic("flights", configs={"retention.ms": "1", "segment.bytes": "65536"})
    code, out, _ = await milena(
        "topics", "alter", "flights", "--partitions", "6",
        "--config", "flush.ms=5", "--config", "retention.ms=2", "--delete-config", "segment.bytes",
    )  # fmt: skip
    assert code == 0
    assert out == (
        "altered topic flights: 6 partitions\nflush.ms=5\nretention.ms=2\nsegment.bytes=\n"
    )
    assert [(method, path) for method, path, _ in api.requests[-3:]] == [
        ("POST", "/v3/clusters/c1/topics/flights/configs:alter"),
        ("PATCH", "/v3/clusters/c1/topics/flights"),
        ("GET", "/topics/flights"),
    ]
    assert api.topics["flights"]["configs"] == {"flush.ms": "5", "retention.ms": "2"}
    code, out, _ = await milena("topics", "alter", "flights", "--partitions", "7", "--json")
    assert (code, json.loads(out)["partition_count"]) == (0, 7)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "nothing to change"),
        (("--config", "a=1", "--delete-config", "a"), "a is both set and reset"),
        (("--config", "a"), "is not NAME=VALUE"),
        (("--partitions", "0"), "0 is not in the range"),
    ],
)
async def test_what_to_alter_must_make_sense(api, milena, words, said):
    code, _, err = await milena("topics", "alter", "flights", *words)
    assert code == 64
    assert said in err
    assert api.requests == []


async def test_a_topic_that_is_not_there_cannot_be_altered(api, milena):
    assert (await milena("topics", "alter", "nope", "--partitions", "2"))[0] == 4
    assert (await milena("topics", "alter", "nope", "--config", "a=1"))[0] == 4


async def test_records_are_deleted_up_to_an_offset_or_a_time(api, milena):
    api.add_topic("flights", partitions=2)
    delete = ("topics", "delete-records", "flights", "--yes")
    code, out, _ = await milena(*delete, "--before-offset", "7", "--partition", "1")
    assert code == 0
    assert out == "PARTITION  FIRST OFFSET\n        1             7\n"
    code, out, _ = await milena(*delete, "--before-time", "9000", "--json")
    assert json.loads(out) == [
        {"partition": 0, "log_start_offset": 9},
        {"partition": 1, "log_start_offset": 9},
    ]
    code, out, _ = await milena(*delete, "--before-offset", "latest", "--json")
    assert [row["log_start_offset"] for row in json.loads(out)] == [42, 42]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 64, "either --before-offset or --before-time"),
        (("--before-offset", "1", "--before-time", "2"), 64, "either"),
        (("--before-offset", "x"), 64, "neither an offset nor"),
        (("--before-offset", "1"), 64, "say --partition"),
        (("--before-offset", "1", "-p", "9"), 4, "has partitions 0 to 1, not 9"),
    ],
)
async def test_what_to_delete_must_be_said(api, milena, words, code, said):
    api.add_topic("flights", partitions=2)
    found, _, err = await milena("topics", "delete-records", "flights", "--yes", *words)
    assert (found, said in err) == (code, True)


async def test_nobody_is_asked_whether_to_delete_where_nobody_can_answer(api, milena):
    api.add_topic("flights")
    code, _, err = await milena("topics", "delete-records", "flights", "--before-offset", "latest")
    assert code == 64
    assert "say --yes" in err


@pytest.mark.parametrize(
    "words",
    [
        ("topics", "delete", "t"),
        ("topics", "delete-records", "t", "--before-offset", "latest"),
        ("groups", "delete", "g"),
        ("groups", "reset", "g", "--topic", "t", "--to-offset", "earliest"),
        ("transactions", "abort", "7", "0"),
        ("users", "delete", "alice"),
        ("tokens", "delete", "0abc1234"),
        ("acls", "remove", "User:alice"),
    ],
    ids=" ".join,
)
async def test_who_cannot_be_asked_reads_first_that_nothing_was_done(api, milena, words):
    api.access.add_entry("User:alice", "READ", "orders")
    code, _, err = await milena(*words)
    assert code == 64
    assert re.search(
        r"^Error: not \w+, because .+ to confirm that .+: say --yes$", err, re.MULTILINE
    )
    assert not [request for request in api.requests if request[0] == "DELETE"]


@pytest.mark.parametrize(
    ("silent", "told"),
    [([], ""), ([2], "no answer from node 2:"), ([2, 3], "no answer from nodes 2,3:")],
)
async def test_open_transactions_say_which_nodes_may_know_more(api, milena, silent, told):
    api.answer = 200, {"total": 0, "transactions": [], "silent_nodes": silent}
    code, out, err = await milena("transactions", "list", "--json")
    assert (code, json.loads(out)) == (0, [])
    assert told in err
    assert ("no answer" in err) is bool(silent)
    code, _, err = await milena("transactions", "find-hanging")
    assert code == bool(silent)
    assert "no transaction is past its timeout" in err
    assert told in err


async def test_open_transactions_of_a_node_of_an_earlier_release_are_shown(api, milena):
    api.answer = 200, {"total": 0, "transactions": []}
    assert await milena("transactions", "find-hanging", "--json") == (0, "[]\n", "")


@pytest.mark.parametrize(
    ("words", "session_ms"), [((), 45_000), (("--session-timeout", "7.5"), 7_500)]
)
async def test_a_member_has_the_session_that_was_said(api, milena, monkeypatch, words, session_ms):
    api.add_topic("t")
    seen = {}

    def consumer(self, *topics, **options):
        seen.update(options)
        raise click.ClickException("seen")

    monkeypatch.setattr(Client, "consumer", consumer)
    await milena("consume", "t", "--group", "g", *words)
    assert (seen["group"], seen["session_timeout_ms"]) == ("g", session_ms)


@pytest.mark.parametrize(
    "words", [("--session-timeout", "9"), ("--group", "g", "--session-timeout", "301")]
)
async def test_a_session_is_a_members_and_in_its_range(milena, words):
    code, _, err = await milena("consume", "t", *words)
    assert code == 64
    assert "--session-timeout" in err


async def test_nodes_are_listed_and_forgotten(api, milena):
    api.brokers[2] = api.broker(3, is_fenced=True)
    code, out, _ = await milena("nodes", "list")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [
        ["1", "up"], ["2", "up"], ["3", "down"],
    ]  # fmt: skip
    code, _, err = await milena("nodes", "remove", "2")
    assert code == 1
    assert "is alive: stop it first" in err
    assert (await milena("nodes", "remove", "9"))[0] == 4
    code, out, _ = await milena("nodes", "remove", "3")
    assert (code, out) == (0, "removed node 3\n")
    _, out, _ = await milena("nodes", "list", "--json")
    assert [node["node_id"] for node in json.loads(out)] == [1, 2]
    assert (await milena("status"))[0] == 0
