"""Native endpoint: measurements of the last hour."""

from math import isfinite

from aiohttp import web

from http_api.describing.params import Param
from http_api.ports.node import BusyPartition, HistorySeries, HistoryView
from http_api.protocol.answers import json_answer
from http_api.serving.call import Call
from http_api.shapes import native as shapes
from http_api.shapes.blocks import text
from milena.model.access import CLUSTER_NAME, Operation, ResourceType
from milena.model.errors import MalformedRequestError

TOPIC = Param("topic", "what was done for this topic", text(), "orders")
GROUP = Param("group", "how far this group was behind", text(), "billing")


async def get_history(call: Call) -> web.Response:
    """Return the measurements of the last hour: of all nodes, of a topic, or of a group's lag."""
    query, history = call.query(), call.ports.history
    topic, group = query.get(TOPIC.name), query.get(GROUP.name)
    if topic is not None and group is not None:
        raise MalformedRequestError("give 'topic' or 'group', not both")
    if topic is not None:
        call.rights.authorize(Operation.DESCRIBE, ResourceType.TOPIC, [topic])
        return _answer(await history.of_topic(topic))
    if group is not None:
        call.rights.authorize(Operation.DESCRIBE, ResourceType.GROUP, [group])
        # The history has the sum of the lags in all topics. With the lags of the topics that it may see, a caller could
        # compute the lag in a hidden one. So require the right to all of them.
        call.rights.authorize_unnamed(
            Operation.DESCRIBE, ResourceType.TOPIC, _topics_of(call, group)
        )
        return _answer(await history.of_group(group))
    call.rights.authorize(Operation.DESCRIBE, ResourceType.CLUSTER, [CLUSTER_NAME])
    return _answer(await history.of_nodes())


def _topics_of(call: Call, group: str) -> set[str]:
    image = call.ports.metadata.image
    return {
        image.topics[topic_id].name
        for topic_id, _ in image.offsets.get(group, {})
        if topic_id in image.topics
    }


def _answer(view: HistoryView) -> web.Response:
    return json_answer(
        shapes.HISTORY.of(
            view,
            series=[_series(one) for one in view.series],
            busiest_partitions=[_busy(one) for one in view.busiest],
            nodes=[{"node_id": id_, "version": view.versions[id_]} for id_ in view.versions],
        )
    )


def _series(series: HistorySeries) -> dict[str, object]:
    values = [_short(value) if isfinite(value) else None for value in series.values]
    return shapes.HISTORY_SERIES.of(series, values=values)


def _busy(row: BusyPartition) -> dict[str, object]:
    rates = {name: _short(getattr(row, name)) for name in shapes.RATES}
    return shapes.BUSY_PARTITION.of(row, **rates)


def _short(value: float) -> float:
    """Round to an integer from 100 on, otherwise to a tenth: a response has thousands of numbers, so size matters."""
    return round(value) if value >= 100 else round(value, 1)
