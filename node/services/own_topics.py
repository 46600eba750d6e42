"""Topics that only the cluster itself writes."""

from milena.model.errors import ForbiddenError
from raft_meta.machine.access import audit


def check_written_by_clients(topic: str) -> None:
    """Refuse a client's records for a topic that only the cluster writes, so that readers can trust the topic.

    Raises:
        ForbiddenError: the topic is such a topic; nothing was written.
    """
    if topic == audit.TOPIC:
        raise ForbiddenError(f"topic {topic} is written by the cluster alone")
