"""Topics that the cluster writes by itself, and nobody else."""

from milena.model.errors import ForbiddenError
from raft_meta.machine.access import audit


def check_written_by_clients(topic: str) -> None:
    """Refuse a client's records for a topic of the cluster's own: who reads it must be able to believe it.

    Raises:
        ForbiddenError: it is one; nothing was written.
    """
    if topic == audit.TOPIC:
        raise ForbiddenError(f"topic {topic} is written by the cluster alone")
