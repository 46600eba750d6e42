"""How a container is to be started: its spec, its pod and its image as one specification for the shim. Pure."""

import os.path
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from tests.helm.podlab import pods
from tests.helm.podlab.container_shim import ContainerSpec, Layout, Mount
from tests.helm.podlab.dns_zone import DOMAIN, SUFFIX
from tests.helm.podlab.environment import (
    ContainerConfigError,
    FindObject,
    build_environment,
    expand,
)
from tests.helm.podlab.firewall import DNS_IP
from tests.helm.podlab.images import Image, RootLayout
from tests.helm.podlab.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumePlace:
    """Where a volume is on the machine."""

    directory: str
    is_read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlace:
    """Where a pod's things are on the machine."""

    network: str
    directory: str
    volumes: Mapping[str, VolumePlace]


def plan_container(
    pod: Manifest,
    container: Manifest,
    *,
    image: Image,
    layout: RootLayout,
    place: PodPlace,
    log: str,
    find: FindObject,
) -> ContainerSpec:
    """The shim's specification.

    Raises:
        ContainerConfigError: What the kubelet calls CreateContainerConfigError.
    """
    environment = build_environment(pod, container, image.environment, find)
    user = _setting(pod, container, "runAsUser", image.user)
    group = _setting(pod, container, "runAsGroup", image.group)
    if _flag(pod, container, "runAsNonRoot") and user == 0:
        raise ContainerConfigError("runAsNonRoot, but the container would run as root")
    volume_group = pod.at("spec.securityContext.fsGroup")
    security = container.part("securityContext")
    return ContainerSpec(
        network=place.network,
        root=os.path.join(place.directory, f"root-{container.text('name')}"),
        log=log,
        hostname=pod.text("spec.hostname", pod.name),
        layout=_as_json(layout),
        files=network_files(pod),
        mounts=_mounts(container, environment, place),
        is_root_read_only=security.flag("readOnlyRootFilesystem"),
        drops_capabilities="ALL" in security.texts("capabilities.drop"),
        is_no_new_privileges=not security.flag("allowPrivilegeEscalation", default=True),
        user=user,
        group=group,
        groups=sorted({group, volume_group if isinstance(volume_group, int) else group}),
        working_directory=container.text("workingDir", image.working_directory),
        command=_command(container, environment, image),
        environment=environment,
    )


def network_files(pod: Manifest) -> dict[str, str]:
    """What the kubelet writes into every container: resolver, hosts, host name."""
    name, subdomain = pod.text("spec.hostname", pod.name), pod.text("spec.subdomain")
    names = f"{name}.{subdomain}{SUFFIX} {name}" if subdomain else name
    search = f"{SUFFIX.lstrip('.')} svc.{DOMAIN} {DOMAIN}"
    return {
        "/etc/resolv.conf": f"search {search}\nnameserver {DNS_IP}\noptions ndots:5\n",
        "/etc/hosts": f"127.0.0.1 localhost\n{pods.address(pod)} {names}\n",
        "/etc/hostname": f"{name}\n",
    }


def _setting(pod: Manifest, container: Manifest, name: str, default: int) -> int:
    """The container's own setting wins over the pod's, that over the image's."""
    wide = pod.number(f"spec.securityContext.{name}", default)
    return container.number(f"securityContext.{name}", wide)


def _flag(pod: Manifest, container: Manifest, name: str) -> bool:
    wide = pod.flag(f"spec.securityContext.{name}")
    return container.flag(f"securityContext.{name}", default=wide)


def _command(container: Manifest, environment: Mapping[str, str], image: Image) -> list[str]:
    """``command`` replaces the entrypoint and the image's arguments, ``args`` the arguments alone."""
    command = container.texts("command") or list(image.entrypoint)
    arguments = [] if container.has("command") else list(image.arguments)
    if container.has("args"):
        arguments = container.texts("args")
    whole = [expand(word, environment) for word in (*command, *arguments)]
    if not whole:
        raise ContainerConfigError("no command: neither image nor container names one")
    return whole


def _mounts(container: Manifest, environment: Mapping[str, str], place: PodPlace) -> list[Mount]:
    mounts = []
    for mount in container.parts("volumeMounts"):
        volume = place.volumes.get(mount.text("name"))
        if volume is None:
            raise ContainerConfigError(f"no volume named {mount.text('name')}")
        below = mount.text("subPath") or expand(mount.text("subPathExpr"), environment)
        mounts.append(
            Mount(
                source=os.path.join(volume.directory, below) if below else volume.directory,
                target=mount.text("mountPath").rstrip("/"),
                is_read_only=mount.flag("readOnly") or volume.is_read_only,
            )
        )
    return mounts


def _as_json(layout: RootLayout) -> Layout:
    fields = asdict(layout)
    return Layout(
        binds=list(fields["binds"]),
        links=dict(fields["links"]),
        files=dict(fields["files"]),
        directories=list(fields["directories"]),
    )
