"""v3: the envelopes of items and lists. Links are absolute URLs, with the host name that the client uses."""

from collections.abc import Iterable, Sequence

from aiohttp import web

from http_api.protocol.answers import json_answer
from http_api.protocol.urls import base_url, path_of
from http_api.serving.call import Call
from milena.model.errors import ClusterNotFoundError, NotReadyError

Resource = dict[str, object]


class Links:
    """Creates the links and envelopes in the response to one request."""

    def __init__(self, call: Call) -> None:
        self._base = base_url(call.request)
        self.cluster_id = cluster_id(call)
        self._clusters = f"{self._base}/v3/clusters"

    def clusters(self) -> str:
        """Return the URL of the list of clusters."""
        return self._clusters

    def url(self, *parts: str | int) -> str:
        """Return the URL of a resource below the cluster."""
        return self._clusters + path_of(self.cluster_id, *parts)

    def related(self, *parts: str | int) -> dict[str, str]:
        """Return a link to a resource below the cluster."""
        return {"related": self.url(*parts)}

    def item(self, kind: str, *parts: str | int) -> Resource:
        """Return the common fields of an item: kind, metadata and cluster id. ``parts``: its URL below the cluster."""
        return {
            "kind": kind,
            "metadata": {
                "self": self.url(*parts),
                "resource_name": f"crn:///kafka={self.cluster_id}{_name(parts)}",
            },
            "cluster_id": self.cluster_id,
        }

    def listing(self, kind: str, items: Iterable[object], *parts: str | int) -> web.Response:
        """Return a response with all items of the list at ``parts`` below the cluster. Lists have no pages here."""
        metadata = {"self": self.url(*parts), "next": None}
        return json_answer({"kind": kind, "metadata": metadata, "data": list(items)})


def _name(parts: Sequence[str | int]) -> str:
    """Return a resource's name: ``topics, orders, partitions, 0`` becomes ``/topic=orders/partition=0``."""
    name = ""
    for kind, id_ in zip(parts[::2], parts[1::2], strict=False):
        name += f"/{str(kind)[:-1]}={id_}"
    return f"{name}/{parts[-1]}" if len(parts) % 2 else name


def cluster_id(call: Call) -> str:
    """Return the cluster's id; check the cluster id in the path, if there is one.

    Raises:
        ClusterNotFoundError: the path has the id of another cluster.
        NotReadyError: the cluster has not been formed yet.
    """
    own = call.ports.metadata.image.cluster_id
    if not own:
        raise NotReadyError("the cluster is still being formed; try again")
    wanted = call.names.get("cluster", own)
    if wanted != own:
        raise ClusterNotFoundError(f"this cluster is '{own}'; there is no '{wanted}' here")
    return own


def item_answer(resource: Resource, *, status: int = 200, location: str = "") -> web.Response:
    """Return a response with one item. ``location`` is the URL of a new item."""
    headers = [("Location", location)] if location else []
    return json_answer(resource, status=status, headers=headers)
