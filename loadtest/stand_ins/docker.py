"""A stand-in for the module ``docker``, for the fixtures of aiokafka's test suite.

The fixtures start a container of Kafka on ports that they choose. Here, the container is a process that forwards the
port for plain connections to a running broker, which ``KAFKA_BROKER`` names as ``host:port``. The broker tells clients
its own address, so only their first connections are forwarded. The ports for TLS and SASL are not served.

With arguments, ``PORT HOST:PORT``, this file is that process.
"""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

BROKER = "KAFKA_BROKER"
"""The variable that names the broker."""
_CERTIFICATES = "/ssl_cert"
"""Where the fixtures want the folder of certificates in the container."""


class Container:
    """A started "container": the process that forwards, or the folder in which a script makes certificates."""

    def __init__(self, forwarding: subprocess.Popen[bytes] | None, folder: Path | None) -> None:
        self._forwarding = forwarding
        self._folder = folder

    def exec_run(self, command: Sequence[str] | str, **_: object) -> tuple[int, bytes]:
        """Run the script that makes certificates; return its exit code and output. Refuse everything else."""
        if isinstance(command, str) or self._folder is None:
            return 1, f"the stand-in for docker does not run {command}".encode()
        # The fixture bound the script of the checkout, where pytest runs, to the root of the container.
        program = [
            shutil.which(command[0]) or command[0],
            *(_outside(word) for word in command[1:]),
        ]
        done = subprocess.run(program, cwd=self._folder, capture_output=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def stop(self) -> None:
        """End the process."""
        if self._forwarding is not None:
            self._forwarding.terminate()
            self._forwarding.wait()


def _outside(word: str) -> str:
    return str(Path(word.removeprefix("/")).resolve()) if word.startswith("/") else word


def _run(
    *,
    volumes: Mapping[object, Mapping[str, str]],
    environment: Mapping[str, object] | None = None,
    **_: object,
) -> Container:
    if environment is None:
        folders = [key for key, to in volumes.items() if to["bind"] == _CERTIFICATES]
        return Container(None, Path(str(folders[0])))
    port = str(environment["ADVERTISED_PORT"])
    return Container(subprocess.Popen([sys.executable, __file__, port, os.environ[BROKER]]), None)


def from_env() -> SimpleNamespace:
    """Return the client, with what the fixtures use of it."""
    return SimpleNamespace(containers=SimpleNamespace(run=_run), close=lambda: None)


models = SimpleNamespace(containers=SimpleNamespace(Container=Container))


# -- the process that forwards ---------------------------------------------------------------------


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def forward(port: int, host: str, to: int) -> asyncio.Server:
    """Forward connections to ``port`` of this machine; 0 means any port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(host, to)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))

    return await asyncio.start_server(serve, "127.0.0.1", port)


async def _main(port: str, target: str) -> None:
    host, _, to = target.rpartition(":")
    server = await forward(int(port), host, int(to))
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
