"""One container's life: started, probed, restarted as the pod's policy says, stopped within its grace period.

Order of a stop: preStop, then TERM, then KILL when the grace period, begun with preStop, is over; after a preStop
that took all of it two seconds are left, as with the kubelet. Restarts back off from one second, not from ten as
the kubelet does: a test has less patience than an operator.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.helm.podlab import pods
from tests.helm.podlab.journal import Happening, Journal, Stop
from tests.helm.podlab.manifest import Document, Manifest
from tests.helm.podlab.probes import ProbeRule, ProbeTally, parse_probe
from tests.helm.podlab.process import ContainerProcess, check_handler, handler_port

BACKOFF_S_FIRST = 1.0
BACKOFF_S_MAX = 10.0
LAST_CHANCE_S = 2.0


@dataclass(frozen=True, slots=True)
class PodView:
    """What a container knows of its pod. ``start`` plans and starts the process anew."""

    manifest: Manifest
    address: str
    start: Callable[[Manifest], Awaitable[ContainerProcess]]
    changed: Callable[[], None]
    journal: Journal
    grace_s: float
    restart_policy: str


class Container:
    """A container of a pod. ``run`` ends when it has ended for good."""

    def __init__(self, spec: Manifest, pod: PodView) -> None:
        self.spec = spec
        self.name = spec.text("name")
        self.restarts = 0
        self.is_ready = False
        self.exit_code: int | None = None
        self.process: ContainerProcess | None = None
        self._pod = pod
        self._is_stopping = False
        self._stopped = asyncio.Event()
        self._restarting: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """Start, watch and restart; the last exit code."""
        backoff_s = 0.0
        while True:
            code = await self._run_once()
            if not self._wants_restart(code):
                return code
            self.restarts += 1
            await _either(self._stopped.wait(), asyncio.sleep(backoff_s))
            if self._is_stopping:
                return code
            backoff_s = min(max(backoff_s * 2, BACKOFF_S_FIRST), BACKOFF_S_MAX)

    async def terminate(self, grace_s: float) -> None:
        """Stop for good."""
        self._is_stopping = True
        self._stopped.set()
        await self._stop_process(grace_s)

    def status(self) -> Document:
        """As it stands in the pod's status."""
        return {
            "name": self.name,
            "ready": self.is_ready,
            "restartCount": self.restarts,
            "exitCode": self.exit_code,
        }

    def _note(self, what: Happening, detail: str = "", stop: Stop | None = None) -> None:
        self._pod.journal.note(self._pod.manifest.name, self.name, what, detail, stop)
        self._pod.changed()

    def _wants_restart(self, code: int) -> bool:
        if self._is_stopping:
            return False
        policy = self._pod.restart_policy
        return policy == "Always" or (policy == "OnFailure" and code != 0)

    async def _run_once(self) -> int:
        self.process = await self._pod.start(self.spec)
        self.exit_code = None
        self._note(Happening.STARTED, f"pid={self.process.pid}")
        watching = asyncio.create_task(self._watch(self.process))
        try:
            code = await self.process.wait()
        finally:
            self.process.send(signal.SIGKILL)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            if self._restarting is not None:
                await self._restarting
                self._restarting = None
            self._set_ready(is_ready=False)
        self.exit_code = code
        self._note(Happening.EXITED, f"code={code}")
        return code

    # -- probes -----------------------------------------------------------------------------

    async def _watch(self, process: ContainerProcess) -> None:
        startup = parse_probe(self.spec, "startupProbe")
        if startup is not None and not await self._probe_until_known(process, startup):
            self._restart(startup, "startupProbe")
            return
        async with asyncio.TaskGroup() as probes:
            readiness = parse_probe(self.spec, "readinessProbe")
            if readiness is None:
                self._set_ready(is_ready=True)
            else:
                probes.create_task(self._keep_readiness(process, readiness))
            liveness = parse_probe(self.spec, "livenessProbe")
            if liveness is not None:
                probes.create_task(self._keep_alive(process, liveness))

    async def _probe_until_known(self, process: ContainerProcess, rule: ProbeRule) -> bool:
        tally = ProbeTally(rule)
        await asyncio.sleep(rule.initial_delay_s)
        while (known := tally.note(is_good=not await self._ask(process, rule))) is None:
            await asyncio.sleep(rule.period_s)
        return known

    async def _keep_readiness(self, process: ContainerProcess, rule: ProbeRule) -> None:
        tally = ProbeTally(rule)
        await asyncio.sleep(rule.initial_delay_s)
        while True:
            error = await self._ask(process, rule)
            known = tally.note(is_good=not error)
            if known is not None:
                self._set_ready(is_ready=known, detail=error)
            await asyncio.sleep(rule.period_s)

    async def _keep_alive(self, process: ContainerProcess, rule: ProbeRule) -> None:
        tally = ProbeTally(rule)
        await asyncio.sleep(rule.initial_delay_s)
        while tally.note(is_good=not await self._ask(process, rule)) is not False:
            await asyncio.sleep(rule.period_s)
        self._restart(rule, "livenessProbe")

    def _restart(self, rule: ProbeRule, name: str) -> None:
        """Stop the process, in a task of its own: the end of the process ends the probes' task."""
        if not self._is_stopping:
            self._note(Happening.PROBE_FAILED, name)
            grace_s = rule.handler.number("terminationGracePeriodSeconds", int(self._pod.grace_s))
            self._restarting = asyncio.create_task(self._stop_process(grace_s))

    async def _ask(self, process: ContainerProcess, rule: ProbeRule) -> str:
        return await self._handle(process, rule.handler, rule.timeout_s)

    async def _handle(self, process: ContainerProcess, handler: Manifest, timeout_s: float) -> str:
        named = handler_port(handler)
        port = pods.port_number(self._pod.manifest, named) if named else 0
        return await check_handler(handler, process, self._pod.address, port, timeout_s)

    def _set_ready(self, *, is_ready: bool, detail: str = "") -> None:
        if is_ready != self.is_ready:
            self.is_ready = is_ready
            self._note(Happening.READY if is_ready else Happening.UNREADY, detail)

    # -- stopping ---------------------------------------------------------------------------

    async def _stop_process(self, grace_s: float) -> None:
        process = self.process
        if process is None or process.has_ended:
            return
        loop = asyncio.get_running_loop()
        begun = loop.time()
        hook = self.spec.part("lifecycle.preStop")
        error = ""
        if hook.raw and grace_s > 0:
            error = await self._handle(process, hook, grace_s)
        process.send(signal.SIGTERM if grace_s > 0 else signal.SIGKILL)
        left_s = max(begun + grace_s - loop.time(), LAST_CHANCE_S)
        was_killed = grace_s <= 0
        try:
            code = await asyncio.wait_for(asyncio.shield(process.wait()), left_s)
        except TimeoutError:
            was_killed = True
            process.send(signal.SIGKILL)
            code = await process.wait()
        stop = Stop(
            was_killed=was_killed,
            exit_code=code,
            seconds=loop.time() - begun,
            pre_stop_error=error,
        )
        detail = (
            f"by {'KILL' if was_killed else 'TERM'} code={code} after {stop.seconds:.2f} s {error}"
        )
        self._note(Happening.STOPPED, detail, stop)


async def _either(*awaitables: Awaitable[object]) -> None:
    """Wait for the first of several and give up the others."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
