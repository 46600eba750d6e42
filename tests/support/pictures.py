"""Check the plots that matplotlib draws, before they become pixels."""

import pytest
from matplotlib.figure import Figure

_TOLERANCE = 0.01
"""The tolerance in inches: less than two pixels."""


def saved_figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Return a list to which every figure is added that is saved from now on."""
    figures: list[Figure] = []
    save = Figure.savefig

    def saved(figure: Figure, path: str, *, dpi: float) -> None:
        figures.append(figure)
        save(figure, path, dpi=dpi)
        # At another resolution than that of the layout, letters have slightly different widths.
        figure.set_dpi(dpi)

    monkeypatch.setattr(Figure, "savefig", saved)
    return figures


def cut_off(figure: Figure) -> list[str]:
    """Return the sides of a figure beyond which something was drawn."""
    drawn, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    beyond = {
        "left": -drawn.x0,
        "right": drawn.x1 - width,
        "bottom": -drawn.y0,
        "top": drawn.y1 - height,
    }
    return [side for side, inches in beyond.items() if inches > _TOLERANCE]
