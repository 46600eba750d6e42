"""Runs all pods of the store as real processes, keeps their packet rules up to date, and serves their names.

Lives on the loop of a cluster whose thread is in the fabric's namespace.
"""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

from tests.helm.podlab.dns_server import DnsServer
from tests.helm.podlab.fabric import Fabric, apply_rules
from tests.helm.podlab.firewall import rules_for
from tests.helm.podlab.images import Image, host_layout
from tests.helm.podlab.journal import Journal
from tests.helm.podlab.machine import LabError, check_machine
from tests.helm.podlab.pod_runner import Machine, PodRunner
from tests.helm.podlab.store import ObjectStore

GRACE_S_DEFAULT = 30


class Kubelet:
    """A ``PodHost`` of real processes."""

    def __init__(self, store: ObjectStore, images: Mapping[str, Image], directory: Path) -> None:
        check_machine()
        self.journal = Journal(time.monotonic)
        self.runners: dict[str, PodRunner] = {}
        self._store = store
        self._fabric = Fabric()
        self._dns = DnsServer(store)
        self._rules_changed = asyncio.Event()
        self._waiting_for_rules: list[asyncio.Event] = []
        self._files_version = 0
        self._applied: dict[str, str] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stops: dict[str, asyncio.Task[None]] = {}
        self._keeper: asyncio.Task[None] | None = None
        self._machine = Machine(
            store=store,
            fabric=self._fabric,
            journal=self.journal,
            layout=host_layout(),
            images=images,
            directory=directory,
            settle_rules=self._settle_rules,
        )

    def enter(self) -> None:
        """Make the network and move this thread into it."""
        self._fabric.enter()

    async def start(self) -> None:
        """Serve names and keep rules."""
        await self._dns.start()
        self._keeper = asyncio.create_task(self._keep_rules())

    def sync(self) -> None:
        """Start runners of new pods, stop those of pods that are to go."""
        self._rules_changed.set()
        for pod in self._store.all("Pod"):
            if pod.uid not in self.runners:
                runner = PodRunner(pod, self._machine)
                self.runners[pod.uid] = runner
                self._tasks[pod.uid] = asyncio.create_task(runner.run())
            elif pod.is_terminating and pod.uid not in self._stops:
                grace_s = pod.number("metadata.deletionGracePeriodSeconds", GRACE_S_DEFAULT)
                self._stops[pod.uid] = asyncio.create_task(self._stop(pod.uid, grace_s))
        self._refresh_files()
        self._raise_failures()

    async def close(self) -> None:
        """Kill all pods and remove the network."""
        for uid in list(self.runners):
            if uid not in self._stops:
                self._stops[uid] = asyncio.create_task(self._stop(uid, 0))
        await asyncio.gather(*self._stops.values(), return_exceptions=True)
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        self._dns.close()
        self._fabric.close()

    def read_log(self, pod: str, container: str) -> str:
        """What a container has printed."""
        if not container:
            spec = self._store.get("Pod", pod)
            container = spec.parts("spec.containers")[0].text("name")
        file = self._machine.log_file(pod, container)
        return file.read_text(errors="replace") if file.exists() else ""

    def runner(self, pod: str) -> PodRunner:
        """The runner of a pod by name.

        Raises:
            KeyError: No such pod runs.
        """
        for runner in self.runners.values():
            if runner.name == pod:
                return runner
        raise KeyError(f"no pod {pod} runs")

    async def _stop(self, uid: str, grace_s: float) -> None:
        runner, task = self.runners[uid], self._tasks[uid]
        await runner.stop(grace_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        runner.remove()
        del self.runners[uid], self._tasks[uid]
        self._applied.pop(uid, None)
        self._store.remove("Pod", runner.name)
        self._stops.pop(uid, None)

    async def _settle_rules(self) -> None:
        """Wait until everybody's rules are as the store stands now: a pod's programs begin only then."""
        done = asyncio.Event()
        self._waiting_for_rules.append(done)
        self._rules_changed.set()
        await done.wait()

    async def _keep_rules(self) -> None:
        """Apply packet rules whenever they differ; one pass at a time, so that the last one wins."""
        while True:
            await self._rules_changed.wait()
            self._rules_changed.clear()
            waiting, self._waiting_for_rules = self._waiting_for_rules, []
            services = self._store.all("Service")
            policies = self._store.all("NetworkPolicy")
            all_pods = self._store.all("Pod")
            for pod in all_pods:
                rules = rules_for(pod, services=services, policies=policies, all_pods=all_pods)
                if self._applied.get(pod.uid) != rules:
                    await self._apply_rules(pod.uid, rules)
            for done in waiting:
                done.set()

    async def _apply_rules(self, uid: str, rules: str) -> None:
        namespace = self._fabric.namespace_of(uid)
        if namespace is None:
            return
        try:
            await asyncio.to_thread(apply_rules, namespace, rules)
        except LabError:
            if self._fabric.namespace_of(uid) is not None:
                raise
        else:
            self._applied[uid] = rules

    def _refresh_files(self) -> None:
        """Carry changes of config maps and secrets to running pods at once; a real kubelet takes a minute."""
        changed = [
            event.version
            for kind in ("ConfigMap", "Secret")
            for event in self._store.since(self._files_version, kind)
        ]
        if changed:
            self._files_version = max(changed)
            for runner in self.runners.values():
                runner.refresh_files()

    def _raise_failures(self) -> None:
        """A runner that failed by itself is a fault of the lab, not of the chart."""
        watched = [*self._tasks.values(), *([self._keeper] if self._keeper else [])]
        for task in watched:
            if task.done() and not task.cancelled() and (error := task.exception()):
                raise error
