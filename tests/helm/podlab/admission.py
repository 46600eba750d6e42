"""What an API server fills in and refuses: defaults, and the changes that it forbids. Pure.

Only the rules that a chart can break are here; the shape of objects is checked against Kubernetes' own schemas
elsewhere.
"""

import base64
import copy
import re
from collections.abc import Callable

from tests.helm.podlab.manifest import Document, Json, Manifest, parse_quantity
from tests.helm.podlab.selectors import selects
from tests.helm.podlab.store import ApiError

_MUTABLE = {
    "minReadySeconds",
    "ordinals",
    "persistentVolumeClaimRetentionPolicy",
    "replicas",
    "revisionHistoryLimit",
    "template",
    "updateStrategy",
}
"""Fields of a StatefulSet's spec that may change."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_NAME_LENGTH_MAX = 253
_LABEL_LENGTH_MAX = 63


def admit_new(document: Document, allocate_address: Callable[[], str]) -> Document:
    """The object as it is stored.

    Raises:
        ApiError: 422, what the real server would refuse.
    """
    manifest = Manifest(copy.deepcopy(document))
    _check_name(manifest)
    match manifest.kind:
        case "Secret":
            _encode_string_data(manifest)
        case "Service":
            if not manifest.has("spec.clusterIP") and manifest.text("spec.type") != "ExternalName":
                _spec(manifest)["clusterIP"] = allocate_address()
        case "StatefulSet":
            _set_defaults(manifest)
            _check_template(manifest)
        case "Job":
            _check_restart_policy(manifest)
        case _:
            pass
    return manifest.raw


def admit_change(document: Document, old: Manifest) -> Document:
    """The changed object as it is stored.

    Raises:
        ApiError: 422, the change is forbidden.
    """
    manifest = Manifest(copy.deepcopy(document))
    match manifest.kind:
        case "Secret":
            _encode_string_data(manifest)
            _check_immutable(manifest, old)
        case "ConfigMap":
            _check_immutable(manifest, old)
        case "Service":
            spec = _spec(manifest)
            spec.setdefault("clusterIP", old.at("spec.clusterIP"))
            _check_same(manifest, old, "spec.clusterIP")
        case "StatefulSet":
            _set_defaults(manifest)
            _check_template(manifest)
            _check_stateful_set(manifest, old)
        case "Job":
            _check_same(manifest, old, "spec.template")
            _check_same(manifest, old, "spec.selector")
        case "PersistentVolumeClaim":
            _check_claim(manifest, old)
        case _:
            pass
    return manifest.raw


def _invalid(manifest: Manifest, why: str) -> ApiError:
    return ApiError(422, "Invalid", f'{manifest.kind} "{manifest.name}" is invalid: {why}')


def _spec(manifest: Manifest) -> Document:
    spec = manifest.raw.setdefault("spec", {})
    assert isinstance(spec, dict), f"{manifest.name} has a spec, not {spec!r}"
    return spec


def _check_name(manifest: Manifest) -> None:
    name = manifest.name
    if len(name) > _NAME_LENGTH_MAX or not _NAME.fullmatch(name):
        raise _invalid(manifest, f"metadata.name: {name!r} is no DNS name")
    if manifest.kind == "Service" and len(name) > _LABEL_LENGTH_MAX:
        raise _invalid(manifest, f"metadata.name: must be no more than {_LABEL_LENGTH_MAX} bytes")


def _encode_string_data(manifest: Manifest) -> None:
    added: Document = {
        name: base64.b64encode(value.encode()).decode()
        for name, value in manifest.pairs("stringData").items()
    }
    if manifest.raw.pop("stringData", None) is not None:
        manifest.raw["data"] = {**manifest.part("data").raw, **added}


def _set_defaults(manifest: Manifest) -> None:
    spec = _spec(manifest)
    spec.setdefault("replicas", 1)
    spec.setdefault("podManagementPolicy", "OrderedReady")
    spec.setdefault("revisionHistoryLimit", 10)
    strategy = manifest.part("spec.updateStrategy").raw or {"type": "RollingUpdate"}
    if strategy.get("type", "RollingUpdate") == "RollingUpdate":
        rolling: Json = {"partition": 0, **Manifest(strategy).part("rollingUpdate").raw}
        strategy = {"type": "RollingUpdate", "rollingUpdate": rolling}
    spec["updateStrategy"] = strategy


def _check_template(manifest: Manifest) -> None:
    template = manifest.part("spec.template")
    if not selects(manifest.part("spec.selector"), template.labels):
        raise _invalid(
            manifest, "spec.template.metadata.labels: `selector` does not match template `labels`"
        )
    claims = {claim.name for claim in manifest.parts("spec.volumeClaimTemplates")}
    volumes = {volume.text("name") for volume in template.parts("spec.volumes")} | claims
    for container in template.parts("spec.containers") + template.parts("spec.initContainers"):
        for mount in container.parts("volumeMounts"):
            if mount.text("name") not in volumes:
                raise _invalid(manifest, f'volumeMounts: no volume named "{mount.text("name")}"')


def _check_restart_policy(manifest: Manifest) -> None:
    if manifest.text("spec.template.spec.restartPolicy") not in ("Never", "OnFailure"):
        raise _invalid(manifest, "spec.template.spec.restartPolicy: must be OnFailure or Never")


def _check_same(manifest: Manifest, old: Manifest, path: str) -> None:
    if manifest.at(path) != old.at(path):
        raise _invalid(manifest, f"{path}: field is immutable")


def _check_immutable(manifest: Manifest, old: Manifest) -> None:
    if old.flag("immutable"):
        _check_same(manifest, old, "data")


def _check_stateful_set(manifest: Manifest, old: Manifest) -> None:
    new_spec, old_spec = manifest.part("spec").raw, old.part("spec").raw
    names = sorted({*new_spec, *old_spec} - _MUTABLE)
    changed = [name for name in names if new_spec.get(name) != old_spec.get(name)]
    if changed:
        raise _invalid(
            manifest,
            "spec: Forbidden: updates to statefulset spec for fields other than "
            f"{', '.join(sorted(_MUTABLE))} are forbidden, but {', '.join(changed)} differs",
        )


def _check_claim(manifest: Manifest, old: Manifest) -> None:
    size = "spec.resources.requests.storage"
    if parse_quantity(manifest.scalar(size, "0")) < parse_quantity(old.scalar(size, "0")):
        raise _invalid(manifest, f"{size}: field can not be less than previous value")
