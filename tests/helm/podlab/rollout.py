"""What a StatefulSet's controller does next. Pure: pods seen in, actions out; called again after every change.

Parallel management starts all missing pods at once and removes all surplus ones at once; OrderedReady does one at a
time and waits until every lower pod is available. Rolling updates are the same for both: one pod at a time from the
highest ordinal down, each only when all higher ones are available.
Source: kubernetes/pkg/controller/statefulset/stateful_set_control.go, updateStatefulSet.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSpec:
    """What is wanted. ``update_partition`` None means OnDelete: nothing is rolled."""

    replicas: int
    is_parallel: bool
    update_partition: int | None
    update_revision: str
    current_revision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSeen:
    """A pod of the set. Available: ready for ``minReadySeconds``, and not terminating."""

    ordinal: int
    revision: str
    is_available: bool
    is_terminating: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePod:
    """Start the pod of an ordinal from a revision of the template."""

    ordinal: int
    revision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePod:
    """Stop a pod gracefully."""

    ordinal: int


Action = CreatePod | DeletePod


def plan(spec: SetSpec, pods: Sequence[PodSeen]) -> list[Action]:
    """The actions that may be taken now; empty when there is nothing to do or something to wait for."""
    by_ordinal = {pod.ordinal: pod for pod in pods}
    if spec.is_parallel:
        return _scale_parallel(spec, by_ordinal) or _roll(spec, by_ordinal)
    step = _scale_ordered(spec, by_ordinal)
    return _roll(spec, by_ordinal) if step is None else step


def _scale_parallel(spec: SetSpec, pods: dict[int, PodSeen]) -> list[Action]:
    create: list[Action] = [
        CreatePod(ordinal=ordinal, revision=_revision_for(spec, ordinal))
        for ordinal in range(spec.replicas)
        if ordinal not in pods
    ]
    surplus = sorted((o for o in pods if o >= spec.replicas), reverse=True)
    delete = [DeletePod(ordinal=o) for o in surplus if not pods[o].is_terminating]
    return create + delete


def _scale_ordered(spec: SetSpec, pods: dict[int, PodSeen]) -> list[Action] | None:
    """The one step, [] to wait, or None when scaling is done and rolling may begin."""
    for ordinal in range(spec.replicas):
        pod = pods.get(ordinal)
        if pod is None:
            return [CreatePod(ordinal=ordinal, revision=_revision_for(spec, ordinal))]
        if not pod.is_available:
            return []
    surplus = [o for o in pods if o >= spec.replicas]
    if not surplus:
        return None
    last = max(surplus)
    return [] if pods[last].is_terminating else [DeletePod(ordinal=last)]


def _roll(spec: SetSpec, pods: dict[int, PodSeen]) -> list[Action]:
    if spec.update_partition is None:
        return []
    for ordinal in range(spec.replicas - 1, spec.update_partition - 1, -1):
        pod = pods.get(ordinal)
        if pod is None or pod.is_terminating:
            return []
        if pod.revision != spec.update_revision:
            return [DeletePod(ordinal=ordinal)]
        if not pod.is_available:
            return []
    return []


def _revision_for(spec: SetSpec, ordinal: int) -> str:
    """A pod below the partition, or of a set that is never rolled, comes back as it was."""
    is_held = spec.update_partition is not None and ordinal < spec.update_partition
    return spec.current_revision if is_held else spec.update_revision
