"""The stand-in for docker: what aiokafka's fixtures do with it."""

import asyncio
import subprocess
from pathlib import Path

import pytest

from loadtest.stand_ins import docker


def test_a_script_of_the_checkout_runs_in_the_folder_of_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "make.sh").write_text("echo made > here; exit 3\n")
    folder = tmp_path / "certificates"
    folder.mkdir()
    volumes = {
        tmp_path / "make.sh": {"bind": "/make.sh"},
        str(folder): {"bind": "/ssl_cert"},
    }
    container = docker.from_env().containers.run(
        image="any", command="sleep 300", volumes=volumes, tty=True
    )
    assert container.exec_run(["bash", "/make.sh"], user="0:0") == (3, b"")
    assert (folder / "here").read_text() == "made\n"
    container.stop()


def test_a_tool_of_kafka_is_refused() -> None:
    code, output = docker.Container(None, None).exec_run("/opt/kafka/bin/kafka-acls.sh --list")
    assert code == 1
    assert b"kafka-acls.sh" in output


def test_a_started_container_forwards_and_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    class Process:
        def __init__(self, command: list[str]) -> None:
            started.append(command)

        def terminate(self) -> None:
            started.append(["terminate"])

        def wait(self) -> None:
            started.append(["wait"])

    monkeypatch.setattr(subprocess, "Popen", Process)
    monkeypatch.setenv(docker.BROKER, "127.0.0.1:9092")
    container = docker.from_env().containers.run(
        image="any", volumes={}, environment={"ADVERTISED_PORT": 9999, "NUM_PARTITIONS": 2}
    )
    assert started.pop()[-2:] == ["9999", "127.0.0.1:9092"]
    container.stop()
    assert started == [["terminate"], ["wait"]]


async def test_bytes_pass_in_both_directions_and_the_end_of_one_side_is_that_of_the_other() -> None:
    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        await writer.drain()
        writer.close()

    far = await asyncio.start_server(shout, "127.0.0.1", 0)
    near = await docker.forward(0, *far.sockets[0].getsockname())
    async with far, near:
        for name in (b"one\n", b"two\n"):
            reader, writer = await asyncio.open_connection(*near.sockets[0].getsockname())
            writer.write(name)
            assert await reader.read() == name.upper()
            writer.close()
