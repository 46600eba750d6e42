"""A local cluster: what is planned, and what becomes of its processes; real ones, but small."""

import asyncio
import dataclasses
import os
import select
import shlex
import signal
import socket
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from milena.model.errors import StartupError
from node.config.rules import secret_of
from node.config.sources import load_config
from node.process import dev
from node.process.announce import ANNOUNCE
from node.process.dev import NodePlan, check_ports, next_steps, plan_nodes, run_nodes
from tests.support.command_lines import check_command_line

WAIT_S = 20


def plan(tmp_path: Path, **changes: object) -> tuple[NodePlan, ...]:
    options: dict[str, object] = {
        "count": 3,
        "data_dir": tmp_path / "cluster",
        "base_port": 20082,
        "base_peer_port": 20182,
        "options": {"auto_create_topics": "true", "log_level": "warning"},
        "environment": {"PATH": "/bin", "MILENA_CLUSTER_SECRET": "theirs, not ours"},
        "chosen": {},
    }
    return plan_nodes(**(options | changes))


def flags(arguments: tuple[str, ...]) -> dict[str, object]:
    """The settings that a node makes of its command line."""
    words = list(arguments[arguments.index("start") + 1 :])
    found: dict[str, object] = {}
    while words:
        name = words.pop(0).removeprefix("--")
        if name.startswith("no-"):
            found[name.removeprefix("no-").replace("-", "_")] = False
        elif words and not words[0].startswith("--"):
            found[name.replace("-", "_")] = words.pop(0)
        else:
            found[name.replace("-", "_")] = True
    return found


def test_kafka_clients_reach_each_node_at_a_port_of_its_own(tmp_path: Path):
    plans = plan(tmp_path, base_kafka_port=20282)
    configs = [load_config(None, p.environment, flags(p.arguments)) for p in plans]
    assert [str(config.kafka_listen) for config in configs] == [
        f"127.0.0.1:{port}" for port in (20282, 20283, 20284)
    ]
    with pytest.raises(StartupError, match="20182 and 20184 are closer than 5"):
        plan(tmp_path, base_kafka_port=20184)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(StartupError, match="--base-kafka-port"):
            check_ports(count=1, base_port=0, base_peer_port=0, base_kafka_port=port)


def test_the_planned_nodes_are_one_cluster(tmp_path: Path):
    plans = plan(tmp_path)
    configs = [load_config(None, p.environment, flags(p.arguments)) for p in plans]
    assert [config.node_id for config in configs] == [1, 2, 3]
    assert len({tuple(sorted(config.voters.items())) for config in configs}) == 1
    assert [config.voters[config.node_id] for config in configs] == [c.peer_listen for c in configs]
    assert len({secret_of(config) for config in configs}) == 1
    assert len({config.data_dir for config in configs}) == 3
    assert [config.url(config.listen.port) for config in configs] == [p.url for p in plans]
    assert all(config.creates_topics and config.log_level == "warning" for config in configs)


def test_the_secret_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path):
    plan(tmp_path)
    path = tmp_path / "cluster" / "cluster-secret"
    secret = path.read_text(encoding="ascii")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(secret.strip()) >= 32
    plan(tmp_path)
    assert path.read_text(encoding="ascii") == secret


def test_a_single_node_is_a_cluster_too(tmp_path: Path):
    (only,) = plan(tmp_path, count=1)
    assert load_config(None, only.environment, flags(only.arguments)).is_single


def test_ports_that_would_collide_are_refused(tmp_path: Path):
    with pytest.raises(StartupError, match="would collide"):
        plan(tmp_path, base_port=7084, base_peer_port=7082)


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match="cannot write the cluster secret"):
        plan(tmp_path, data_dir=tmp_path / "file")


def test_a_node_is_started_again_on_the_code_that_its_peers_run(tmp_path: Path):
    chosen = {"PYTHONPATH": "/compiled tree:/root", "PYTHONSAFEPATH": "1"}
    (only, *_) = plan(tmp_path, chosen=chosen)
    assert chosen.items() <= only.environment.items()
    words = shlex.split(only.command)
    assert words[:3] == ["env", "PYTHONPATH=/compiled tree:/root", "PYTHONSAFEPATH=1"]
    assert tuple(words[3:]) == only.arguments
    (pure, *_) = plan(tmp_path)
    assert tuple(shlex.split(pure.command)) == pure.arguments


def process(name: str, code: str) -> NodePlan:
    return NodePlan(
        name=name,
        arguments=(sys.executable, "-u", "-c", textwrap.dedent(code)),
        environment={**os.environ},
        url="http://none",
    )


WAITS = "import signal; print('up'); signal.pause()"


class Output:
    """What was written, and a way to wait for a word in it."""

    def __init__(self) -> None:
        self.text = ""
        self._changed = asyncio.Event()

    def __call__(self, text: str) -> None:
        self.text += text
        self._changed.set()

    async def has(self, word: str, times: int = 1) -> None:
        async with asyncio.timeout(WAIT_S):
            while self.text.count(word) < times:
                self._changed.clear()
                await self._changed.wait()


async def test_one_signal_stops_every_node():
    output = Output()
    run = asyncio.ensure_future(
        run_nodes([process("a", WAITS), process("bb", WAITS)], write=output)
    )
    await output.has("| up", times=2)
    assert "a  | up\n" in output.text
    assert "bb | up\n" in output.text
    os.kill(os.getpid(), signal.SIGINT)
    assert await run == 0
    assert "stopping" in output.text


SPEAKS = """
import signal, sys
def stop(*_):
    print("2026-11-29T20:04:27.934Z warning node.wiring drain incomplete")
    print("2026-11-29T20:04:27.935Z error node.wiring disk failed")
    print("Traceback")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("2026-11-29T20:04:27.933Z warning node.wiring up")
signal.pause()
"""


@pytest.mark.parametrize("is_quiet", [True, False])
async def test_warnings_that_a_stop_of_all_nodes_causes_are_not_shown(is_quiet: bool):
    output = Output()
    run = asyncio.ensure_future(
        run_nodes([process("a", SPEAKS)], write=output, has_quiet_stop=is_quiet)
    )
    await output.has("wiring up")
    os.kill(os.getpid(), signal.SIGINT)
    assert await run == 0
    assert ("drain incomplete" in output.text) is not is_quiet
    assert "disk failed" in output.text
    assert "Traceback" in output.text


def test_nodes_of_a_local_cluster_leave_the_next_steps_to_it(tmp_path: Path):
    (first, *_) = plan(tmp_path)
    assert first.environment[ANNOUNCE] == "no"
    assert ANNOUNCE not in first.command, "a node that is started by hand announces itself"
    assert load_config(None, first.environment, flags(first.arguments)).node_id == 1


async def test_the_console_is_named_once_behind_the_nodes():
    output = Output()
    run = asyncio.ensure_future(
        run_nodes([process("a", WAITS), process("bb", WAITS)], write=output)
    )
    await output.has("| up", times=2)
    os.kill(os.getpid(), signal.SIGINT)
    assert await run == 0
    assert [line for line in output.text.splitlines() if "url=" in line][-1].startswith("console ")
    assert output.text.count("/console/") == 1


NODE = """
import http.server, socket, sys
server = http.server.HTTPServer(("127.0.0.1", {port}), http.server.BaseHTTPRequestHandler)
server.RequestHandlerClass.do_GET = lambda call: (call.send_response(200), call.end_headers())
server.RequestHandlerClass.log_message = lambda *_: None
server.serve_forever()
"""


async def test_the_next_steps_are_told_once_when_every_node_is_ready(unused_tcp_port_factory):
    output, ports = Output(), [unused_tcp_port_factory() for _ in range(2)]
    plans = [
        dataclasses.replace(
            process(f"n{port}", NODE.format(port=port)), url=f"http://127.0.0.1:{port}"
        )
        for port in ports
    ]
    run = asyncio.ensure_future(run_nodes(plans, write=output, ready_text="ready: go\n"))
    await output.has("ready: go")
    os.kill(os.getpid(), signal.SIGINT)
    assert await run == 0
    assert output.text.count("ready") == 1


async def test_nothing_is_told_of_nodes_that_never_get_ready(unused_tcp_port):
    output = Output()
    plan = dataclasses.replace(process("n", WAITS), url=f"http://127.0.0.1:{unused_tcp_port}")
    run = asyncio.ensure_future(run_nodes([plan], write=output, ready_text="ready: go\n"))
    await output.has("| up")
    os.kill(os.getpid(), signal.SIGINT)
    assert await run == 0
    assert "ready" not in output.text


@pytest.mark.parametrize("password_file", [None, "/a b/pw"])
def test_the_next_steps_are_commands_that_exist(tmp_path: Path, password_file: str | None):
    text = next_steps(plan(tmp_path), password_file)
    lines = [line.split(" | ")[-1] for line in text.splitlines()[1:]]
    assert len(lines) == 3
    for line in lines:
        words = shlex.split(line)
        assert words[0] == "milena"
        assert ("--password-file" in words) is (password_file is not None)
        assert password_file in (None, words[-1])
        check_command_line(words[1:])


def test_the_next_steps_say_where_kafka_clients_connect(tmp_path: Path):
    first, *_ = next_steps(plan(tmp_path), None, 9092).splitlines()
    assert first.endswith("/console/, Kafka clients 127.0.0.1:9092. Try in another terminal:")


@pytest.mark.parametrize("option", ["--base-port", "--base-peer-port"])
def test_a_port_that_is_taken_names_the_option_to_change(unused_tcp_port_factory, option: str):
    bases = {
        "--base-port": unused_tcp_port_factory(),
        "--base-peer-port": unused_tcp_port_factory(),
    }
    with socket.socket() as other:
        other.bind(("127.0.0.1", bases[option]))
        other.listen()
        with pytest.raises(StartupError, match=rf"{bases[option]}.*give another {option} than"):
            check_ports(
                count=1, base_port=bases["--base-port"], base_peer_port=bases["--base-peer-port"]
            )


async def test_a_node_that_ends_is_named_and_the_others_go_on():
    output = Output()
    ends = process("ends", "print('last words', end=''); raise SystemExit(3)")
    run = asyncio.ensure_future(run_nodes([ends, process("stays", WAITS)], write=output))
    await output.has("ends ended with exit code 3; start it again with:")
    await output.has("| up")
    assert "ends  | last words\n" in output.text
    assert not run.done()
    os.kill(os.getpid(), signal.SIGTERM)
    assert await run == 0


async def test_a_node_that_was_killed_is_said_to_be():
    output = Output()
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert await run_nodes([process("n", code)], write=output) == 1
    assert "n ended by SIGKILL" in output.text


async def test_a_node_that_refuses_to_start_stops_them_all():
    output = Output()
    refuses = process("no", "raise SystemExit(78)")
    assert await run_nodes([process("stays", WAITS), refuses], write=output) == 78
    assert "start it again" not in output.text
    assert "none runs" in output.text
    assert "--base-port" in output.text


async def test_a_node_that_does_not_stop_is_killed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dev, "GRACE_MS", 1)
    output = Output()
    deaf = process(
        "deaf", "import signal; signal.signal(15, signal.SIG_IGN); print('up'); signal.pause()"
    )
    run = asyncio.ensure_future(run_nodes([deaf], write=output))
    await output.has("| up")
    os.kill(os.getpid(), signal.SIGTERM)
    assert await run == 0


async def test_long_and_strange_lines_are_copied_whole():
    output = Output()
    code = "import sys; sys.stdout.buffer.write(b'x' * 200_000 + b'\\n\\xff\\nend')"
    await run_nodes([process("n", code)], write=output)
    lines = [line.removeprefix("n | ") for line in output.text.splitlines() if " | " in line]
    assert "".join(lines) == "x" * 200_000 + "\\xffend"


def test_nodes_die_with_their_parent():
    parent = textwrap.dedent(
        f"""
        import asyncio, sys
        from node.process.dev import NodePlan, run_nodes
        plan = NodePlan(name="n", arguments=(sys.executable, "-u", "-c", {WAITS!r}),
                        environment={{}}, url="u")
        asyncio.run(run_nodes([plan], write=lambda text: print(text, end="", flush=True)))
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[4],
    ) as started:
        first = started.stdout.readline()
        pid = int(first.split("pid=")[1].split()[0])
        child = os.pidfd_open(pid)
        assert started.stdout.readline() == "console url=u/console/\n"
        assert started.stdout.readline() == "n | up\n"
        started.kill()
        poller = select.poll()
        poller.register(child, select.POLLIN)
        assert poller.poll(WAIT_S * 1000), "the node outlived its parent"
        os.close(child)
