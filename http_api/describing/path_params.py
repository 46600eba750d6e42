"""Descriptions of the parameters in paths, by name. A name means the same in all paths."""

import re
from functools import partial

from http_api.describing.params import Param, ParamPlace
from http_api.shapes.blocks import count, text
from http_api.shapes.requests import TOPIC_NAME

_VISIBLE = "^[^\\u0000-\\u001f\\u007f]+$"
"""Pattern of a name without control characters."""
_NAME = text(pattern=_VISIBLE)
_ID = text(pattern=_VISIBLE, maxLength=255)

_param = partial(Param, place=ParamPlace.PATH)
_PARAMS = (
    _param("cluster", "id of the cluster; `GET /v3/clusters` tells it", _NAME, "a1b2c3"),
    _param("topic", "name of the topic", TOPIC_NAME, "orders"),
    _param("partition", "number of the partition, from 0", count(), 0),
    _param("broker", "id of the broker", count(least=1), 1),
    _param("group", "id of the consumer group", _ID, "billing"),
    _param("instance", "name of the REST consumer", _ID, "c1"),
    _param("consumer", "id of the group's member", _ID, "c1"),
    _param("user", "name of the user", _ID, "alice"),
    _param("token", "id of the token", _ID, "h4x7k2m9q3d5w8t1"),
    _param("config", "name of the config", _NAME, "retention.ms"),
    _param("producer_id", "id of the transaction's producer", count(), 7),
    _param("producer_epoch", "epoch of the transaction", count(), 0),
)
_BY_NAME = {param.name: param for param in _PARAMS}


def names_in(path: str) -> tuple[str, ...]:
    """Return the names of a path's parameters, in their order."""
    return tuple(re.findall(r"\{(\w+)\}", path))


def params_in(path: str) -> tuple[Param, ...]:
    """Return the parameters of a path, in their order."""
    return tuple(_BY_NAME[name] for name in names_in(path))
