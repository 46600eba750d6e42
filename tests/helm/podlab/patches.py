"""How a PATCH changes an object: JSON merge, and Kubernetes' strategic merge where lists are keyed.

Helm sends a strategic merge patch for the kinds it knows and a JSON merge patch for all others.
Source: https://kubernetes.io/docs/tasks/manage-kubernetes-objects/update-api-object-kubectl-patch/
"""

from tests.helm.podlab.manifest import Document, Json

_KEYS = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "imagePullSecrets": ("name",),
    "ports": ("containerPort", "port"),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey",),
    "ownerReferences": ("uid",),
}
"""Merge keys of the lists that a chart has; any other list is replaced whole."""

_ORDER = "$setElementOrder/"


def merge(current: Json, patch: Json, *, is_strategic: bool) -> Json:
    """The value after the patch; neither argument is changed."""
    if not isinstance(patch, dict):
        return patch
    if not isinstance(current, dict) or patch.get("$patch") == "replace":
        current = {}
    out: Document = dict(current)
    kept = patch.get("$retainKeys")
    if isinstance(kept, list):
        out = {name: value for name, value in out.items() if name in kept}
    for name, value in patch.items():
        if name.startswith("$"):
            continue
        if value is None:
            out.pop(name, None)
        elif is_strategic and isinstance(value, list):
            out[name] = _merge_list(name, out.get(name), value, patch.get(_ORDER + name))
        else:
            out[name] = merge(out.get(name), value, is_strategic=is_strategic)
    return out


def _merge_list(name: str, current: Json, patch: list[Json], order: Json) -> Json:
    key = _key_of(name, patch)
    if key is None:
        return patch
    merged: dict[Json, Json] = {
        item[key]: item
        for item in (current if isinstance(current, list) else [])
        if isinstance(item, dict)
    }
    for item in patch:
        assert isinstance(item, dict), f"{name} is a list of mappings"
        at = item[key]
        if item.get("$patch") == "delete":
            merged.pop(at, None)
        else:
            merged[at] = merge(merged.get(at, {}), item, is_strategic=True)
    wanted = [
        item[key] if isinstance(item, dict) else item
        for item in (order if isinstance(order, list) else [])
    ]
    named = [merged[at] for at in wanted if at in merged]
    return named + [item for at, item in merged.items() if at not in wanted]


def _key_of(name: str, items: list[Json]) -> str | None:
    for key in _KEYS.get(name, ()):
        if items and all(isinstance(item, dict) and key in item for item in items):
            return key
    return None
