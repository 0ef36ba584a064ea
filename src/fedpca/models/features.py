"""Hold a number for each feature and component, with the names of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """A number for each feature and component.

    Parameters
    ----------
    features : tuple of str
        The names of the features, which are the rows.
    components : tuple of str
        The names of the components, which are the columns.
    values : ndarray of shape (d, k)
        The numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca.models.features import FeatureTable
    >>> table = FeatureTable(("age", "pulse"), ("pc1",), np.array([[0.8], [-0.6]]))
    >>> table["pulse"]
    {'pc1': -0.6}
    >>> table.leading("pc1", 1)
    {'age': 0.8}
    """

    features: tuple[str, ...]
    components: tuple[str, ...]
    values: Array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.values, dtype=dtype, copy=copy)

    def __getitem__(self, feature: str) -> dict[str, float]:
        if feature not in self.features:
            raise InputError(
                f"no feature {feature!r} in this table; use one of the {len(self.features)} names "
                "in its attribute features"
            )
        row = self.values[self.features.index(feature)]
        return dict(zip(self.components, map(float, row), strict=True))

    def leading(self, component: str, n: int = 10) -> dict[str, float]:
        """Return the features with the largest numbers on a component, by absolute value."""
        if component not in self.components:
            raise InputError(
                f"no component {component!r}; the components are {', '.join(self.components)}"
            )
        column = self.values[:, self.components.index(component)]
        order = np.argsort(-np.abs(column), kind="stable")[:n]
        return {self.features[j]: float(column[j]) for j in order}

    def to_dict(self) -> dict[str, dict[str, float]]:
        """Return the numbers by component and then by feature, in a form that data frames accept."""
        return {
            name: dict(zip(self.features, map(float, column), strict=True))
            for name, column in zip(self.components, self.values.T, strict=True)
        }
