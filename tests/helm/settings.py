"""Which settings of a node the chart passes on, and how its schema must describe them.

``python -m tests.helm.settings`` brings the chart's schema up to date with the node's settings.
"""

import json
import re
from collections.abc import Mapping

from node.config.options import OPTIONS, OptionDoc
from tests.helm.charts import CHART

SCHEMA = CHART / "values.schema.json"
LINE_MAX = 110

SET_BY_CHART = frozenset(
    {
        "node_id",
        "data_dir",
        "listen",
        "advertise",
        "rack",
        "drain_timeout_ms",
        "peer_listen",
        "peer_advertise",
        "peers",
        "join",
        "cluster_secret",
        "cluster_secret_file",
        "admin_user",
        "admin_password_file",
        "access_mode",
        "peer_tls_cert_file",
        "peer_tls_key_file",
        "peer_tls_ca_file",
        "tls_cert_file",
        "tls_key_file",
        # The kubelet shows no certificate: every probe would fail.
        "tls_client_ca_file",
        "tls_client_auth",
        "tls_principal_rule",
        # No value brings a file of an issuer's keys into a pod; `oidc_jwks_url` needs none.
        "oidc_jwks_file",
        # Of a pod the log is collected, and no file.
        "audit_file",
        "kafka_listen",
        "kafka_advertise",
        "kafka_external_listen",
        "kafka_external_advertise",
        "kafka_one_address",
    }
)
"""Settings that differ from node to node or follow from other values."""


def passed_on() -> dict[str, OptionDoc]:
    """The settings that ``config`` may hold."""
    return {name: doc for name, doc in OPTIONS.items() if name not in SET_BY_CHART}


def schema_of(doc: OptionDoc) -> Mapping[str, object]:
    """The JSON schema of one setting.

    Raises:
        ValueError: A kind of setting that no rule here covers.
    """
    if doc.kind.is_switch:
        return {"type": "boolean"}
    bounds = re.match(r"(\d+) to (\d+)", doc.kind.allowed)
    if bounds:
        return {"type": "integer", "minimum": int(bounds[1]), "maximum": int(bounds[2])}
    words = doc.kind.allowed.split(" or ")
    if all(re.fullmatch("[a-z]+", word) for word in words):
        return {"enum": words}
    if doc.kind.allowed.startswith("http://HOST[:PORT]"):
        return {"type": "string", "pattern": "^https?://[^/, ]+(,https?://[^/, ]+)*$"}
    if doc.kind.allowed.startswith("https://HOST[:PORT]"):
        return {"type": "string", "pattern": "^https://[^/ ]+"}
    if doc.kind.allowed.startswith("ADDRESS or ADDRESS/BITS"):
        return {"type": "string", "pattern": "^[0-9A-Fa-f:./]+(,[0-9A-Fa-f:./]+)*$"}
    if doc.kind.allowed.startswith("HOST or .DOMAIN"):
        name = "[.]?[A-Za-z0-9_][A-Za-z0-9_.-]*"
        return {"type": "string", "pattern": f"^[*]$|^{name}(,{name})*$"}
    if doc.kind.allowed.startswith("any text"):
        return {"type": "string", "minLength": 1}
    raise ValueError(f"what is {doc.kind.allowed!r} as a JSON schema?")


def config_schema() -> dict[str, object]:
    """The properties of ``config``."""
    return {name: dict(schema_of(doc)) for name, doc in passed_on().items()}


def as_text(value: object, indent: int = 0) -> str:
    """JSON with everything on one line that has room there."""
    flat = json.dumps(value)
    if not isinstance(value, dict | list) or len(flat) + indent <= LINE_MAX:
        return flat
    pad = " " * (indent + 2)
    if isinstance(value, dict):
        lines = [f"{pad}{json.dumps(name)}: {as_text(v, indent + 2)}" for name, v in value.items()]
        return "{\n" + ",\n".join(lines) + "\n" + " " * indent + "}"
    lines = [pad + as_text(item, indent + 2) for item in value]
    return "[\n" + ",\n".join(lines) + "\n" + " " * indent + "]"


if __name__ == "__main__":
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    schema["properties"]["config"]["properties"] = config_schema()
    SCHEMA.write_text(as_text(schema) + "\n", encoding="utf-8")
