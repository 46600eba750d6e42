"""Pictures that matplotlib draws, looked at before they are pixels."""

import pytest
from matplotlib.figure import Figure

_TOLERANCE = 0.01
"""Inches: less than two pixels of a picture."""


def saved_figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are saved from now on, as a list that grows."""
    figures: list[Figure] = []
    save = Figure.savefig

    def saved(figure: Figure, path: str, *, dpi: float) -> None:
        figures.append(figure)
        save(figure, path, dpi=dpi)
        # Letters are a little wider or narrower at another resolution than the one that was laid out.
        figure.set_dpi(dpi)

    monkeypatch.setattr(Figure, "savefig", saved)
    return figures


def cut_off(figure: Figure) -> list[str]:
    """The sides of a picture beyond which something was drawn."""
    drawn, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    beyond = {
        "left": -drawn.x0,
        "right": drawn.x1 - width,
        "bottom": -drawn.y0,
        "top": drawn.y1 - height,
    }
    return [side for side, inches in beyond.items() if inches > _TOLERANCE]
