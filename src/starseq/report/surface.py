"""The error rate over alpha and beta as a heat map."""

from __future__ import annotations

import io
import os

from starseq.data.files import write_bytes
from starseq.decode.weights import Weights

__all__ = ["plot_surface"]


def plot_surface(weights: Weights, path: str | os.PathLike[str], *, title: str, metric: str) -> None:
    """Write a PNG: colours for the grid, a cross where the best weights are."""
    from matplotlib.figure import Figure

    surface = weights.surface
    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    axes = figure.add_subplot()
    # Squares around the grid's points; a grid of one point still has a square.
    edges = [_edges(axis) for axis in (surface.betas, surface.alphas)]
    mesh = axes.pcolormesh(*edges, surface.percent, cmap="viridis_r")
    figure.colorbar(mesh, ax=axes, label=f"{metric}, %")
    axes.plot(weights.beta, weights.alpha, "x", color="red", markersize=10, markeredgewidth=2)
    axes.annotate(f"  {weights.percent:.2f} %", (weights.beta, weights.alpha), color="red", verticalalignment="center")
    axes.set_xlabel("beta, weight of the length")
    axes.set_ylabel("alpha, weight of the language model")
    axes.set_title(title)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=120)
    write_bytes(path, image.getvalue())


def _edges(points: tuple[float, ...]) -> list[float]:
    """The borders half-way between points, and as far outside."""
    if len(points) == 1:
        return [points[0] - 0.5, points[0] + 0.5]
    middles = [(a + b) / 2 for a, b in zip(points, points[1:], strict=False)]
    return [2 * points[0] - middles[0], *middles, 2 * points[-1] - middles[-1]]
