"""What the cluster holds: objects by kind, namespace and name, with versions and the history that watches read.

Single-threaded: the loop that owns it is the only caller. Time and uids are handed in. Objects that come out are
copies; an object changes only through the store, and every change wakes the listeners.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, unique

from tests.helm.podlab.manifest import Document, Json, Manifest

NAMESPACE = "default"
"""Of all objects: one namespace is enough to judge a chart."""


class ApiError(Exception):
    """A refusal, as the real server words it: status code, reason, message."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason


@unique
class Change(Enum):
    """What happened to an object, in the words of a watch."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True)
class Event:
    """One change; ``version`` is the store's version after it."""

    version: int
    change: Change
    document: Document


@dataclass
class ObjectStore:
    """The objects of one namespace.

    Invariants:
        - ``metadata.resourceVersion`` grows with every change of any object;
        - ``metadata.generation`` grows with every change of an object's ``spec`` and with nothing else;
        - an object with finalizing work (a Pod) is removed by ``remove``, after ``mark_terminating``.
    """

    timestamp: Callable[[], str]
    new_uid: Callable[[], str]
    version: int = 0
    history: list[Event] = field(default_factory=list)
    listeners: list[Callable[[], None]] = field(default_factory=list)
    _objects: dict[tuple[str, str], Document] = field(default_factory=dict)

    def get(self, kind: str, name: str) -> Manifest:
        """One object.

        Raises:
            ApiError: 404.
        """
        found = self._objects.get((kind, name))
        if found is None:
            raise ApiError(404, "NotFound", f'{kind.lower()}s "{name}" not found')
        return Manifest(copy.deepcopy(found))

    def find(self, kind: str, name: str) -> Manifest | None:
        """One object, or None."""
        found = self._objects.get((kind, name))
        return None if found is None else Manifest(copy.deepcopy(found))

    def all(self, kind: str) -> list[Manifest]:
        """The objects of a kind, by name."""
        return [
            Manifest(copy.deepcopy(document))
            for (held, _), document in sorted(self._objects.items())
            if held == kind
        ]

    def everything(self) -> Iterator[Manifest]:
        """All objects."""
        return (Manifest(copy.deepcopy(document)) for document in list(self._objects.values()))

    def create(self, document: Document) -> Manifest:
        """Add an object.

        Raises:
            ApiError: 409, its name is taken.
        """
        manifest = Manifest(copy.deepcopy(document))
        if (manifest.kind, manifest.name) in self._objects:
            raise ApiError(
                409, "AlreadyExists", f'{manifest.kind.lower()}s "{manifest.name}" already exists'
            )
        manifest.raw["metadata"] = {
            **manifest.part("metadata").raw,
            "namespace": NAMESPACE,
            "uid": self.new_uid(),
            "creationTimestamp": self.timestamp(),
            "generation": 1,
        }
        self._keep(manifest, Change.ADDED)
        return self.get(manifest.kind, manifest.name)

    def replace(self, document: Document) -> Manifest:
        """Change an object's fields, all but its status and what the server keeps.

        Raises:
            ApiError: 404; 409 when the document is of an older version.
        """
        manifest = Manifest(copy.deepcopy(document))
        old = self.get(manifest.kind, manifest.name)
        read_at = manifest.text("metadata.resourceVersion")
        if read_at and read_at != old.text("metadata.resourceVersion"):
            raise ApiError(409, "Conflict", f"{manifest.name} has been modified; read it again")
        metadata = {**manifest.part("metadata").raw}
        for name in ("uid", "creationTimestamp", "namespace", "deletionTimestamp"):
            if old.has(f"metadata.{name}"):
                metadata[name] = old.at(f"metadata.{name}")
        grown = old.number("metadata.generation") + (manifest.at("spec") != old.at("spec"))
        metadata["generation"] = grown
        manifest.raw["metadata"] = metadata
        if old.has("status"):
            manifest.raw["status"] = old.at("status")
        if _without_version(manifest) != _without_version(old):
            self._keep(manifest, Change.MODIFIED)
        return self.get(manifest.kind, manifest.name)

    def set_status(self, kind: str, name: str, status: Document) -> None:
        """Set an object's status; nothing happens when it is the same or the object is gone."""
        found = self._objects.get((kind, name))
        if found is not None and found.get("status") != status:
            changed: Document = {**copy.deepcopy(found), "status": copy.deepcopy(status)}
            self._keep(Manifest(changed), Change.MODIFIED)

    def mark_terminating(self, kind: str, name: str, grace_s: int) -> None:
        """Say that an object is to go; whoever runs it removes it. A shorter grace period overrides."""
        manifest = self.get(kind, name)
        known = manifest.at("metadata.deletionGracePeriodSeconds")
        if isinstance(known, int) and known <= grace_s:
            return
        manifest.raw["metadata"] = {
            **manifest.part("metadata").raw,
            "deletionTimestamp": self.timestamp(),
            "deletionGracePeriodSeconds": grace_s,
        }
        self._keep(manifest, Change.MODIFIED)

    def remove(self, kind: str, name: str) -> None:
        """Take an object out; nothing happens when it is gone."""
        found = self._objects.pop((kind, name), None)
        if found is not None:
            self._note(Change.DELETED, found)

    def since(self, version: int, kind: str) -> list[Event]:
        """The changes of a kind after a version, oldest first."""
        return [
            event
            for event in self.history
            if event.version > version and event.document.get("kind") == kind
        ]

    def _keep(self, manifest: Manifest, change: Change) -> None:
        self._objects[(manifest.kind, manifest.name)] = manifest.raw
        self._note(change, manifest.raw)

    def _note(self, change: Change, document: Document) -> None:
        self.version += 1
        metadata: Json = document["metadata"]
        assert isinstance(metadata, dict), f"an object has metadata, not {metadata!r}"
        metadata["resourceVersion"] = str(self.version)
        self.history.append(Event(self.version, change, copy.deepcopy(document)))
        for listener in self.listeners:
            listener()


def _without_version(manifest: Manifest) -> Document:
    raw = copy.deepcopy(manifest.raw)
    metadata = raw.get("metadata")
    if isinstance(metadata, dict):
        metadata.pop("resourceVersion", None)
    return raw
