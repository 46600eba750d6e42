"""The text that a node prints for its operator once it listens."""

from milena.model.build_kind import build_kind
from node.config.options import NodeConfig

ANNOUNCE = "MILENA_ANNOUNCE"
"""The environment variable that is "no" for nodes of ``milena dev``, which names the next steps once for all nodes."""


def announcement(config: NodeConfig, url: str) -> str:
    """Return the node's URL, its data directory, and commands to try next.

    If the cluster has users, the commands sign in as the first user. If nodes do not create topics by themselves, the
    first command creates one.
    """
    curl = f"curl --cacert {config.tls_cert_file}" if config.has_api_tls else "curl"
    milena = f"milena --url {url}"
    if config.has_api_tls:
        milena += f" --ca {config.tls_cert_file}"
    if config.client_auth == "required":
        curl += " --cert CLIENT.pem --key CLIENT.key"
        milena += " --cert CLIENT.pem --key CLIENT.key"
    elif config.admin_password_file is not None:
        curl += f" --user {config.admin_user}"
        milena += f" --user {config.admin_user} --password-file {config.admin_password_file}"
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
        *([] if config.creates_topics else [f"  create          {milena} topics create greetings"]),
        f"  write           {produce}",
        f"  read            {read}",
    ]
    return "\n".join(lines)


def _peers(config: NodeConfig) -> str:
    if config.join:
        return "joins " + ", ".join(map(str, config.join))
    others = [f"{i}={a}" for i, a in sorted(config.voters.items()) if i != config.node_id]
    return ", ".join(others) or "none: a cluster of this node alone"
