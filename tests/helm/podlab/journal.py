"""What happened to pods, in order: for tests to judge and for people to read."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, unique


@unique
class Happening(Enum):
    """Kinds of things that happen to a container."""

    STARTED = "started"
    READY = "ready"
    UNREADY = "unready"
    PROBE_FAILED = "probe failed"
    EXITED = "exited"
    STOPPED = "stopped"
    CONFIG_ERROR = "cannot start"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """How a container was stopped. ``pre_stop_error`` is empty when its hook succeeded, or it has none."""

    was_killed: bool
    exit_code: int
    seconds: float
    pre_stop_error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing that happened; ``at_s`` is monotonic."""

    at_s: float
    pod: str
    container: str
    what: Happening
    detail: str = ""
    stop: Stop | None = None

    def __str__(self) -> str:
        return (
            f"{self.at_s:9.2f} {self.pod}/{self.container} {self.what.value} {self.detail}".rstrip()
        )


@dataclass
class Journal:
    """Entries of one lab. Appended to on the lab's loop, read from anywhere."""

    now_s: Callable[[], float]
    entries: list[Entry] = field(default_factory=list)

    def note(
        self,
        pod: str,
        container: str,
        what: Happening,
        detail: str = "",
        stop: Stop | None = None,
    ) -> None:
        """Add an entry."""
        self.entries.append(
            Entry(
                at_s=self.now_s(),
                pod=pod,
                container=container,
                what=what,
                detail=detail,
                stop=stop,
            )
        )

    def of(self, what: Happening, *, pod: str = "") -> list[Entry]:
        """The entries of a kind, of one pod or of all whose name begins so."""
        return [entry for entry in self.entries if entry.what is what and entry.pod.startswith(pod)]

    def __str__(self) -> str:
        return "\n".join(str(entry) for entry in self.entries)
