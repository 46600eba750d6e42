"""Pods without processes: ready at once, gone at once. For all of a chart but what runs in it; needs no root."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.helm.podlab import pods
from tests.helm.podlab.manifest import Manifest
from tests.helm.podlab.store import ObjectStore


def always(_: Manifest) -> bool:
    """A pod of which nothing is to be waited for."""
    return True


@dataclass
class HollowPods:
    """Plays the kubelet on ``sync``: one step for every pod. Who may become ready is the test's to say."""

    store: ObjectStore
    may_be_ready: Callable[[Manifest], bool] = always
    started: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)

    def enter(self) -> None:
        """Nothing to enter."""

    async def start(self) -> None:
        """Nothing to start."""

    async def close(self) -> None:
        """Nothing to stop."""

    def read_log(self, pod: str, container: str) -> str:
        """Which pod was asked for: there is nothing else to read."""
        return f"{pod} {container}".strip()

    def sync(self) -> None:
        """Start what is new, finish what runs to an end, remove what is to go."""
        for pod in self.store.all("Pod"):
            if pod.is_terminating:
                self.stopped.append(pod.name)
                self.store.remove("Pod", pod.name)
            elif not pod.has("status.phase"):
                self.started.append(pod.name)
                self._report(pod, "Running")
            elif pods.phase(pod) == "Running":
                is_done = pod.text("spec.restartPolicy", "Always") != "Always"
                self._report(pod, "Succeeded" if is_done else "Running")

    def _report(self, pod: Manifest, phase: str) -> None:
        is_ready = phase == "Running" and self.may_be_ready(pod)
        self.store.set_status(
            "Pod", pod.name, pods.status(phase=phase, is_ready=is_ready, ip="198.18.1.1")
        )
