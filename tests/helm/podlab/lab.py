"""A cluster of real pods on this machine, and the helm that works on it: what the chart's tests use.

Needs root; everything it makes (namespaces, processes, mounts) goes when the context ends, or with this process.
"""

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.helm.podlab import pods
from tests.helm.podlab.cluster import Cluster, new_store
from tests.helm.podlab.helm_cli import Helm
from tests.helm.podlab.images import Image
from tests.helm.podlab.journal import Journal
from tests.helm.podlab.kubelet import Kubelet
from tests.helm.podlab.manifest import Document, Manifest
from tests.helm.podlab.process import Executed
from tests.helm.podlab.store import ObjectStore

EXECUTE_S = 30.0
POLL_S = 0.2


class Lab:
    """Blocking handles on everything. Made by ``running_lab``."""

    def __init__(self, cluster: Cluster, kubelet: Kubelet, helm: Helm) -> None:
        self.cluster = cluster
        self.helm = helm
        self._kubelet = kubelet

    @property
    def journal(self) -> Journal:
        """What has happened to the pods."""
        return self._kubelet.journal

    def names(self, kind: str) -> list[str]:
        """The names of all objects of a kind."""
        return self.cluster.read(lambda store: [found.name for found in store.all(kind)])

    def get(self, kind: str, name: str) -> Manifest:
        """One object."""
        return self.cluster.read(lambda store: store.get(kind, name))

    def create(self, document: Document) -> None:
        """Add an object, past the API: a test's own."""
        self.cluster.read(lambda store: store.create(document))

    def delete_pod(self, name: str, grace_s: int) -> None:
        """Stop a pod; with no grace it is killed at once."""
        self.cluster.read(lambda store: store.mark_terminating("Pod", name, grace_s))

    def kill(self, pod: str) -> None:
        """Kill process 1 of a pod's first container with -9, as a crash or a lack of memory does."""

        async def send() -> None:
            process = self._kubelet.runner(pod).containers[0].process
            assert process is not None, f"{pod} has started"
            process.send(signal.SIGKILL)

        self.cluster.run(send())

    def execute(self, pod: str, *command: str, timeout_s: float = EXECUTE_S) -> Executed:
        """Run a command in a pod's first container."""

        async def run() -> Executed:
            process = self._kubelet.runner(pod).containers[0].process
            assert process is not None, f"{pod} has started"
            return await process.execute(command, timeout_s)

        return self.cluster.run(run())

    def log(self, pod: str, container: str = "") -> str:
        """What a container has printed."""
        return self.cluster.read(lambda _: self._kubelet.read_log(pod, container))

    def wait_until(
        self, is_true: Callable[[ObjectStore], bool], within_s: float, what: str
    ) -> float:
        """Poll until a condition holds; returns how long that took."""
        return self.cluster.wait_until(is_true, within_s, what)

    def wait_for(self, is_true: Callable[[], bool], within_s: float, what: str) -> None:
        """Poll until something holds that is asked for outside of the store: of a log, or of a node."""
        deadline = time.monotonic() + within_s
        while not is_true():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {within_s} s: {what}")
            time.sleep(POLL_S)

    def wait_ready(self, *names: str, within_s: float) -> float:
        """Wait until these pods are there and ready."""
        return self.wait_until(
            lambda store: all(_is_ready(store, name) for name in names),
            within_s,
            f"{', '.join(names)} ready",
        )


@contextmanager
def running_lab(images: Mapping[str, Image], directory: Path) -> Iterator[Lab]:
    """A lab for as long as the context lasts.

    Raises:
        LabError: The machine cannot run pods; the message names what is missing.
    """
    store = new_store()
    kubelet = Kubelet(store, images, directory)
    cluster = Cluster(store, kubelet)
    helm = Helm(cluster.url, directory / "helm")
    with cluster:
        yield Lab(cluster, kubelet, helm)


def client_pod(
    name: str, image: str, labels: Mapping[str, str], command: Sequence[str]
) -> Document:
    """A pod from which a test looks at the others, or works on them."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict(labels)},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": name, "image": image, "command": list(command)}],
        },
    }


def _is_ready(store: ObjectStore, name: str) -> bool:
    pod = store.find("Pod", name)
    return pod is not None and pods.is_ready(pod)
