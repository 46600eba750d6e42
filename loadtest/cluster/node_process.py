"""One operating-system process that is started, killed, paused and started again with the same command.

Signals go to the process id that this object started, to nothing else. On Linux the process dies with the one that
started it, so that a killed test leaves no node behind.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
STOP_TIMEOUT_S = 20.0
"""A graceful stop hands leadership over and syncs; far less is normal."""

_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """Have this process killed when the one that started it ends, on Linux."""
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class NodeProcess:
    """A command with its environment and log file; at most one process of it at a time."""

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str], log_path: Path
    ) -> None:
        self.command = tuple(command)
        self.log_path = log_path
        self.is_paused = False
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """The process exists; it may be paused."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Return the exit code of the last process; None while it runs, or before there was one."""
        return None if self._process is None else self._process.poll()

    @property
    def pid(self) -> int | None:
        """Return the process id of the last process."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it; does nothing when it runs."""
        if self.is_running:
            return
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                # A session of its own: Ctrl-C reaches the parent alone, which then stops nodes in its own order.
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one prctl call, no lock is taken
            )
        self.is_paused = False

    def kill(self) -> None:
        """Kill -9, and wait until it is gone."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        self.is_paused = False

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """Graceful stop; True when the process obeyed in time, else it is killed."""
        self._signal(signal.SIGTERM)
        if self._process is None:
            return True
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        return True

    def interrupt(self) -> None:
        """SIGINT, as Ctrl-C sends it."""
        self._signal(signal.SIGINT)

    def kill_all(self) -> None:
        """Kill -9 the process and the children that it started, and wait until it is gone."""
        if self._process is not None:
            # It leads a session and so a group of its own; the group may outlive its leader.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self.is_paused = False

    def pause(self) -> None:
        """SIGSTOP."""
        self._signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)
        self.is_paused = False

    def log_tail(self, size: int = 2000) -> str:
        """The end of the log, for messages about a node that will not start."""
        with contextlib.suppress(FileNotFoundError), self.log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - size))
            return log.read().decode(errors="replace")
        return ""

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
