"""The controllers: they look at the objects and change other objects, as often as anything has changed.

``reconcile`` is one pass over everything. It is synchronous, has no clock but the one handed in, and does nothing
when there is nothing to do, so calling it too often is harmless.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.helm.podlab import blueprints, pods
from tests.helm.podlab.budget import Headcount, desired_healthy, disruptions_allowed, may_evict
from tests.helm.podlab.jobs import JobStep, next_step, tally
from tests.helm.podlab.manifest import Document, Manifest
from tests.helm.podlab.rollout import CreatePod, PodSeen, SetSpec, plan
from tests.helm.podlab.selectors import selects
from tests.helm.podlab.store import ApiError, ObjectStore

GRACE_S_DEFAULT = 30


@dataclass
class Controllers:
    """Garbage collector, StatefulSets, Jobs, claims and disruption budgets. ``now_s`` is monotonic, in seconds."""

    store: ObjectStore
    now_s: Callable[[], float]
    _ready_since: dict[str, float] = field(default_factory=dict)

    def reconcile(self) -> None:
        """One pass."""
        self._collect_garbage()
        self._note_readiness()
        for owner in self.store.all("StatefulSet"):
            self._reconcile_set(owner)
        for owner in self.store.all("Job"):
            self._reconcile_job(owner)
        for held in self.store.all("PersistentVolumeClaim"):
            self.store.set_status(held.kind, held.name, {"phase": "Bound"})
        for budget in self.store.all("PodDisruptionBudget"):
            self._report_budget(budget)

    def delete_pod(self, pod: Manifest, grace_s: int | None = None) -> None:
        """Ask for a graceful stop."""
        usual = pod.number("spec.terminationGracePeriodSeconds", GRACE_S_DEFAULT)
        self.store.mark_terminating("Pod", pod.name, usual if grace_s is None else grace_s)

    def evict(self, name: str) -> None:
        """Stop a pod if every budget over it allows that.

        Raises:
            ApiError: 404; 429 when a budget would be broken.
        """
        pod = self.store.get("Pod", name)
        for budget in self.store.all("PodDisruptionBudget"):
            if not selects(budget.part("spec.selector"), pod.labels):
                continue
            if not may_evict(budget, self._headcount(budget), is_ready=pods.is_ready(pod)):
                raise ApiError(
                    429,
                    "TooManyRequests",
                    "Cannot evict pod as it would violate the pod's disruption budget.",
                )
        self.delete_pod(pod)

    # -- what goes with its owner -----------------------------------------------------------

    def _collect_garbage(self) -> None:
        uids = {manifest.uid for manifest in self.store.everything()}
        for manifest in self.store.everything():
            if not manifest.owner_uids or set(manifest.owner_uids) & uids:
                continue
            if manifest.kind == blueprints.DELETED_FINALLY:
                self.delete_pod(manifest)
            else:
                self.store.remove(manifest.kind, manifest.name)

    def _note_readiness(self) -> None:
        ready = {pod.uid for pod in self.store.all("Pod") if pods.is_ready(pod)}
        since = {uid: self._ready_since.get(uid, self.now_s()) for uid in ready}
        self._ready_since = since

    def _pods_of(self, owner: Manifest) -> list[Manifest]:
        return [pod for pod in self.store.all("Pod") if owner.uid in pod.owner_uids]

    def _is_available(self, pod: Manifest, settled_s: int) -> bool:
        since = self._ready_since.get(pod.uid)
        return pods.is_ready(pod) and since is not None and self.now_s() - since >= settled_s

    # -- StatefulSet ------------------------------------------------------------------------

    def _reconcile_set(self, owner: Manifest) -> None:
        settled_s = owner.number("spec.minReadySeconds")
        wanted = blueprints.template_hash(owner.part("spec.template"))
        if self.store.find("ControllerRevision", f"{owner.name}-{wanted}") is None:
            self.store.create(blueprints.revision(owner, wanted))
        is_rolling = owner.text("spec.updateStrategy.type") == "RollingUpdate"
        spec = SetSpec(
            replicas=owner.number("spec.replicas", 1),
            is_parallel=owner.text("spec.podManagementPolicy") == "Parallel",
            update_partition=owner.number("spec.updateStrategy.rollingUpdate.partition")
            if is_rolling
            else None,
            update_revision=wanted,
            current_revision=_bare(owner, owner.text("status.currentRevision")) or wanted,
        )
        seen = [
            PodSeen(
                ordinal=pods.ordinal(pod),
                revision=pod.labels.get(blueprints.REVISION_LABEL, ""),
                is_available=self._is_available(pod, settled_s),
                is_terminating=pod.is_terminating,
            )
            for pod in self._pods_of(owner)
        ]
        for action in plan(spec, seen):
            if isinstance(action, CreatePod):
                self._create_set_pod(owner, action)
            else:
                self.delete_pod(self.store.get("Pod", f"{owner.name}-{action.ordinal}"))
        self._report_set(owner, spec, settled_s)

    def _create_set_pod(self, owner: Manifest, action: CreatePod) -> None:
        for template in owner.parts("spec.volumeClaimTemplates"):
            claim = blueprints.claim(owner, template, action.ordinal)
            if self.store.find("PersistentVolumeClaim", Manifest(claim).name) is None:
                self.store.create(claim)
        revision = self.store.get("ControllerRevision", f"{owner.name}-{action.revision}")
        self.store.create(
            blueprints.set_pod(owner, revision.part("data"), action.ordinal, action.revision)
        )

    def _report_set(self, owner: Manifest, spec: SetSpec, settled_s: int) -> None:
        members = [pod for pod in self._pods_of(owner) if not pod.is_terminating]
        updated = [
            pod
            for pod in members
            if pod.labels.get(blueprints.REVISION_LABEL) == spec.update_revision
        ]
        ready = [pod for pod in members if pods.is_ready(pod)]
        is_done = len(updated) == len(members) == spec.replicas and len(ready) == spec.replicas
        current = spec.update_revision if is_done else spec.current_revision
        self.store.set_status(
            owner.kind,
            owner.name,
            {
                "observedGeneration": owner.number("metadata.generation"),
                "replicas": len(members),
                "readyReplicas": len(ready),
                "availableReplicas": sum(self._is_available(pod, settled_s) for pod in ready),
                "updatedReplicas": len(updated),
                "currentReplicas": len(members) - len(updated) if not is_done else len(members),
                "currentRevision": f"{owner.name}-{current}",
                "updateRevision": f"{owner.name}-{spec.update_revision}",
            },
        )

    # -- Job --------------------------------------------------------------------------------

    def _reconcile_job(self, owner: Manifest) -> None:
        if owner.has("status.conditions"):
            return
        members = self._pods_of(owner)
        pods_by_phase = tally([pods.phase(pod) for pod in members])
        status: Document = {
            "active": pods_by_phase.active,
            "succeeded": pods_by_phase.succeeded,
            "failed": pods_by_phase.failed,
        }
        step = next_step(
            pods_by_phase,
            completions=owner.number("spec.completions", 1),
            backoff_limit=owner.number("spec.backoffLimit", 6),
        )
        match step:
            case JobStep.START_POD:
                self.store.create(blueprints.job_pod(owner, len(members)))
            case JobStep.COMPLETE:
                status["conditions"] = [{"type": "Complete", "status": "True"}]
            case JobStep.FAIL:
                reason = "BackoffLimitExceeded"
                status["conditions"] = [{"type": "Failed", "status": "True", "reason": reason}]
            case JobStep.WAIT:
                pass
        self.store.set_status(owner.kind, owner.name, status)

    # -- PodDisruptionBudget ----------------------------------------------------------------

    def _headcount(self, budget: Manifest) -> Headcount:
        selector = budget.part("spec.selector")
        expected = sum(
            owner.number("spec.replicas", 1)
            for owner in self.store.all("StatefulSet")
            if selects(selector, owner.part("spec.template").labels)
        )
        return Headcount(expected=expected, healthy=len(self._healthy(selector)))

    def _healthy(self, selector: Manifest) -> Sequence[Manifest]:
        return [
            pod
            for pod in self.store.all("Pod")
            if selects(selector, pod.labels) and pods.is_ready(pod)
        ]

    def _report_budget(self, budget: Manifest) -> None:
        headcount = self._headcount(budget)
        self.store.set_status(
            budget.kind,
            budget.name,
            {
                "expectedPods": headcount.expected,
                "currentHealthy": headcount.healthy,
                "desiredHealthy": desired_healthy(budget, headcount.expected),
                "disruptionsAllowed": disruptions_allowed(budget, headcount),
            },
        )


def _bare(owner: Manifest, revision: str) -> str:
    return revision.removeprefix(f"{owner.name}-")
