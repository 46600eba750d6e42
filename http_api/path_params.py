"""Names in paths: what each stands for. One definition a name, wherever it stands."""

from http_api.params import Param, path_param
from http_api.shapes.blocks import count, text
from http_api.shapes.requests import TOPIC_NAME

_VISIBLE = "^[^\\u0000-\\u001f\\u007f]+$"
"""A name without control characters, which no path may hold."""
_NAME = text(pattern=_VISIBLE)
_ID = text(pattern=_VISIBLE, maxLength=255)

_PARAMS = (
    path_param("cluster", "id of the cluster; `GET /v3/clusters` tells it", _NAME, "a1b2c3"),
    path_param("topic", "name of the topic", TOPIC_NAME, "orders"),
    path_param("partition", "number of the partition, from 0", count(), 0),
    path_param("broker", "id of the broker", count(least=1), 1),
    path_param("group", "id of the consumer group", _ID, "billing"),
    path_param("instance", "name of the REST consumer", _ID, "c1"),
    path_param("consumer", "id of the group's member", _ID, "c1"),
    path_param("config", "name of the config", _NAME, "retention.ms"),
)
_BY_NAME = {param.name: param for param in _PARAMS}


def params_in(path: str) -> tuple[Param, ...]:
    """The parameters of a path, in their order."""
    parts = path.split("/")
    return tuple(_BY_NAME[part[1:-1]] for part in parts if part.startswith("{"))
