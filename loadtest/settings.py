"""Settings of one load test (pure)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from loadtest.judging.plants import Plant
from milena.cluster.credentials import ANONYMOUS, Credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The command line as a value; its help describes each option. Without ``urls``, the test starts a cluster."""

    urls: tuple[str, ...]
    topic: str
    partitions: int
    replication_factor: int
    run_time_s: float
    users: int
    spawn_rate: float
    acks: str
    record_bytes: int
    batch_records: int
    keys: int
    think_ms: float
    seed: int
    is_kill: bool
    down_s: float
    plant: Plant | None
    is_web: bool
    web_port: int
    directory: Path
    judged: Path | None
    """The ledgers of an earlier run, which are judged without a new load."""
    locust_options: tuple[str, ...]
    credentials: Credentials = ANONYMOUS
    """The credentials for a running cluster."""

    @property
    def ledgers(self) -> Path:
        """Return the folder in which locust's processes create a folder for each test."""
        return self.directory / "ledger"

    def described(self) -> Mapping[str, str | int | float]:
        """Return the settings for the report."""
        shown = asdict(self)
        for name in ("is_web", "web_port", "directory", "judged", "credentials"):
            del shown[name]
        return {
            **shown,
            "urls": ", ".join(self.urls) or "three nodes on this machine",
            "plant": str(self.plant or "nothing"),
            "locust_options": " ".join(self.locust_options),
        }


def locust_command(
    settings: Settings, urls: tuple[str, ...], *, python: str, locustfile: Path
) -> list[str]:
    """Return the command that runs locust on these nodes."""
    command = [python, "-m", "locust", "--locustfile", str(locustfile), "--host", urls[0]]
    command += ["--nodes", ",".join(urls[1:]), "--topic", settings.topic]
    command += ["--ledger", str(settings.ledgers), "--acks", settings.acks]
    command += ["--record-bytes", str(settings.record_bytes), "--keys", str(settings.keys)]
    command += ["--batch-records", str(settings.batch_records)]
    command += ["--think-ms", str(settings.think_ms), "--seed", str(settings.seed)]
    command += ["--users", str(settings.users), "--spawn-rate", f"{settings.spawn_rate:g}"]
    # The stop timeout lets a user finish its request, so it is longer than a user's own deadline.
    command += ["--stop-timeout", "45", "--exit-code-on-error", "0"]
    if settings.is_web:
        command += [
            "--web-host",
            "127.0.0.1",
            "--web-port",
            str(settings.web_port),
            "--class-picker",
        ]
    else:
        command += ["--headless", "--only-summary", "--run-time", f"{settings.run_time_s:g}s"]
        command += ["--html", str(settings.directory / "locust.html")]
        command += ["--csv", str(settings.directory / "locust"), "--csv-full-history"]
    return [*command, *settings.locust_options]
