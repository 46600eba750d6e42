"""Runs an unpacked image as a container would be run: namespaces of its own, read-only root, process 1, no rights."""

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

from tests.helm.image_build import DATA, BuiltImage

ENTER_S_MAX = 10.0
POLL_S = 0.05

# The last step happens within: who has given up all rights cannot change the root any more.
INIT = """set -eu
root="$1"; shift
ip link set lo up
mount --bind "$root" "$root"
for name in $MOUNTS; do mount --bind "${name%%=*}" "$root${name#*=}"; done
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/tmp"
mount --bind /dev "$root/dev"
mount -o remount,bind,ro "$root"
exec chroot "$root" /usr/bin/setpriv --reuid="$USER_ID" --regid="$GROUP_ID" --clear-groups --no-new-privs \\
    --inh-caps=-all --bounding-set=-all /usr/bin/env -i -C "$WORKING_DIR" "$@"
"""


@dataclass(slots=True, kw_only=True)
class ImageNode:
    """One container. Used as a context manager; it is killed at the end if it still runs."""

    image: BuiltImage
    arguments: tuple[str, ...]
    """The command; the image's entry point stands before it unless it begins with a slash."""
    mounts: dict[Path, str]
    """Folders of this machine and where the container sees them."""
    environment: dict[str, str] = field(default_factory=dict)
    log: Path
    _process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        config = self._config()
        for where in self.mounts.values():
            (self.image.root / where.lstrip("/")).mkdir(parents=True, exist_ok=True)
        # As the kubelet does.
        (self.image.root / "etc" / "hosts").write_text("127.0.0.1 localhost\n", encoding="ascii")
        is_path = self.arguments[0].startswith("/")
        command = self.arguments if is_path else (*config["Entrypoint"], *self.arguments)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *("unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--fork"),
                    *("--kill-child", "--propagation", "private"),
                    *("/bin/sh", "-c", INIT, "init", str(self.image.root)),
                    *(f"{name}={value}" for name, value in self._variables(config).items()),
                    *command,
                ],
                env={
                    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                    "MOUNTS": " ".join(f"{here}={there}" for here, there in self.mounts.items()),
                    "USER_ID": config["User"].partition(":")[0],
                    "GROUP_ID": config["User"].partition(":")[2],
                    "WORKING_DIR": config["WorkingDir"],
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self

    def __exit__(self, *_: object) -> None:
        process = self._running
        if process.poll() is None:
            # Process 1 itself: whom the kernel tells of a parent's death is forgotten when the user changes.
            os.kill(next(iter(self._children()), process.pid), signal.SIGKILL)
        process.wait()

    def _config(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self.image.inspect()["config"])

    def _variables(self, config: dict[str, Any]) -> dict[str, str]:
        image = dict(line.split("=", 1) for line in config["Env"])
        return {"HOSTNAME": "milena-0", **image, **self.environment}

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "use it as a context manager"
        return self._process

    @property
    def pid(self) -> int:
        """Process 1 of the container, as this machine numbers it."""
        return self._children()[0]

    def _children(self) -> list[int]:
        outer = self._running.pid
        children = Path(f"/proc/{outer}/task/{outer}/children").read_text(encoding="ascii")
        return [int(pid) for pid in children.split()]

    def output(self) -> str:
        """Everything that it printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def status(self, name: str) -> str:
        """A line of what the kernel says of process 1."""
        lines = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith(name))

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the container, as ``kubectl exec`` does."""
        config = self._config()
        return subprocess.run(
            [
                *("nsenter", "--target", str(self.pid), "--mount", "--pid", "--net", "--uts"),
                *("--root", "--wd"),
                *("/usr/bin/setpriv", "--reuid=10001", "--regid=10001", "--clear-groups"),
                *("/usr/bin/env", "-i"),
                *(f"{name}={value}" for name, value in self._variables(config).items()),
                *command,
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def wait_until_succeeds(self, *command: str, within_s: float) -> None:
        """Run a command until it succeeds.

        Raises:
            TimeoutError: It did not in time; the message has the container's output.
        """
        end, said = time.monotonic() + within_s, ""
        while time.monotonic() < end:
            if self._running.poll() is not None:
                raise RuntimeError(f"it ended: {self.output()}")
            done = self.run(*command)
            if done.returncode == 0:
                return
            said = done.stderr
            time.sleep(POLL_S)
        raise TimeoutError(f"{' '.join(command)}: not within {within_s} s: {said}\n{self.output()}")

    def terminate(self, within_s: float) -> int:
        """Send SIGTERM to process 1; the exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return self._running.wait(within_s)


def describe(image: BuiltImage) -> str:
    """The image's configuration as text, to look for what must not stand in it."""
    return json.dumps(image.inspect())


def data_folder(work: Path) -> dict[Path, str]:
    """A volume that belongs to the image's user."""
    work.mkdir(parents=True)
    os.chown(work, 10001, 10001)
    return {work: DATA}
