"""``milena doctor``: examines a cluster from outside, and reports the worst problem first."""

import asyncio
from collections.abc import Sequence

import click

from milena.cluster.admin import AdminClient
from milena.commands import output
from milena.commands.health.diagnosis import ClusterExam, Finding, Severity, diagnose
from milena.commands.health.status_watch import take_look
from milena.commands.options import JSON, Amount
from milena.commands.target import EXIT_DEGRADED, ClusterTarget
from milena.model.clock import SystemClock

LAG_MAX = 10_000


@click.command()
@click.option("--lag", "lag_max", type=Amount(min=0), default=LAG_MAX, show_default=True,
              metavar="N", help="The lag of a group above which it is a warning.")  # fmt: skip
@JSON
@click.pass_obj
def doctor(target: ClusterTarget, lag_max: int, is_json: bool) -> None:
    """Examine the cluster: every node at its URL, quorum, leaders, replicas, disks, clocks, versions, groups.

    Reports the worst problem first, and what to do about it. Exit 0 if nothing is wrong, with or without warnings; 1 if
    something is wrong; 2 if no node responds.
    """

    async def work(client: AdminClient) -> ClusterExam:
        clock = SystemClock()
        look = await take_look(client, clock)
        nodes = await asyncio.gather(*(client.examine(node, clock) for node in look.view.nodes))
        return ClusterExam(view=look.view, nodes=nodes, groups=look.groups, lag_max=lag_max)

    findings = diagnose(target.run(work))
    output.show(is_json, output.plain(findings), _text(findings))
    if any(finding.severity is Severity.WRONG for finding in findings):
        raise click.exceptions.Exit(EXIT_DEGRADED)


def _text(findings: Sequence[Finding]) -> str:
    lines = []
    for finding in findings:
        lines.append(f"{finding.severity.value:7}  {finding.check}: {finding.found}")
        if finding.advice:
            lines.append(f"{'':7}  -> {finding.advice}")
    return "\n".join(lines)
