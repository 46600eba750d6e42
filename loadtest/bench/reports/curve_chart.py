"""Plot the curves of a run in small panels: rates over a number, and latencies over their percentiles."""

from collections.abc import Mapping
from pathlib import Path
from textwrap import fill

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from loadtest.bench.measuring.samples import Rounds, Spread
from loadtest.bench.reports.curves import (
    ALL_REPLICAS,
    BATCHES,
    JSON,
    ONE_REPLICA,
    PARTITIONS,
    READERS,
    TURNS,
    LatencyPanel,
    RatePanel,
    distribution,
    points,
)
from loadtest.bench.rows import produce as produce_rows

DPI = 100
PANELS: tuple[RatePanel | LatencyPanel, ...] = (
    RatePanel(
        title="Records of 100 B a request, 16 clients",
        across="records a request",
        unit="records/s",
        curves={"encoded batches": BATCHES, "JSON": JSON},
        is_logarithmic=True,
    ),
    LatencyPanel(
        stage="latency",
        title="One client that waits, unsynced",
        contenders={
            "acks=all": produce_rows.SINGLE_ALL,
            "acks=1": produce_rows.SINGLE_LEADER,
            "NATS": produce_rows.NATS_SYNC,
        },
    ),
    LatencyPanel(
        stage="latency-durable",
        title="One client that waits, durable",
        contenders={
            "acks=all": produce_rows.SINGLE_ALL_DURABLE,
            "acks=1": produce_rows.SINGLE_LEADER_DURABLE,
            "NATS": produce_rows.NATS_SYNC_SYNCED,
        },
    ),
    RatePanel(
        title="Partitions on 3 nodes, 24 clients",
        across="partitions",
        unit="records/s",
        curves={"batches of 100": PARTITIONS},
    ),
    RatePanel(
        title="Nodes, 24 partitions, 24 clients",
        across="nodes on this machine",
        unit="records/s",
        curves={"one replica": ONE_REPLICA, "one on every node": ALL_REPLICAS},
    ),
    RatePanel(
        title="Readers of one topic, 1 MB a fetch",
        across="readers",
        unit="MB/s",
        curves={"stored batches": READERS},
    ),
)
_COLUMNS = 3
_COLOURS = ("#1f6fb4", "#d9822b", "#888888")
_TITLE_COLUMNS = 120
_PERCENT_TICKS = (1, 10, 50, 90, 99, 99.9)


def draw_curves(stages: Mapping[str, Rounds], path: Path, *, title: str) -> None:
    """Draw the panels that have data. If none has, remove the plot of an earlier run."""
    drawn = [(p, found) for p in PANELS if (found := _measured(p, stages.get(p.stage, Rounds())))]
    path.unlink(missing_ok=True)
    if not drawn:
        return
    columns = min(_COLUMNS, len(drawn))
    rows = -(-len(drawn) // columns)
    with mpl.rc_context({"axes.spines.top": False, "axes.spines.right": False, "font.size": 9}):
        # The plot is as wide as its title, even with few panels.
        figure = Figure(figsize=(10.5, 0.5 + 2.9 * rows), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False).flatten()
        for axis, (panel, found) in zip(axes, drawn, strict=False):
            _draw(axis, panel, found)
        for axis in axes[len(drawn) :]:
            axis.set_axis_off()
        turns = stages.get("curves", Rounds()).facts.get(TURNS)
        lines = [fill(title, _TITLE_COLUMNS), *([f"{TURNS}: {turns}"] if turns else [])]
        figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=10, fontweight="bold")
        figure.savefig(path, dpi=DPI)


def _measured(panel: RatePanel | LatencyPanel, rounds: Rounds) -> dict[str, dict[float, Spread]]:
    """Return the measured figures, by label."""
    if isinstance(panel, LatencyPanel):
        found = {label: distribution(rounds, name) for label, name in panel.contenders.items()}
    else:
        found = {label: points(rounds, curve) for label, curve in panel.curves.items()}
    return {label: values for label, values in found.items() if values}


def _draw(
    axis: Axes, panel: RatePanel | LatencyPanel, found: Mapping[str, Mapping[float, Spread]]
) -> None:
    is_rate = isinstance(panel, RatePanel)
    for colour, (label, spreads) in zip(_COLOURS, found.items(), strict=False):
        places = [place if is_rate else place / 100 for place in spreads]
        least, median, greatest = (
            [getattr(s, part) for s in spreads.values()] for part in ("least", "median", "greatest")
        )
        axis.plot(places, median, ".-", color=colour, label=label, linewidth=1.6)
        axis.vlines(places, least, greatest, color=colour, linewidth=3, alpha=0.3)
    if isinstance(panel, RatePanel):
        _rate_axes(axis, panel)
    else:
        _latency_axes(axis)
    axis.set_title(panel.title, fontsize=9.5, loc="left")
    axis.grid(visible=True, color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.legend(frameon=False, fontsize=8)


def _rate_axes(axis: Axes, panel: RatePanel) -> None:
    counts = sorted({count for curve in panel.curves.values() for count in curve})
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(FixedLocator(counts))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(_short))
    axis.yaxis.set_major_formatter(FuncFormatter(_short))
    axis.set_xlabel(panel.across)
    axis.set_ylabel(panel.unit)
    if panel.is_logarithmic:
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(FuncFormatter(_short))
    else:
        axis.set_ylim(bottom=0)


def _latency_axes(axis: Axes) -> None:
    # The axis gives each further nine the same space: p99 to p99.9 is as wide as p90 to p99.
    axis.set_xscale("logit")
    axis.xaxis.set_major_locator(FixedLocator([percent / 100 for percent in _PERCENT_TICKS]))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda part, _: f"{100 * part:g} %"))
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(FuncFormatter(_short))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("of the calls took at most")
    axis.set_ylabel("ms")


def _short(value: float, _: int | None) -> str:
    """Return a number with three digits and a unit prefix: 1.5 k, 2 M."""
    for size, unit in ((1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
