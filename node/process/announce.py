"""The text that a node prints for its operator once it listens."""

from milena.model.build_kind import build_kind
from node.config.options import NodeConfig


def announcement(config: NodeConfig, url: str) -> str:
    """Return the node's URL, its data directory, and the next commands to type."""
    curl = f"curl --cacert {config.tls_cert_file}" if config.has_api_tls else "curl"
    produce = (
        f"{curl} -H 'Content-Type: application/vnd.kafka.json.v2+json' "
        f'-d \'{{"records":[{{"value":"hello"}}]}}\' {url}/topics/greetings'
    )
    read = f"{curl} '{url}/topics/greetings/partitions/0/records?offset=earliest'"
    lines = [
        f"Milena node {config.node_id} listens on {url}",
        f"  data directory  {config.data_dir.absolute()}",
        f"  peers           {_peers(config)}",
        f"  build           {build_kind()}",
        f"  write           {produce}",
        f"  read            {read}",
    ]
    return "\n".join(lines)


def _peers(config: NodeConfig) -> str:
    if config.join:
        return "joins " + ", ".join(map(str, config.join))
    others = [f"{i}={a}" for i, a in sorted(config.voters.items()) if i != config.node_id]
    return ", ".join(others) or "none: a cluster of this node alone"
