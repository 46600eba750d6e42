"""What a pod's volumes hold, and where they are mounted. Pure: files as bytes with modes, directories by name."""

from dataclasses import dataclass

from tests.helm.podlab.environment import (
    ContainerConfigError,
    FindObject,
    object_data,
    pod_field,
)
from tests.helm.podlab.manifest import Manifest

FILE_MODE_DEFAULT = 0o644


@dataclass(frozen=True, slots=True)
class VolumeFile:
    """A file of a volume that is made from objects."""

    path: str
    content: bytes
    mode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A volume. A claim is a directory that outlives the pod; the others belong to the pod.

    ``files`` is None for a directory that containers fill themselves; a volume of files is mounted read-only.
    """

    name: str
    claim: str = ""
    files: tuple[VolumeFile, ...] | None = None


def plan_volumes(pod: Manifest, find: FindObject) -> list[Volume]:
    """The volumes of a pod.

    Raises:
        ContainerConfigError: An object that is not optional is missing, or a kind of volume is unknown.
    """
    return [_plan(pod, volume, find) for volume in pod.parts("spec.volumes")]


def _plan(pod: Manifest, volume: Manifest, find: FindObject) -> Volume:
    name = volume.text("name")
    if volume.has("persistentVolumeClaim"):
        claim = volume.text("persistentVolumeClaim.claimName")
        if find("PersistentVolumeClaim", claim) is None:
            raise ContainerConfigError(f"PersistentVolumeClaim {claim} not found")
        return Volume(name=name, claim=claim)
    if volume.has("emptyDir"):
        return Volume(name=name)
    sources = volume.parts("projected.sources") if volume.has("projected") else [volume]
    mode = volume.number("projected.defaultMode", FILE_MODE_DEFAULT)
    files: list[VolumeFile] = []
    for source in sources:
        files += _files(pod, source, mode, find)
    return Volume(name=name, files=tuple(files))


def _files(pod: Manifest, source: Manifest, mode: int, find: FindObject) -> list[VolumeFile]:
    if source.has("downwardAPI"):
        return [
            VolumeFile(
                item.text("path"), pod_field(pod, item.text("fieldRef.fieldPath")).encode(), mode
            )
            for item in source.parts("downwardAPI.items")
        ]
    for kind, field in (("ConfigMap", "configMap"), ("Secret", "secret")):
        if source.has(field):
            return _object_files(kind, source.part(field), mode, find)
    raise ContainerConfigError(f"unknown kind of volume: {', '.join(source.raw)}")


def _object_files(kind: str, reference: Manifest, mode: int, find: FindObject) -> list[VolumeFile]:
    name = reference.text("secretName") or reference.text("name")
    found = find(kind, name)
    if found is None:
        if reference.flag("optional"):
            return []
        raise ContainerConfigError(f"{kind} {name} not found")
    content = object_data(found)
    mode = reference.number("defaultMode", mode)
    if not reference.has("items"):
        return [VolumeFile(key, value, mode) for key, value in content.items()]
    files = []
    for item in reference.parts("items"):
        if item.text("key") not in content:
            raise ContainerConfigError(f"{kind} {name} has no key {item.text('key')}")
        value = content[item.text("key")]
        files.append(VolumeFile(item.text("path"), value, item.number("mode", mode)))
    return files
