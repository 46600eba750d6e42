"""The objects that controllers make: pods of sets and jobs, claims, revisions. Pure."""

import hashlib
import json

from tests.helm.podlab.manifest import Document, Json, Manifest

DELETED_FINALLY = "Pod"
"""The kind whose objects outlive their deletion until whoever runs them has stopped."""

REVISION_LABEL = "controller-revision-hash"


def template_hash(template: Manifest) -> str:
    """A short name for a pod template; equal templates have equal names."""
    canonical = json.dumps(template.raw, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:10]


def set_pod(owner: Manifest, template: Manifest, ordinal: int, revision: str) -> Document:
    """A StatefulSet's pod: its stable name, DNS place, and the claims that stay when it goes."""
    name = f"{owner.name}-{ordinal}"
    claims: list[Json] = [
        {"name": claim.name, "persistentVolumeClaim": {"claimName": f"{claim.name}-{name}"}}
        for claim in owner.parts("spec.volumeClaimTemplates")
    ]
    spec: Document = {
        **template.part("spec").raw,
        "hostname": name,
        "subdomain": owner.text("spec.serviceName"),
        "nodeName": f"node-{ordinal}",
        "volumes": [*(volume.raw for volume in template.parts("spec.volumes")), *claims],
    }
    labels: Document = {
        **template.labels,
        "statefulset.kubernetes.io/pod-name": name,
        "apps.kubernetes.io/pod-index": str(ordinal),
        REVISION_LABEL: revision,
    }
    return _pod(name, labels, template, spec, owner)


def job_pod(owner: Manifest, attempt: int) -> Document:
    """A job's pod."""
    template = owner.part("spec.template")
    labels: Document = {**template.labels, "batch.kubernetes.io/job-name": owner.name}
    return _pod(f"{owner.name}-{attempt}", labels, template, template.part("spec").raw, owner)


def claim(owner: Manifest, claim_template: Manifest, ordinal: int) -> Document:
    """The claim of one pod of a set. It has no owner: it stays when pod and set go."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": f"{claim_template.name}-{owner.name}-{ordinal}",
            "labels": {**claim_template.labels, **owner.pairs("spec.selector.matchLabels")},
            "annotations": {**claim_template.annotations},
        },
        "spec": claim_template.part("spec").raw,
    }


def revision(owner: Manifest, name: str) -> Document:
    """The record of a template that a set has, or had."""
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {"name": f"{owner.name}-{name}", "ownerReferences": [_reference(owner)]},
        "data": owner.part("spec.template").raw,
    }


def _pod(
    name: str, labels: Document, template: Manifest, spec: Document, owner: Manifest
) -> Document:
    annotations: Document = {**template.annotations}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [_reference(owner)],
        },
        "spec": spec,
    }


def _reference(owner: Manifest) -> Document:
    return {
        "apiVersion": owner.text("apiVersion"),
        "kind": owner.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
    }
