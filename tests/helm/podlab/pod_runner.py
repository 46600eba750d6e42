"""One pod's life as real processes: a network namespace, volumes, init containers, containers, and the way out.

Configuration that cannot be carried out (a missing key, a program that is not there) is reported in the pod's
status and tried again, as the kubelet does.
"""

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.helm.podlab import pods
from tests.helm.podlab.container import Container, PodView
from tests.helm.podlab.container_plan import PodPlace, VolumePlace, plan_container
from tests.helm.podlab.environment import ContainerConfigError
from tests.helm.podlab.fabric import Fabric
from tests.helm.podlab.images import Image, RootLayout
from tests.helm.podlab.journal import Happening, Journal
from tests.helm.podlab.manifest import Manifest
from tests.helm.podlab.process import ContainerProcess
from tests.helm.podlab.store import ObjectStore
from tests.helm.podlab.volumes import Volume, VolumeFile, plan_volumes

RETRY_S = 0.5
DIRECTORY_MODE = 0o777


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What all pods of a lab share. ``images`` maps the name of an image, without its tag, to what it is."""

    store: ObjectStore
    fabric: Fabric
    journal: Journal
    layout: RootLayout
    images: Mapping[str, Image]
    directory: Path
    settle_rules: Callable[[], Awaitable[None]]

    def log_file(self, pod: str, container: str) -> Path:
        """Where a container's output goes, over all of its restarts and all pods of that name."""
        return self.directory / "logs" / f"{pod}.{container}.log"


class PodRunner:
    """Runs one pod. ``run`` ends when all containers have; ``stop`` removes every trace of it."""

    def __init__(self, pod: Manifest, machine: Machine) -> None:
        self.name = pod.name
        self.uid = pod.uid
        self.containers: list[Container] = []
        self._pod = pod
        self._machine = machine
        self._directory = machine.directory / "pods" / pod.uid
        self._place: PodPlace | None = None
        self._phase = "Pending"
        self._message = ""
        self._address = ""
        self._files: dict[str, tuple[VolumeFile, ...]] = {}
        self._restart_policy = pod.text("spec.restartPolicy", "Always")
        self._grace_s = pod.number("spec.terminationGracePeriodSeconds", 30)

    async def run(self) -> None:
        """Set up, run to the end, report the end."""
        await self._attach()
        for spec in self._pod.parts("spec.initContainers"):
            policy = "Never" if self._restart_policy == "Never" else "OnFailure"
            if await self._run_one(Container(spec, self._view(policy))):
                self._report("Failed", f"init container {spec.text('name')} failed")
                return
        self.containers = [
            Container(spec, self._view(self._restart_policy))
            for spec in self._pod.parts("spec.containers")
        ]
        self._report("Running")
        codes = await asyncio.gather(*(container.run() for container in self.containers))
        self._report("Failed" if any(codes) else "Succeeded")

    async def stop(self, grace_s: float) -> None:
        """Stop the containers, then remove the network and all files but claims and logs."""
        await asyncio.gather(*(container.terminate(grace_s) for container in self.containers))

    def refresh_files(self) -> None:
        """Bring volumes of files up to what their objects hold now. Nothing is restarted: programs see it or not."""
        if not self._files:
            return
        try:
            planned = plan_volumes(self._with_address(), self._machine.store.find)
        except ContainerConfigError:
            return
        for volume in planned:
            if volume.files is not None and volume.files != self._files.get(volume.name):
                self._make_volume(volume)

    def remove(self) -> None:
        """Remove the network and all files but claims and logs."""
        self._machine.fabric.detach(self.uid)
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _run_one(self, container: Container) -> int:
        self.containers = [container]
        return await container.run()

    async def _attach(self) -> None:
        network, self._address = self._machine.fabric.attach(self.uid)
        self._report("Pending")
        await self._machine.settle_rules()
        self._place = PodPlace(network=str(network), directory=str(self._directory), volumes={})

    def _view(self, restart_policy: str) -> PodView:
        return PodView(
            manifest=self._with_address(),
            address=self._address,
            start=self._start,
            changed=self._changed,
            journal=self._machine.journal,
            grace_s=self._grace_s,
            restart_policy=restart_policy,
        )

    def _with_address(self) -> Manifest:
        status = {**self._pod.part("status").raw, "podIP": self._address}
        return Manifest({**self._pod.raw, "status": status})

    async def _start(self, spec: Manifest) -> ContainerProcess:
        while True:
            try:
                started = await self._try_start(spec)
            except ContainerConfigError as error:
                if str(error) != self._message:
                    note = self._machine.journal.note
                    note(self.name, spec.text("name"), Happening.CONFIG_ERROR, str(error))
                self._report(self._phase, str(error))
                await asyncio.sleep(RETRY_S)
            else:
                self._report(self._phase)
                return started

    async def _try_start(self, spec: Manifest) -> ContainerProcess:
        assert self._place is not None, "a pod is attached before its containers start"
        volumes = self._make_volumes()
        place = PodPlace(
            network=self._place.network, directory=self._place.directory, volumes=volumes
        )
        image = self._machine.images.get(spec.text("image").rpartition(":")[0])
        if image is None:
            raise ContainerConfigError(f"ErrImagePull: {spec.text('image')}")
        log = self._machine.log_file(self.name, spec.text("name"))
        log.parent.mkdir(parents=True, exist_ok=True)
        planned = plan_container(
            self._with_address(),
            spec,
            image=image,
            layout=self._machine.layout,
            place=place,
            log=str(log),
            find=self._machine.store.find,
        )
        for mount in planned["mounts"]:
            if not os.path.exists(mount["source"]):
                os.makedirs(mount["source"])
                os.chown(mount["source"], planned["user"], planned["group"])
        return await ContainerProcess.start(planned, self._directory / f"{spec.text('name')}.json")

    # -- volumes ----------------------------------------------------------------------------

    def _make_volumes(self) -> dict[str, VolumePlace]:
        planned = plan_volumes(self._with_address(), self._machine.store.find)
        return {volume.name: self._make_volume(volume) for volume in planned}

    def _make_volume(self, volume: Volume) -> VolumePlace:
        path = self._directory / "volumes" / volume.name
        if volume.claim:
            path = self._machine.directory / "claims" / volume.claim
        is_new = not path.exists()
        path.mkdir(parents=True, exist_ok=True)
        if is_new:
            self._own(path, is_written_by_pod=volume.files is None)
        if volume.files is not None:
            self._write_files(path, volume.files)
            self._files[volume.name] = volume.files
        return VolumePlace(directory=str(path), is_read_only=volume.files is not None)

    def _write_files(self, volume: Path, files: Sequence[VolumeFile]) -> None:
        """Each file replaced as a whole: a program never reads half of one. Those that are gone are removed."""
        for file in files:
            target = volume / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            new = target.with_name(f".{target.name}.new")
            new.write_bytes(file.content)
            new.chmod(file.mode)
            self._own(new, is_written_by_pod=False)
            new.rename(target)
        wanted = {volume / file.path for file in files}
        for found in volume.rglob("*"):
            if found.is_file() and found not in wanted:
                found.unlink()

    def _own(self, path: Path, *, is_written_by_pod: bool) -> None:
        """Give a new volume or file to the pod's group (``fsGroup``), or to everybody when it has none."""
        group = self._pod.at("spec.securityContext.fsGroup")
        if not isinstance(group, int):
            if is_written_by_pod:
                path.chmod(DIRECTORY_MODE)
            return
        os.chown(path, -1, group)
        wanted = 0o060 if is_written_by_pod else 0o040
        path.chmod(path.stat().st_mode | wanted | (0o2010 if path.is_dir() else 0))

    # -- reporting --------------------------------------------------------------------------

    def _changed(self) -> None:
        self._report(self._phase, self._message)

    def _report(self, phase: str, message: str = "") -> None:
        self._phase, self._message = phase, message
        is_ready = phase == "Running" and all(container.is_ready for container in self.containers)
        self._machine.store.set_status(
            "Pod",
            self.name,
            pods.status(
                phase=phase,
                is_ready=is_ready,
                ip=self._address,
                message=message,
                containers=tuple(container.status() for container in self.containers),
            ),
        )
