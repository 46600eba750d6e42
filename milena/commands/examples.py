"""The examples at the end of the help of each command, by the command's words behind ``milena``."""

_EXAMPLES = """
access: access
access set: --user root --password-file root.password access set required
acls list: acls list User:shop
acls add: acls add User:shop --allow READ,WRITE --topic orders
acls remove: acls remove User:shop --topic orders --dry-run
bench produce: bench produce load --rate 2k --seconds 30s
bench consume: bench consume load --records 1M
bench latency: bench latency load --rate 100
completion: completion fish > ~/.config/fish/completions/milena.fish
consume: consume orders --last 10
consume: consume orders --follow --format '%T %k %v'
consume: consume orders --time -1h --until -30m --format json
consume: consume orders --group billing
dev: dev --nodes 3 --data-dir dev-data
doctor: doctor --lag 50k
drain: --url http://node-2:8082 drain --timeout 1m
dump: dump data/topics/f1c6627324f64edfaa7186f1934adf12/0 --records
groups list: groups list
groups describe: groups describe billing
groups reset: groups reset billing --topic orders --to-time -1h --dry-run
groups reset: groups reset billing --topic orders --topic refunds --shift-by -100
groups delete: groups delete billing audit
help: help topics create
nodes list: nodes list
nodes drain: nodes drain 4 --throttle 50M --wait
nodes drain: nodes drain 4 --undo
nodes remove: nodes remove 4
partitions move: partitions move orders -p 0 --to 1,2,4 --dry-run
partitions lead: partitions lead orders -p 0 --by 2
produce: produce orders orders.txt
produce: produce orders --key-separator : < lines.txt
produce: produce orders-copy orders.json --format json
profiles: --profile production status
quotas list: quotas list
quotas set: quotas set producer_byte_rate=10M request_rate=500 --user shop
quotas delete: quotas delete --user shop
reassignments list: reassignments list
reassignments cancel: reassignments cancel --topic orders
rebalance: rebalance --dry-run
rebalance: rebalance --throttle 50M --wait
start: start --data-dir data --listen 127.0.0.1:8082
status: status --watch --interval 5s
tokens list: tokens list --user shop
tokens create: tokens create --user shop --lifetime 90d --out shop.token
tokens delete: tokens delete 3k7q9w2m --user shop
topics create: topics create orders refunds --partitions 6 --config retention.ms=3d
topics list: topics list
topics describe: topics describe orders
topics alter: topics alter orders --partitions 12 --config segment.bytes=64M
topics alter: topics alter orders --replication-factor 3
topics delete: topics delete orders refunds
topics delete-records: topics delete-records orders --before-time -7d
transactions list: transactions list --older-than 5m
transactions describe: transactions describe billing-1
transactions find-hanging: transactions find-hanging
transactions abort: transactions abort 4711 0
users list: users list
users create: users create shop --no-password
users change: users change root --password-file root.password --keep-previous
users delete: users delete shop
version: version
"""


def examples_of(command: str) -> list[str]:
    """Return the command lines that show a command, such as ``topics create``."""
    rows = (line.partition(": ") for line in _EXAMPLES.strip().splitlines())
    return [f"milena {words}" for name, _, words in rows if name == command]


def epilog_of(command: str) -> str | None:
    """Return the end of a command's help; None if there are no examples."""
    lines = examples_of(command)
    # click keeps the lines of a paragraph that starts with this character.
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)]) if lines else None
