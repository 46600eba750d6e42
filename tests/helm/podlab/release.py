"""A release of the project's chart in a lab: what the life-cycle tests ask of it, in their words."""

import copy
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.helm.podlab import pods
from tests.helm.podlab.clients.ledger import Stored, decode
from tests.helm.podlab.helm_cli import HelmResult
from tests.helm.podlab.images import PROJECT, Image, host_environment
from tests.helm.podlab.journal import Entry, Happening
from tests.helm.podlab.lab import Lab, client_pod, running_lab
from tests.helm.podlab.manifest import Document, Manifest
from tests.helm.podlab.store import ObjectStore

CHART = str(PROJECT / "helm" / "milena")
NAME = "r"
SET = f"{NAME}-milena"
URL = f"http://{SET}.default.svc.cluster.local:8082"
HEADLESS = f"{SET}-headless.default.svc.cluster.local"
TOPIC = "ledger"
PARTITIONS = 6
IMAGES = {
    "milena": Image(environment=host_environment(), user=10001, group=10001),
    "client": Image(environment=host_environment(), working_directory=str(PROJECT)),
}
CLIENT = "client"
WRITER = "writer"
STRANGER = "stranger"
ADMIN_SECRET = f"{SET}-admin"

# Brisk probes: what they find does not change, how long a test waits for it does.
BRISK: Document = {
    "probes": {
        "startup": {"periodSeconds": 1},
        "readiness": {"periodSeconds": 1},
        "liveness": {"periodSeconds": 2},
    },
    "drain": {"settleSeconds": 1},
    "topics": [{"name": TOPIC, "partitions": PARTITIONS, "replicationFactor": 3}],
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a node answered."""

    status: int
    body: str


class Release:
    """The release ``r`` and a client's pod beside it."""

    def __init__(self, lab: Lab, directory: Path) -> None:
        self.lab = lab
        self._values = directory / "values.json"
        self._values.write_text(json.dumps(BRISK))

    def helm(self, command: str, *options: str, timeout_s: int = 120) -> HelmResult:
        """Install or upgrade to the end; it must succeed."""
        arguments = (command, NAME, CHART, "--values", str(self._values))
        out = self.lab.helm(*arguments, "--wait", "--timeout", f"{timeout_s}s", *options)
        return HelmResult(0, out, "")

    def attempt(self, command: str, *options: str, timeout_s: int) -> HelmResult:
        """Install or upgrade, whatever becomes of it."""
        arguments = (command, NAME, CHART, "--values", str(self._values))
        return self.lab.helm.attempt(*arguments, "--wait", "--timeout", f"{timeout_s}s", *options)

    # -- the client -------------------------------------------------------------------------

    def start_client(self) -> None:
        """A pod to ask from, as the first user."""
        self.lab.create(as_admin(client_pod(CLIENT, "client:1", {}, ["sleep", "infinity"])))
        self.lab.wait_ready(CLIENT, within_s=30)

    def start_stranger(self) -> None:
        """A pod to ask from without credentials."""
        self.lab.create(client_pod(STRANGER, "client:1", {}, ["sleep", "infinity"]))
        self.lab.wait_ready(STRANGER, within_s=30)

    def start_writer(self, rate: float) -> None:
        """A pod that writes until it is stopped."""
        module = "tests.helm.podlab.clients.steady_producer"
        # The nodes are named, for over plain HTTP nobody's password goes where only an answer says.
        urls = [URL, *(f"http://{name}.{HEADLESS}:8082" for name in self.node_pods(3))]
        named = [word for url in urls for word in ("--url", url)]
        command = ["python3", "-m", module, *named, "--topic", TOPIC, "--rate", str(rate)]
        pod = as_admin(client_pod(WRITER, "client:1", {}, command))
        spec = pod["spec"]
        assert isinstance(spec, dict), "a pod has a spec"
        spec["terminationGracePeriodSeconds"] = 150
        self.lab.create(pod)
        self.lab.wait_ready(WRITER, within_s=30)

    def acknowledged(self) -> list[Stored]:
        """What the writer was told is stored."""
        return decode(self.lab.log(WRITER, WRITER).splitlines())

    def gaps(self) -> list[str]:
        """When the writer had to wait, in the journal's time."""
        return [
            line for line in self.lab.log(WRITER, WRITER).splitlines() if line.startswith("gap")
        ]

    def failed_writes(self) -> list[str]:
        """What the writer was told has failed."""
        return [
            line for line in self.lab.log(WRITER, WRITER).splitlines() if line.startswith("failed")
        ]

    def stop_writer(self) -> Manifest:
        """Let it wait for its last answers; its own summary."""
        self.lab.delete_pod(WRITER, 150)
        self.lab.wait_until(
            lambda store: store.find("Pod", WRITER) is None, 150, "the writer flushes and ends"
        )
        return Manifest(json.loads(self.lab.log(WRITER, WRITER).splitlines()[-1]))

    def read_back(self) -> list[Stored]:
        """Every record of the topic, through the service, over plain HTTP."""
        module = "tests.helm.podlab.clients.read_back"
        command = ("python3", "-m", module, "--url", URL, "--topic", TOPIC)
        done = self.lab.execute(CLIENT, *command, "--partitions", str(PARTITIONS), timeout_s=90.0)
        assert done, f"the topic cannot be read: {done.err}"
        return decode(done.out.splitlines())

    def ask(
        self,
        path: str,
        *,
        pod: str = "",
        client: str = CLIENT,
        method: str = "GET",
        authorization: str = "",
    ) -> Answer:
        """The answer of one pod, or of any through the service, whatever it is."""
        url = (f"http://{pod}.{HEADLESS}:8082" if pod else URL) + path
        command = ["python3", "-m", "tests.helm.podlab.clients.ask", url, "--method", method]
        if authorization:
            command += ["--authorization", authorization]
        done = self.lab.execute(client, *command)
        assert done, f"{method} {url}: {done.err}"
        told = Manifest(json.loads(done.out))
        return Answer(told.number("status"), told.text("body"))

    def get(self, path: str, *, pod: str = "") -> Manifest:
        """A GET of one pod, or of any through the service; it must succeed."""
        answer = self.ask(path, pod=pod)
        assert answer.status == 200, f"GET {path}: {answer}"
        return Manifest(json.loads(answer.body))

    def leader_pod(self, partition: int) -> str:
        """The pod that leads a partition of the topic."""
        for topic in self.get("/metadata").parts("topics"):
            if topic.text("name") == TOPIC:
                leader = topic.parts("partitions")[partition].number("leader")
                return f"{SET}-{leader - 1}"
        raise AssertionError(f"{TOPIC} is there")

    def controller_pod(self) -> str:
        """The pod that leads the metadata quorum."""
        return f"{SET}-{self.get('/metadata').number('controller_id') - 1}"

    def is_in_sync(self) -> bool:
        """Whether every replica of every partition is in sync."""
        return all(
            len(partition.numbers("isr")) == len(partition.numbers("replicas"))
            for topic in self.get("/metadata").parts("topics")
            for partition in topic.parts("partitions")
        )

    # -- the pods ---------------------------------------------------------------------------

    def node_pods(self, count: int) -> list[str]:
        """Names of the first pods."""
        return [f"{SET}-{ordinal}" for ordinal in range(count)]

    def mark(self) -> int:
        """A place in the journal."""
        return len(self.lab.journal.entries)

    def stops_since(self, mark: int) -> list[Entry]:
        """How nodes were stopped since."""
        return [
            entry
            for entry in self.lab.journal.entries[mark:]
            if entry.what is Happening.STOPPED and entry.pod.startswith(f"{SET}-")
        ]

    def wait_replaced(self, pod: str, uid: str, within_s: float) -> float:
        """Wait until another pod of that name is ready."""

        def is_back(store: ObjectStore) -> bool:
            found = store.find("Pod", pod)
            return found is not None and found.uid != uid and pods.is_ready(found)

        return self.lab.wait_until(is_back, within_s, f"{pod} is back and ready")


def as_admin(pod: Document) -> Document:
    """The pod with the first user's credentials, as the chart's own commands have them."""
    changed = copy.deepcopy(pod)
    spec = Manifest(changed).part("spec")
    spec.raw["volumes"] = [{"name": "admin", "secret": {"secretName": ADMIN_SECRET}}]
    container = spec.parts("containers")[0].raw
    container["volumeMounts"] = [{"name": "admin", "mountPath": "/etc/milena-admin"}]
    container["env"] = [
        {"name": "MILENA_USER", "value": "admin"},
        {"name": "MILENA_PASSWORD_FILE", "value": "/etc/milena-admin/admin-password"},
    ]
    return changed


def unclean(stops: Sequence[Entry]) -> list[str]:
    """What was wrong with how nodes were stopped: killed, a failed drain, or an exit that is no success."""
    found = []
    for entry in stops:
        assert entry.stop is not None, "a stop says how"
        if entry.stop.was_killed or entry.stop.exit_code or entry.stop.pre_stop_error:
            found.append(str(entry))
    return found


def overlaps(entries: Sequence[Entry]) -> list[str]:
    """Stops of one node while another one was still away: a rollout that did not wait for readiness."""
    away: set[str] = set()
    found = []
    for entry in entries:
        if not entry.pod.startswith(f"{SET}-"):
            continue
        if entry.what is Happening.STOPPED:
            if away - {entry.pod}:
                found.append(f"{entry.pod} was stopped while {', '.join(sorted(away))} was away")
            away.add(entry.pod)
        elif entry.what is Happening.READY:
            away.discard(entry.pod)
    return found


@contextmanager
def milena_lab(directory: Path) -> Iterator[Release]:
    """A lab that can run the chart; nothing is installed yet."""
    with running_lab(IMAGES, directory) as lab:
        yield Release(lab, directory)
