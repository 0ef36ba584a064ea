"""Draw rows next to the low-rank part and the sparse part into which a robust model splits them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.estimators import RobustPCA
from fedpca.report.contents import Fitted, feature_names
from fedpca.report.drawing import Drawn, divided, label, new_axes
from fedpca.summary.summary import Summary

PART_TITLES = ("rows", "low-rank part", "outliers")
MAX_LABELED_FEATURES = 15  # the axis has no room for the names of more features
SHADES = "PuOr"  # two colors that everybody can tell apart, with white in the middle
MISSING_COLOR = "#bdbdbd"
USUAL_SHARE = 0.98  # share of the low-rank part's entries that lie within the range of shades


@dataclass
class PartsDisplay(Drawn):
    """The caller's own rows, their low-rank part, and their outliers, side by side.

    Parameters
    ----------
    row_numbers : ndarray of int, shape (n,)
        Which rows are drawn, counted from 0.
    features : list of str
        The features that are drawn.
    parts : tuple of three ndarrays of shape (n, len(features))
        The rows and the two parts that they split into, centered and scaled as in the model. NaN is a
        missing value.

    Attributes
    ----------
    axes_ : list of Axes
        The axes of the rows and of their two parts; ``ax_`` is the first one.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import RobustPCA
    >>> from fedpca.report import PartsDisplay
    >>> rows = np.random.default_rng(0).normal(size=(60, 2)) @ np.arange(12.0).reshape(2, 6)
    >>> rows[5, 3] += 100
    >>> pca = RobustPCA(2, random_state=0).fit({"north": rows[:30], "south": rows[30:]})
    >>> drawn = PartsDisplay.from_estimator(pca, rows[:10])
    >>> [part.shape for part in drawn.parts]
    [(10, 6), (10, 6), (10, 6)]
    """

    row_numbers: Array
    features: Sequence[str]
    parts: tuple[Array, Array, Array]
    axes_: list[Any] = field(init=False, default_factory=list)

    @classmethod
    def from_estimator(
        cls,
        fitted: Fitted | Summary,
        X: Any,
        *,
        n_rows: int = 60,
        n_features: int = 40,
        ax: Any = None,
    ) -> Self:
        """Draw the rows and features with the most outliers, in their original order."""
        if not isinstance(fitted, RobustPCA):
            raise InputError(
                f"{type(fitted).__name__} does not split rows into parts; fit a RobustPCA, as with "
                "fedpca fit --kind robust"
            )
        rows = np.asarray(X, float)
        low_rank, sparse = (np.asarray(part, float) for part in fitted.split(X))
        is_out = sparse != 0
        chosen = np.sort(np.argsort(-is_out.sum(axis=1), kind="stable")[:n_rows])
        columns = np.sort(np.argsort(-is_out[chosen].sum(axis=0), kind="stable")[:n_features])
        center, scale = fitted.mean_, fitted.scale_
        at = np.ix_(chosen, columns)
        outliers = np.where(np.isnan(rows), np.nan, sparse / scale)
        parts = ((rows - center) / scale)[at], ((low_rank - center) / scale)[at], outliers[at]
        names = feature_names(fitted)
        return cls(chosen, [names[j] for j in columns], parts).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw three pictures with the same shades, in which outliers are darkest."""
        n, d = self.parts[0].shape
        ax = new_axes(ax, (8.5, 1.8 + min(5.0, 0.08 * n + 1.5)))
        self.axes_ = divided(ax, (1, 1, 1), across=True)
        sizes = np.abs(self.parts[1])
        most = float(np.nanquantile(sizes, USUAL_SHARE)) if sizes.size else 0.0
        image = None
        for each, title, part in zip(self.axes_, PART_TITLES, self.parts, strict=True):
            each.set_facecolor(MISSING_COLOR)
            look = {"vmin": -2 * most or -1.0, "vmax": 2 * most or 1.0, "cmap": SHADES}
            image = each.imshow(part, aspect="auto", interpolation="nearest", **look)
            each.set_title(title, fontsize=10)
            if d <= MAX_LABELED_FEATURES:
                names = [label(name) for name in self.features]
                each.set_xticks(np.arange(d), names, rotation=90, fontsize=6)
            else:
                each.set(xlabel="feature")
            if each is not self.axes_[0]:
                each.set_yticks([])
        ticks = np.unique(np.linspace(0, n - 1, min(n, 8)).astype(int))
        self.axes_[0].set_yticks(ticks, [f"{self.row_numbers[i]:,}" for i in ticks], fontsize=7)
        self.axes_[0].set_ylabel("row")
        bar = self.axes_[0].figure.colorbar(image, ax=self.axes_, shrink=0.7, extend="both")
        bar.set_label("distance from the center, in the model's scale", fontsize=8)
        return self._keep(self.axes_[0])
