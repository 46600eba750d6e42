"""What a pod's object says about it. Pure."""

from tests.helm.podlab.manifest import Document, Manifest


def is_ready(pod: Manifest) -> bool:
    """Whether it may get traffic: all containers ready, and not on its way out."""
    return not pod.is_terminating and any(
        condition.text("type") == "Ready" and condition.text("status") == "True"
        for condition in pod.parts("status.conditions")
    )


def address(pod: Manifest) -> str:
    """Its IP address; empty before it has one."""
    return pod.text("status.podIP")


def phase(pod: Manifest) -> str:
    """Pending, Running, Succeeded or Failed."""
    return pod.text("status.phase", "Pending")


def status(
    *,
    phase: str,
    is_ready: bool,
    ip: str = "",
    message: str = "",
    containers: tuple[Document, ...] = (),
) -> Document:
    """A pod's status as its runner reports it."""
    truth = "True" if is_ready else "False"
    return {
        "phase": phase,
        "podIP": ip,
        "message": message,
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": truth},
            {"type": "ContainersReady", "status": truth},
        ],
        "containerStatuses": list(containers),
    }


def port_number(pod: Manifest, port: str) -> int:
    """A port by number or by a container port's name.

    Raises:
        KeyError: No container of the pod names such a port.
    """
    if port.isdigit():
        return int(port)
    for container in pod.parts("spec.containers") + pod.parts("spec.initContainers"):
        for named in container.parts("ports"):
            if named.text("name") == port:
                return named.number("containerPort")
    raise KeyError(f"{pod.name}: no port named {port!r}")


def ordinal(pod: Manifest) -> int:
    """A set pod's number."""
    return int(pod.name.rpartition("-")[2])
