"""Generates ``docs/configuration.md``: ``python -m node.config.docs > docs/configuration.md``."""

import sys
from dataclasses import MISSING, fields
from itertools import groupby

from node.config.options import OPTIONS, NodeConfig
from node.config.sources import flag_of, variable_of
from raft_meta.machine.topics.configs import KEYS, ConfigKey

INTRODUCTION = """\
# Configuration

This page is generated from `node/config/options.py` by `python -m node.config.docs`. Do not edit it.
"""

EXAMPLE = """\
## Example

```toml
node_id = 1
data_dir = "/var/lib/milena"
listen = "0.0.0.0:8082"
advertise = "http://a.example.org:8082"
peer_listen = "0.0.0.0:7082"
cluster_secret_file = "/etc/milena/secret"

[peers]
1 = "a.example.org:7082"
2 = "b.example.org:7082"
3 = "c.example.org:7082"
```

Save this example as `milena.toml` and start the node with `milena start --config milena.toml`. The same settings as
flags: `milena start --node-id 1 --data-dir /var/lib/milena --peers
1=a.example.org:7082,2=b.example.org:7082,3=c.example.org:7082 ...`.

A node reads its settings from four sources. A later source wins over an earlier one:

| source | name of a setting |
|---|---|
| the default | |
| a TOML file: `--config PATH` or `MILENA_CONFIG` | the first name in the tables below |
| an environment variable | the same name in capitals, after `MILENA_` |
| a flag | the same name with dashes, after `--` |

The node refuses to start if a name is unknown, a value is bad, or settings contradict each other. It then exits with
code 78. One line names the source, the setting, the value and the allowed values.

If a node's peer port is open beyond its machine, the node needs a cluster secret or the `peer_tls_*` files.
"""


TOPICS = """\
## Topic configs

This section is generated from `raft_meta/machine/topics/configs.py`. Topic configs belong to a topic, not to a node.
Set them when you create the topic, or change them while it is in use. To change them, use `milena topics alter`, or
`PUT` and `POST` below `/v3/clusters/{c}/topics/{t}/configs`. The defaults are those of a topic with three replicas.

| name | default | allowed | meaning |
|---|---|---|---|"""


def default_text(name: str) -> str:
    """Return an option's default as the page shows it."""
    meta = OPTIONS[name]
    if meta.default is not None:
        return meta.default
    (item,) = (item for item in fields(NodeConfig) if item.name == name)
    assert item.default is not MISSING, f"{name} has no default that can be shown"
    return f"`{meta.kind.show(item.default)}`"


def markdown() -> str:
    """Return the whole page."""
    parts = [INTRODUCTION, EXAMPLE]
    for group, names in groupby(OPTIONS, key=lambda name: OPTIONS[name].group):
        parts.append(
            f"## {group}\n\n| name, flag, variable | default | allowed | meaning |\n|---|---|---|---|"
        )
        parts.extend(_row(name) for name in names)
        parts.append("")
    parts.append(TOPICS)
    parts.extend(_topic_row(KEYS[name]) for name in sorted(KEYS))
    return "\n".join([*parts, ""])


def _topic_row(key: ConfigKey) -> str:
    return f"| `{key.name}` | `{key.default(3)}` | {key.allowed} | {key.doc} |"


def _row(name: str) -> str:
    meta = OPTIONS[name]
    flag = "no flag" if meta.is_secret else f"`{flag_of(name)}`"
    names = f"`{name}`<br>{flag}<br>`{variable_of(name)}`"
    return f"| {names} | {default_text(name)} | {meta.kind.allowed} | {meta.doc} |"


if __name__ == "__main__":
    sys.stdout.write(markdown())
