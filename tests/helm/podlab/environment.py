"""A container's environment and command line, from its spec and the objects that it names. Pure."""

import base64
import re
from collections.abc import Callable, Mapping

from tests.helm.podlab import pods
from tests.helm.podlab.manifest import Manifest, whole_units

FindObject = Callable[[str, str], "Manifest | None"]

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][\w.-]*)\)")
_KEYED_FIELD = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


class ContainerConfigError(Exception):
    """The pod cannot start as its spec stands: a key, an object or a volume is missing."""


def object_data(found: Manifest) -> dict[str, bytes]:
    """The entries of a ConfigMap or a Secret."""
    plain = found.pairs("data")
    binary = {name: base64.b64decode(value) for name, value in found.pairs("binaryData").items()}
    if found.kind == "Secret":
        return {name: base64.b64decode(value) for name, value in plain.items()} | binary
    return {name: value.encode() for name, value in plain.items()} | binary


def expand(text: str, environment: Mapping[str, str]) -> str:
    """Replace ``$(NAME)``; an unknown name stays as it is, ``$$`` is a dollar."""
    return _REFERENCE.sub(
        lambda match: "$" if match[0] == "$$" else environment.get(match[1], match[0]), text
    )


def pod_field(pod: Manifest, path: str) -> str:
    """What a ``fieldRef`` shows.

    Raises:
        ContainerConfigError: No such field can be referred to.
    """
    if match := _KEYED_FIELD.fullmatch(path):
        return pod.pairs(f"metadata.{match[1]}").get(match[2], "")
    fields = {
        "metadata.name": pod.name,
        "metadata.namespace": pod.text("metadata.namespace"),
        "metadata.uid": pod.uid,
        "spec.nodeName": pod.text("spec.nodeName"),
        "spec.serviceAccountName": pod.text("spec.serviceAccountName", "default"),
        "status.podIP": pods.address(pod),
        "status.podIPs": pods.address(pod),
        "status.hostIP": "198.18.0.1",
    }
    if path not in fields:
        raise ContainerConfigError(f"no field {path}")
    return fields[path]


def build_environment(
    pod: Manifest, container: Manifest, image: Mapping[str, str], find: FindObject
) -> dict[str, str]:
    """The whole environment: the image's, ``envFrom``, ``env``, in rising order.

    Raises:
        ContainerConfigError: Something that is not optional is missing.
    """
    built = {**image, "HOSTNAME": pod.text("spec.hostname", pod.name)}
    for source in container.parts("envFrom"):
        built.update(_whole_object(source, find))
    for entry in container.parts("env"):
        value = (
            _value_from(pod, container, entry.part("valueFrom"), find)
            if entry.has("valueFrom")
            else expand(entry.scalar("value"), built)
        )
        if value is not None:
            built[entry.text("name")] = value
    return built


def _whole_object(source: Manifest, find: FindObject) -> dict[str, str]:
    kind, field = ("ConfigMap", "configMapRef")
    if source.has("secretRef"):
        kind, field = ("Secret", "secretRef")
    name = source.text(f"{field}.name")
    found = find(kind, name)
    if found is None:
        if source.flag(f"{field}.optional"):
            return {}
        raise ContainerConfigError(f"{kind} {name} not found")
    prefix = source.text("prefix")
    return {prefix + key: value.decode() for key, value in object_data(found).items()}


def _value_from(
    pod: Manifest, container: Manifest, source: Manifest, find: FindObject
) -> str | None:
    if source.has("fieldRef"):
        return pod_field(pod, source.text("fieldRef.fieldPath"))
    if source.has("resourceFieldRef"):
        reference = source.part("resourceFieldRef")
        quantity = container.scalar(f"resources.{reference.text('resource')}", "0")
        return str(whole_units(quantity, reference.scalar("divisor", "1")))
    kind, field = ("ConfigMap", "configMapKeyRef")
    if source.has("secretKeyRef"):
        kind, field = ("Secret", "secretKeyRef")
    name, key = source.text(f"{field}.name"), source.text(f"{field}.key")
    found = find(kind, name)
    value = object_data(found).get(key) if found is not None else None
    if value is None and not source.flag(f"{field}.optional"):
        raise ContainerConfigError(f"{kind} {name} has no key {key}")
    return None if value is None else value.decode()
