"""Plots as PNG files, small enough for a repository, with the machine under each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#2a6f97", "#e07a5f", "#81b29a", "#6d597a", "#f2cc8f", "#3d405b", "#b56576", "#8d99ae")
_DOTS_PER_INCH = 110

Line = tuple[Sequence[float], Sequence[float]]
"""The values along x and along y."""


class Sheet:
    """A page of plots one under another.

    matplotlib is imported here and not with the module: it takes a second, and reports need it alone.
    """

    def __init__(self, panels: int, *, title: str, width: float = 9.0, height: float = 3.0) -> None:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot

        self._figure, axes = pyplot.subplots(
            panels, 1, figsize=(width, height * panels + 0.6), squeeze=False, layout="constrained"
        )
        self._figure.suptitle(title, fontsize=12)
        self._axes: list[Axes] = [row[0] for row in axes]
        self._next = 0

    def lines(self, lines: Mapping[str, Line], *, y: str, x: str = "seconds", dashed: str = "") -> None:
        """Draw named lines; those whose name contains `dashed` are dashed."""
        axes = self._panel(y)
        for number, (name, (along, values)) in enumerate(lines.items()):
            style = "--" if dashed and dashed in name else "-"
            colour = _COLOURS[number % len(_COLOURS)]
            axes.plot(along, values, style, label=name, color=colour, linewidth=1.5)
        axes.set_xlabel(x, fontsize=9)
        axes.set_ylim(bottom=0)
        if lines:
            axes.legend(fontsize=8, loc="best")

    def compare(
        self, figures: Sequence[object], *, group: str, bar: str, height: str, label: str, y: str
    ) -> None:
        """Draw the member `height` of `figures` as `bars` does.

        `group`, `bar` and `label` are format strings for one of them, which is `{0}`; every bar is in every
        group.
        """
        heights: dict[str, list[float]] = {}
        labels: dict[str, list[str]] = {}
        for each in figures:
            heights.setdefault(bar.format(each), []).append(getattr(each, height))
            labels.setdefault(bar.format(each), []).append(label.format(each))
        self.bars(list(dict.fromkeys(map(group.format, figures))), heights, labels, y=y)

    def bars(
        self, groups: Sequence[str], bars: Mapping[str, Sequence[float]],
        labels: str | Mapping[str, Sequence[str]], *, y: str,
    ) -> None:  # fmt: skip
        """Draw for each of `groups` one bar of each name; `labels`, or a format string, say what is above."""
        axes = self._panel(y)
        width = 0.8 / max(1, len(bars))
        for number, (name, heights) in enumerate(bars.items()):
            places = [group + (number - (len(bars) - 1) / 2) * width for group in range(len(groups))]
            drawn = axes.bar(
                places, heights, width * 0.94, label=name, color=_COLOURS[number % len(_COLOURS)]
            )
            above = map(labels.format, heights) if isinstance(labels, str) else labels[name]
            axes.bar_label(drawn, labels=list(above), fontsize=8, padding=2)
        axes.set_xticks(range(len(groups)), groups)
        axes.margins(y=0.15)
        # Above the plot: wherever it lay within, it would hide somebody's figure.
        axes.legend(fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(bars), frameon=False)

    def save(self, path: Path, *, under: str = "") -> None:
        """Write the page; `under` is a line at its foot."""
        from matplotlib import pyplot

        self._figure.supxlabel(under, fontsize=6.5, color="#555555")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._figure.savefig(path, dpi=_DOTS_PER_INCH)
        pyplot.close(self._figure)

    def _panel(self, y: str) -> Axes:
        axes = self._axes[self._next]
        self._next += 1
        axes.set_ylabel(y, fontsize=9)
        axes.grid(visible=True, axis="y", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=8)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        return axes
