"""Topics that only the cluster itself writes."""

from milena.model.errors import ForbiddenError
from raft_meta.machine.access import audit


def check_written_by_clients(topic: str) -> None:
    """Refuse a client's records for a topic of the cluster's own: its readers must be able to trust it.

    Raises:
        ForbiddenError: the topic is one of them; nothing was written.
    """
    if topic == audit.TOPIC:
        raise ForbiddenError(f"topic {topic} is written by the cluster alone")
