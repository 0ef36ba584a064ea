"""What a fitted `PersonalizedPCA` does with rows: scores, parts, errors, and one more site."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import scipy.sparse as sp
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from fedpca.errors import InputError
from fedpca.estimators.inputs import labels_of_rows
from fedpca.estimators.personal_program import check_ranks
from fedpca.message import Array
from fedpca.personal_model import PersonalModel, Split
from fedpca.rows import column_order, open_rows


class PersonalRowsMixin(ClassNamePrefixFeaturesOutMixin, TransformerMixin):  # type: ignore[misc]
    """Methods of an estimator that has a `PersonalModel`."""

    n_local: Any
    model_: PersonalModel
    components_: Array
    local_components_: dict[str, Array]
    site_variance_: dict[str, dict[str, float]]
    n_features_in_: int
    n_samples_: int

    if TYPE_CHECKING:

        def _set_model(self, model: PersonalModel, n_samples: int, features: Any) -> None: ...

    def transform(self, X: Any, site: Any = None) -> Array:
        """Shared, then local scores of rows, ``(n, n_shared + n_local)``.

        ``site`` is the name of the rows' site, or one label a row; it may be left out where only one
        site is known. Columns of components that a site lacks are zero.
        """
        rows = self._rows(X)
        model = self.model_
        width = len(model.components) + model.n_local
        scores = np.empty((rows.shape[0], width))
        for name, chosen in self._by_site(rows, site):
            scores[chosen] = model.transform(rows[chosen], name)
        return scores.astype(rows.dtype, copy=False)

    def inverse_transform(self, X: Any, site: Any = None) -> Array:
        """The rows that have these scores and nothing outside the site's components."""
        check_is_fitted(self)
        scores = check_array(X, dtype=[np.float64, np.float32])
        width = len(self.components_) + self.model_.n_local
        if scores.shape[1] != width:
            raise InputError(f"scores have {scores.shape[1]} columns instead of {width}")
        rows = np.empty((len(scores), self.n_features_in_))
        for name, chosen in self._by_site(scores, site):
            rows[chosen] = self.model_.inverse_transform(scores[chosen], name)
        return rows.astype(scores.dtype, copy=False)

    def split(self, X: Any, site: Any = None) -> Split:
        """Rows about their mean as the sum of the shared part, the local part, and what is left.

        In the units of the rows; the parts are orthogonal once divided by `scale_`.
        """
        rows = self._rows(X)
        parts = Split(*(np.empty(rows.shape) for _ in Split._fields))
        for name, chosen in self._by_site(rows, site):
            for whole, part in zip(parts, self.model_.split(rows[chosen], name), strict=True):
                whole[chosen] = part
        return parts

    def reconstruction_errors(self, X: Any, sites: Any = None) -> dict[str, float]:
        """The mean squared length of what the components leave of a row, for each site's rows.

        In the units of the model, those of the rows divided by `scale_`.

        ``X`` is a dict of rows by site, or one table with a label a row. The rows may be new ones.
        """
        if not isinstance(X, Mapping) or sp.issparse(X):  # one of scipy's formats is a dict
            rows = self._rows(X)
            X = {name: rows[chosen] for name, chosen in self._by_site(rows, sites)}
        return {
            str(name): self.model_.error(self._rows(rows), self._known(str(name)))
            for name, rows in X.items()
        }

    def add_site(self, name: str, X: Any, n_local: int | None = None) -> Self:
        """Take in a site that was not in the fit: its local components come from its own rows.

        ``X`` are its rows or their path, and ``n_local`` the number of its components, by default that
        of the fit, where this is one number. What is shared stays as it is, and so do `objective_`,
        `misalignment_` and `n_samples_`.
        """
        check_is_fitted(self)
        name = str(name)
        given = self.n_local if n_local is None else n_local
        rank = given.get(name) if isinstance(given, Mapping) else given
        if not isinstance(rank, Integral) or rank < 1:
            raise InputError(f"n_local={rank!r} for site {name!r}; give add_site a number above 0")
        if name in self.local_components_:
            raise InputError(
                f"site {name!r} is in the model already; give the new one another name"
            )
        rows = open_rows(X)
        d, order = self.n_features_in_, None
        features = getattr(self, "feature_names_in_", None)
        if features is not None and rows.features is not None:
            order = column_order(tuple(features), rows.features, f"site {name!r}")
        elif rows.n_features != d:
            raise InputError(f"site {name!r} has {rows.n_features} columns instead of {d}")
        check_ranks(len(self.components_), int(rank), d)
        model = self.model_.with_site(name, rows, int(rank), order)
        self._set_model(model, self.n_samples_, features)
        self.site_variance_[name] = self.model_.parts[name].shares
        return self

    @property
    def _n_features_out(self) -> int:
        return len(self.components_) + self.model_.n_local

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags.sparse = True
        return tags

    def _by_site(self, rows: Any, site: Any) -> list[tuple[str, Any]]:
        """The rows of each site: its name, and which they are."""
        if site is None:
            known = list(self.local_components_)
            if len(known) != 1:
                raise InputError(
                    f"say which site the rows are of: one of {known}, or a label a row"
                )
            site = known[0]
        if np.ndim(site) == 0:
            return [(self._known(str(site)), slice(None))]
        labels = labels_of_rows(site, rows.shape[0])
        return [(self._known(str(name)), labels == name) for name in np.unique(labels)]

    def _known(self, name: str) -> str:
        if name in self.local_components_:
            return name
        if not self.local_components_:
            raise InputError(
                f"the local components of site {name!r} stayed there; load the file that the site "
                "keeps, or let fit gather=True, or add_site with its rows"
            )
        raise InputError(
            f"the local components of site {name!r} are not known here, only those of "
            f"{list(self.local_components_)}; add_site takes in one more"
        )

    def _rows(self, X: Any) -> Any:
        check_is_fitted(self)
        return validate_data(
            self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False
        )
