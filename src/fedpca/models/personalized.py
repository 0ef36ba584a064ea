"""Define a fitted personalized model, which has shared components and each site's local components.

A row x at site i is standardized as ``a = (x - m_i) / s``, which is the sum of three orthogonal parts:
one along the shared components U, one along the site's local components V_i, and a remainder.

    a = U U'a + V_i V_i'a + left

A site's model file contains only that site's part. The coordinator's file contains the parts that the
sites allowed the coordinator to gather, if any.

Source: Shi and Kontar, "Personalized PCA: decoupling shared and unique features" (2024).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.errors import FileError, InputError
from fedpca.linalg.dense import fix_signs
from fedpca.models.linear import Model
from fedpca.rows.in_memory import Rows, is_sparse, refuse_non_finite
from fedpca.rows.labels import selections
from fedpca.rows.leading import leading_directions
from fedpca.rows.standardized import Frame, StandardizedRows, column_sums
from fedpca.storage.tensor_file import check_features, check_file_arrays, read_arrays, write_arrays


class Split(NamedTuple):
    """Centered rows as the sum of three parts, each ``(n, d)``; ``left`` is the remainder.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import PersonalizedPCA
    >>> rng = np.random.default_rng(0)
    >>> sites = {"north": rng.normal(size=(50, 4)), "south": rng.normal(size=(30, 4))}
    >>> pca = PersonalizedPCA(1, 1).fit(sites)
    >>> part = pca.split(sites["north"], "north")
    >>> centered = sites["north"] - pca.site_means_["north"]
    >>> np.allclose(part.shared + part.local + part.left, centered)
    True
    """

    shared: Array
    local: Array
    left: Array


@dataclass(frozen=True)
class SitePart:
    """A site's local components, mean, and variances."""

    n: int  # rows
    mean: Array  # (d,), subtracted from the site's rows
    components: Array  # (r, d)
    variance: Array  # (r,), along the components
    shared: Array  # (k,), variance along the shared components
    total: Array  # (), variance of all features

    @classmethod
    def from_squares(
        cls, n: int, mean: Array, V: Array, values: Array, along: Array, energy: float
    ) -> SitePart:
        """Make a site's part from sums of squares of its n rows.

        ``values`` holds the sums along V, ``along`` holds those along the shared components, and
        ``energy`` is the total.
        """
        divisor = max(1, n)
        return cls(
            n=n,
            mean=mean,
            components=np.ascontiguousarray(fix_signs(V).T),
            variance=values / divisor,
            shared=along / divisor,
            total=np.array(energy / divisor),
        )

    @property
    def shares(self) -> dict[str, float]:
        """Return the shared, local, and remaining shares of the site's variance."""
        return variance_shares(
            float(self.shared.sum()), float(self.variance.sum()), float(self.total)
        )


def variance_shares(shared: float, local: float, total: float) -> dict[str, float]:
    """Return the shared, local, and remaining shares of a total variance, or NaN if it is zero."""
    if total <= 0:
        return dict.fromkeys(("shared", "local", "left"), float("nan"))
    left = max(0.0, total - shared - local)
    return {"shared": shared / total, "local": local / total, "left": left / total}


@dataclass(frozen=True)
class PersonalizedModel:
    """The shared components, and the parts for the sites that this model covers."""

    components: Array  # (k, d)
    variance: Array  # (k,), along the components, averaged over sites
    scale: Array  # (d,)
    mean: Array | None  # (d,), common to all sites; None if each site has its own
    parts: dict[str, SitePart]

    @cached_property
    def n_local(self) -> int:
        """Return the largest number of local components at any site."""
        return max((len(part.components) for part in self.parts.values()), default=0)

    def of_site(self, name: str) -> Model:
        """Return one site's shared and local components as a linear model of its rows."""
        part = self._part(name)
        variance = np.concatenate([part.shared, part.variance])
        d, k = self.components.shape[1], len(variance)
        remainder = max(0.0, float(part.total) - float(variance.sum()))
        n_remaining = max(min(part.n, d) - k, 0)
        return Model(
            components=np.vstack([self.components, part.components]),
            explained_variance=variance,
            singular_values=np.sqrt(variance * part.n),
            mean=part.mean,
            scale=self.scale,
            noise_variance=np.array(remainder / n_remaining if n_remaining else 0.0),
            total_variance=part.total,
        )

    def only(self, name: str) -> PersonalizedModel:
        """Return the model with the part of only one site, as that site keeps it."""
        return replace(self, parts={name: self._part(name)})

    @property
    def n_scores(self) -> int:
        """Return the number of scores per row, which is that of the site with the most components."""
        return len(self.components) + self.n_local

    @property
    def score_names(self) -> list[str]:
        """Return the names of the scores."""
        shared = [f"shared{i}" for i in range(len(self.components))]
        return shared + [f"local{i}" for i in range(self.n_local)]

    def by_site(self, site: Any, n_rows: int) -> Iterator[tuple[str, Any]]:
        """Yield the name of each site in ``site`` and a selection of its rows.

        ``site`` is the name of the site that all rows belong to, or an array with a label for each row.
        It may be None if the model covers a single site.
        """
        if site is None:
            if len(self.parts) != 1:
                raise InputError(
                    f"site=None does not identify the rows' site; pass one of {list(self.parts)}, "
                    "or one label per row"
                )
            (site,) = self.parts
        if np.ndim(site) == 0:
            yield str(site), slice(None)
        else:
            yield from selections(site, n_rows).items()

    def transform(self, X: Any, site: Any = None) -> Array:
        """Return the scores, first shared and then local; components that a site lacks get zeros."""
        scores = np.zeros((X.shape[0], self.n_scores))
        for name, chosen in self.by_site(site, len(scores)):
            own = self.of_site(name).transform(X[chosen])
            scores[chosen, : own.shape[1]] = own
        return scores

    def inverse_transform(self, scores: Array, site: Any = None) -> Array:
        """Return the rows with these scores and nothing outside their sites' components."""
        rows = np.empty((len(scores), self.components.shape[1]))
        for name, chosen in self.by_site(site, len(rows)):
            model = self.of_site(name)
            rows[chosen] = model.inverse_transform(scores[chosen, : len(model.components)])
        return rows

    def split(self, X: Any, site: Any = None) -> Split:
        """Split centered rows into a shared part, a local part, and a remainder."""
        split = Split(*(np.empty(X.shape) for _ in Split._fields))
        for name, chosen in self.by_site(site, X.shape[0]):
            for whole, piece in zip(split, self._split(X[chosen], name), strict=True):
                whole[chosen] = piece
        return split

    def _split(self, X: Any, name: str) -> Split:
        model, k = self.of_site(name), len(self.components)
        scores = model.transform(X)
        directions = model.components * self.scale
        shared, local = scores[:, :k] @ directions[:k], scores[:, k:] @ directions[k:]
        centered = np.asarray(X.toarray() if is_sparse(X) else X) - model.mean
        return Split(shared, local, centered - shared - local)

    def _part(self, name: str) -> SitePart:
        """Return a site's part, or raise an error if the model does not cover the site."""
        if name in self.parts:
            return self.parts[name]
        if not self.parts:
            raise InputError(
                f"the local components of site {name!r} stayed at the site; load the file that the "
                "site keeps, fit with gather=True, or call add_site with its rows"
            )
        raise InputError(
            f"the model has no local components for site {name!r}, only for {list(self.parts)}; call "
            "add_site with the site's rows"
        )

    def error(self, X: Any, name: str) -> float:
        """Return the mean squared length of the rows' remainders, in the model's units."""
        remainders = self.split(X, name).left / self.scale
        squares = np.einsum("ij,ij->", remainders, remainders)
        return float(squares / max(1, len(remainders)))

    def with_site(self, name: str, rows: Rows, n_local: int) -> PersonalizedModel:
        """Return the model with one more site, whose local components come from its own rows.

        The columns of the rows must be in the order of the model's features.
        """
        n, sums = column_sums(rows)
        if not np.isfinite(sums).all():
            refuse_non_finite(rows)
        if n < 1:
            raise InputError(f"site {name!r} has no rows; local components require at least 1 row")
        mean = sums / n if self.mean is None else self.mean
        standardized = StandardizedRows(rows, Frame(mean, self.scale)).without_constant_columns()
        energy = standardized.energy()
        U = self.components.T
        values, V = leading_directions(standardized, n_local, energy, taken=U)
        along = np.einsum("ij,ij->j", U, standardized.gram_times(np.ascontiguousarray(U)))
        part = SitePart.from_squares(n, mean, V, values, along, energy)
        return replace(self, parts={**self.parts, name: part})

    def save(self, path: str | os.PathLike[str], header: dict[str, Any]) -> None:
        """Write the model and its header to a file atomically."""
        arrays = {"components": self.components, "variance": self.variance, "scale": self.scale}
        if self.mean is not None:
            arrays["mean"] = self.mean
        sites = []
        for i, (name, part) in enumerate(self.parts.items()):
            arrays |= {f"{i}/{field}": getattr(part, field) for field in PART}
            sites.append({"name": name, "n": part.n})
        write_arrays(
            path,
            arrays,
            {"kind": PERSONALIZED_KIND, "estimator": "PersonalizedPCA", "sites": sites, **header},
        )


PERSONALIZED_KIND = "personalized"
PART = {"mean": "d", "components": "r d", "variance": "r", "shared": "k", "total": ""}


def is_personalized(path: str | os.PathLike[str]) -> bool:
    """Return whether a file contains a personalized model."""
    return read_arrays(path, "model")[1].get("kind") == PERSONALIZED_KIND


def load_personalized(path: str | os.PathLike[str]) -> tuple[PersonalizedModel, dict[str, Any]]:
    """Read a personalized model and its header from a file, and validate both."""
    arrays, header = read_arrays(path, "model")
    return personalized_in(path, arrays, header), header


def personalized_in(
    path: str | os.PathLike[str], arrays: Arrays, header: dict[str, Any]
) -> PersonalizedModel:
    """Return the personalized model of a file that has been read, after validating it."""
    if header.get("kind") != PERSONALIZED_KIND:
        raise FileError(
            f"{path} contains a {header.get('kind') or 'linear model'}, not a personalized model"
        )
    table = {"components": "float64 k d", "variance": "float64 k", "scale": "float64 d"}
    if "mean" in arrays:
        table["mean"] = "float64 d"
    sites = header.get("sites")
    if not isinstance(sites, list) or not all(
        isinstance(site, dict)
        and isinstance(site.get("name"), str)
        and isinstance(site.get("n"), int)
        and site["n"] >= 0
        for site in sites
    ):
        raise FileError(
            f"{path}: the header must list the sites' names and row counts; rewrite the file"
        )
    if len({site["name"] for site in sites}) < len(sites):
        raise FileError(f"{path} has two sites with the same name; rewrite the file")
    for i in range(len(sites)):
        table |= {
            f"{i}/{field}": f"float64 {shape.replace('r', f'{i}/r')}"
            for field, shape in PART.items()
        }
    arrays, lengths = check_file_arrays(path, arrays, table)
    check_features(path, header.get("features"), lengths["d"])
    if not (arrays["scale"] > 0).all():
        raise FileError(f"{path}: all values of the scale must be above 0; rewrite the file")
    parts = {
        site["name"]: SitePart(n=site["n"], **{field: arrays[f"{i}/{field}"] for field in PART})
        for i, site in enumerate(sites)
    }
    shared = {name: arrays[name] for name in ("components", "variance", "scale")}
    return PersonalizedModel(**shared, mean=arrays.get("mean"), parts=parts)
