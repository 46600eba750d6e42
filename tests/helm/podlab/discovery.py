"""What the API server says of itself: versions, groups, types. Static; just what helm asks for."""

from tests.helm.podlab.manifest import Document, Json
from tests.helm.podlab.resources import BY_PLACE, GROUP_VERSIONS, RESOURCES, Resource

VERBS: list[Json] = ["get", "list", "create", "update", "patch", "delete", "watch"]


def describe(path: str, kubernetes_version: str) -> Document | None:
    """The answer to a discovery call, or None when the path is none."""
    match path.strip("/").split("/"):
        case ["version"]:
            major, minor = kubernetes_version.removeprefix("v").split(".")[:2]
            return {"major": major, "minor": minor, "gitVersion": kubernetes_version}
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"]}
        case ["apis"]:
            return _groups()
        case ["api", version]:
            return _types(version)
        case ["apis", group, version]:
            return _types(f"{group}/{version}")
        case ["openapi", "v3"]:
            return _schema_index()
        case ["openapi", "v3", "api", version]:
            return _schema(version)
        case ["openapi", "v3", "apis", group, version]:
            return _schema(f"{group}/{version}")
        case _:
            return None


def _groups() -> Document:
    groups: list[Json] = []
    for group_version in GROUP_VERSIONS:
        group, slash, version = group_version.partition("/")
        if slash:
            served: Document = {"groupVersion": group_version, "version": version}
            groups.append({"name": group, "versions": [served], "preferredVersion": served})
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def _of(group_version: str) -> list[Resource]:
    return [resource for resource in RESOURCES if resource.group_version == group_version]


def _types(group_version: str) -> Document | None:
    resources: list[Json] = [
        {
            "name": resource.plural,
            "singularName": resource.kind.lower(),
            "kind": resource.kind,
            "namespaced": resource.kind != "Namespace",
            "verbs": VERBS,
        }
        for resource in _of(group_version)
    ]
    if not resources:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": resources,
    }


def _schema_index() -> Document:
    places = {resource.api_path.removeprefix("/") for resource in BY_PLACE.values()}
    return {"paths": {place: {"serverRelativeURL": f"/openapi/v3/{place}"} for place in places}}


def _schema(group_version: str) -> Document:
    """Says only that the server checks fields by itself, so that helm need not."""
    parameter: Document = {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}
    paths: Document = {
        f"/{resource.plural}/{{name}}": {
            "patch": {
                "parameters": [parameter],
                "responses": {},
                "x-kubernetes-group-version-kind": {
                    "group": resource.group,
                    "version": resource.version,
                    "kind": resource.kind,
                },
            }
        }
        for resource in _of(group_version)
    }
    return {"openapi": "3.0.0", "info": {"title": "podlab", "version": "1"}, "paths": paths}
