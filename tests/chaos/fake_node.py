"""Start one node of the fake cluster."""

from pathlib import Path

import click
from aiohttp import web

from tests.chaos.fake import BUGS, TRANSACTION_BUGS, Fake, SplitBrain
from tests.chaos.fake_transactions import TransactionalFake


@click.command()
@click.option("--node-id", type=int, required=True)
@click.option("--listen", required=True)
@click.option("--directory", type=click.Path(path_type=Path), required=True)
@click.option("--peers", required=True)
@click.option("--bug", type=click.Choice(list(BUGS)), required=True)
def main(node_id: int, listen: str, directory: Path, peers: str, bug: str) -> None:
    """Serve until killed."""
    urls = {int(i): url for i, url in (peer.split("=", 1) for peer in peers.split(","))}
    kind = TransactionalFake if bug in TRANSACTION_BUGS else Fake
    node = (SplitBrain if bug == "split-brain" else kind)(node_id, directory, urls, bug)
    host, _, port = listen.rpartition(":")
    web.run_app(node.app(), host=host, port=int(port), print=None, access_log=None)


if __name__ == "__main__":
    main()
