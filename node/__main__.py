"""``python -m node start|dev``: the server's commands without the client's."""

import click

from node.cli import dev, start


@click.group(commands={"start": start, "dev": dev})
def main() -> None:
    """Run nodes of a Milena cluster."""


main(prog_name="python -m node")
