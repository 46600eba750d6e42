"""A running container from outside: its shim, its process 1, commands run beside it, the handlers of probes."""

import asyncio
import contextlib
import json
import os
import signal
import ssl
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.helm.podlab.container_shim import ContainerSpec
from tests.helm.podlab.environment import ContainerConfigError
from tests.helm.podlab.manifest import Manifest

SHIM = Path(__file__).parent / "container_shim.py"
TIMED_OUT = 124
OUTPUT_TAIL = 500


@dataclass(frozen=True, slots=True)
class Executed:
    """What a command in a container printed, and how it ended; 124 when its time was over."""

    code: int
    out: str
    err: str

    def __bool__(self) -> bool:
        return self.code == 0


class ContainerProcess:
    """One start of a container. It has ended for good when ``wait`` returns."""

    def __init__(self, spec: ContainerSpec, shim: asyncio.subprocess.Process, pid: int) -> None:
        self._spec = spec
        self._shim = shim
        self.pid = pid

    @classmethod
    async def start(cls, spec: ContainerSpec, spec_file: Path) -> "ContainerProcess":
        """Start the program and return when it has begun.

        Raises:
            ContainerConfigError: It could not be started; the message is the shim's.
        """
        os.makedirs(spec["root"], exist_ok=True)
        spec_file.write_text(json.dumps(spec))
        shim = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(SHIM), str(spec_file), str(os.getpid())),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert shim.stdout is not None, "a pipe was asked for"
        try:
            line = await shim.stdout.readline()
        except asyncio.CancelledError:
            # Process 1, if it is there already, is still in the shim's process group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shim.pid, signal.SIGKILL)
            await shim.wait()
            raise
        told = Manifest(json.loads(line) if line else {"error": "the shim has failed"})
        if told.has("error"):
            await shim.wait()
            command = " ".join(spec["command"])[:80]
            raise ContainerConfigError(f"{command}: {told.text('error')}")
        return cls(spec, shim, told.number("pid"))

    @property
    def has_ended(self) -> bool:
        return self._shim.returncode is not None

    async def wait(self) -> int:
        """The exit code; 128 + the signal when one ended it."""
        return await self._shim.wait()

    def send(self, number: signal.Signals) -> None:
        """Signal process 1; nothing happens when it has ended."""
        if not self.has_ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def execute(self, command: Sequence[str], timeout_s: float) -> Executed:
        """Run a command in the container, with its rights and its environment."""
        spec = self._spec
        groups = ",".join(str(group) for group in spec["groups"])
        process = await asyncio.create_subprocess_exec(
            *("nsenter", "--target", str(self.pid)),
            *("--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wd", "--"),
            *("setpriv", f"--reuid={spec['user']}", f"--regid={spec['group']}"),
            *(f"--groups={groups}", "--no-new-privs", "--", *command),
            env=spec["environment"],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), timeout_s)
        except TimeoutError:
            return Executed(TIMED_OUT, "", f"no answer within {timeout_s:.1f} s")
        finally:
            # nsenter waits for the command that it has forked; both are in the session made above.
            with contextlib.suppress(ProcessLookupError):
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    await process.wait()
        return Executed(process.returncode or 0, out.decode(), err.decode())


async def check_handler(
    handler: Manifest, process: ContainerProcess, host: str, port: int, timeout_s: float
) -> str:
    """Run the handler of a probe or hook; empty when it succeeded, else why not."""
    try:
        if handler.has("exec"):
            done = await process.execute(handler.texts("exec.command"), timeout_s)
            return "" if done else f"exit code {done.code}: {(done.out + done.err)[-OUTPUT_TAIL:]}"
        if handler.has("sleep"):
            async with asyncio.timeout(timeout_s):
                await asyncio.sleep(handler.number("sleep.seconds"))
            return ""
        async with asyncio.timeout(timeout_s):
            if handler.has("tcpSocket"):
                _, writer = await asyncio.open_connection(host, port)
                writer.close()
                return ""
            return await _check_http(handler.part("httpGet"), host, port)
    except (OSError, TimeoutError, ValueError) as error:
        return f"{type(error).__name__} {error}".strip()


async def _check_http(get: Manifest, host: str, port: int) -> str:
    context = None
    if get.text("scheme", "HTTP") == "HTTPS":
        # The kubelet does not check the certificate of what it probes either.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        headers = "".join(
            f"{header.text('name')}: {header.text('value')}\r\n"
            for header in get.parts("httpHeaders")
        )
        request = f"GET {get.text('path', '/')} HTTP/1.1\r\nHost: {host}:{port}\r\n{headers}"
        writer.write(f"{request}User-Agent: kube-probe/1.32\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        status = int((await reader.readline()).split()[1])
    finally:
        writer.close()
    return "" if 200 <= status < 400 else f"HTTP status {status}"


def handler_port(handler: Manifest) -> str:
    """The port that a handler asks, by number or name; empty when it asks none."""
    return handler.scalar("httpGet.port") or handler.scalar("tcpSocket.port")
