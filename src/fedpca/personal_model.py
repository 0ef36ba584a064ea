"""A fitted personalised model: what all sites share, what each has of its own, and its file.

For a row x of site i, ``a = (x - m_i) / s`` is the sum of three parts, orthogonal to each other:

    a = U U'a + V_i V_i'a + left

A coordinator's file may hold no site's own part, and a site's file holds one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fedpca.errors import FileError, InputError
from fedpca.framed import FramedRows, column_sums, energy_beyond_rounding
from fedpca.leading import leading_directions
from fedpca.linalg import fix_signs
from fedpca.message import Array
from fedpca.model import Model
from fedpca.rows import Rows, is_sparse, refuse_non_finite
from fedpca.tensorfile import check_arrays, check_features, read_arrays, write_arrays


class Split(NamedTuple):
    """Rows about their mean as the sum of three parts, each ``(n, d)``."""

    shared: Array
    local: Array
    left: Array


@dataclass(frozen=True)
class SitePart:
    """What one site has of its own."""

    n: int  # rows
    mean: Array  # (d,), about which its rows are taken
    components: Array  # (r, d)
    variance: Array  # (r,), along these
    shared: Array  # (k,), variance along the shared components
    total: Array  # (), variance of all features

    @property
    def shares(self) -> dict[str, float]:
        """The share of the site's variance that is shared, local, and neither."""
        return variance_shares(
            float(self.shared.sum()), float(self.variance.sum()), float(self.total)
        )


def variance_shares(shared: float, local: float, total: float) -> dict[str, float]:
    """Parts of a total by name; of no variance there are none."""
    if total <= 0:
        return dict.fromkeys(("shared", "local", "left"), float("nan"))
    left = max(0.0, total - shared - local)
    return {"shared": shared / total, "local": local / total, "left": left / total}


@dataclass(frozen=True)
class PersonalModel:
    """The shared components, and the parts of those sites that are known here."""

    components: Array  # (k, d)
    variance: Array  # (k,), along these, on average over sites
    scale: Array  # (d,)
    mean: Array | None  # (d,), common to all sites; None where each has its own
    parts: dict[str, SitePart]

    @cached_property
    def n_local(self) -> int:
        """The most components that a site has of its own."""
        return max((len(part.components) for part in self.parts.values()), default=0)

    def of_site(self, name: str) -> Model:
        """Shared and local components of one site as a model of its rows."""
        part = self.parts[name]
        variance = np.concatenate([part.shared, part.variance])
        d, k = self.components.shape[1], len(variance)
        left = max(0.0, float(part.total) - float(variance.sum()))
        n_left = max(min(part.n, d) - k, 0)
        return Model(
            components=np.vstack([self.components, part.components]),
            explained_variance=variance,
            singular_values=np.sqrt(variance * part.n),
            mean=part.mean,
            scale=self.scale,
            noise_variance=np.array(left / n_left if n_left else 0.0),
            total_variance=part.total,
        )

    def transform(self, X: Any, name: str) -> Array:
        """Shared, then local scores of a site's rows, with zeros for components that it lacks."""
        scores = self.of_site(name).transform(X)
        missing = len(self.components) + self.n_local - scores.shape[1]
        return np.pad(scores, ((0, 0), (0, missing)))

    def inverse_transform(self, scores: Array, name: str) -> Array:
        """The rows that have these scores and nothing else."""
        model = self.of_site(name)
        return model.inverse_transform(scores[:, : len(model.components)])

    def split(self, X: Any, name: str) -> Split:
        """A site's rows about their mean, as the sum of the shared, the local, and what is left."""
        model, k = self.of_site(name), len(self.components)
        scores = model.transform(X)
        directions = model.components * self.scale
        shared, local = scores[:, :k] @ directions[:k], scores[:, k:] @ directions[k:]
        centred = np.asarray(X.toarray() if is_sparse(X) else X) - model.mean
        return Split(shared, local, centred - shared - local)

    def error(self, X: Any, name: str) -> float:
        """The mean over rows of the squares that are left, in the units of the model."""
        left = self.split(X, name).left / self.scale
        return float(np.einsum("ij,ij->", left, left) / max(1, len(left)))

    def with_site(
        self, name: str, rows: Rows, n_local: int, order: list[int] | None = None
    ) -> PersonalModel:
        """The model with one more site, whose own components come from its own rows.

        ``order`` says where the model's features stand among their columns, unless they stand alike.
        """
        n, sums = column_sums(rows)
        if not np.isfinite(sums).all():
            refuse_non_finite(rows)
        if n < 1:
            raise InputError(f"site {name!r} has no rows to find local components in")
        own = sums / n if order is None else sums[order] / n
        mean = own if self.mean is None else self.mean
        where = None if order is None else np.array(order)
        framed = FramedRows(rows, mean=mean, scale=self.scale, order=where)
        energy = energy_beyond_rounding(framed, n, mean / self.scale)
        U = self.components.T
        values, V = leading_directions(framed, n_local, energy, taken=U)
        along = np.einsum("ij,ij->j", U, framed.gram_times(np.ascontiguousarray(U)))
        return replace(
            self, parts={**self.parts, name: site_part(n, mean, V, values, along, energy)}
        )

    def save(self, path: str | os.PathLike[str], header: dict[str, Any]) -> None:
        """Write the model and what ``header`` says about it, whole or not at all."""
        arrays = {"components": self.components, "variance": self.variance, "scale": self.scale}
        if self.mean is not None:
            arrays["mean"] = self.mean
        sites = []
        for i, (name, part) in enumerate(self.parts.items()):
            arrays |= {f"{i}/{field}": getattr(part, field) for field in PART}
            sites.append({"name": name, "n": part.n})
        write_arrays(path, arrays, {"kind": KIND, "sites": sites, **header})


KIND = "personalized"
PART = {"mean": ("d",), "components": ("r", "d"), "variance": ("r",), "shared": ("k",), "total": ()}


def site_part(
    n: int, mean: Array, V: Array, values: Array, along: Array, energy: float
) -> SitePart:
    """A site's part from the squares of its n rows: along V, along the shared ones, and in all."""
    freedom = max(1, n)
    return SitePart(
        n=n,
        mean=mean,
        components=np.ascontiguousarray(fix_signs(V).T),
        variance=values / freedom,
        shared=along / freedom,
        total=np.array(energy / freedom),
    )


def is_personalized(path: str | os.PathLike[str]) -> bool:
    """Whether a file holds a model of this kind."""
    return read_arrays(path, "model")[1].get("kind") == KIND


def load_personal(path: str | os.PathLike[str]) -> tuple[PersonalModel, dict[str, Any]]:
    """The model in a file and its header, after every check."""
    arrays, header = read_arrays(path, "model")
    if header.get("kind") != KIND:
        raise FileError(f"{path} is no personalized model but a {header.get('kind') or 'model'}")
    due: dict[str, tuple[str | int, ...]] = {
        "components": ("k", "d"),
        "variance": ("k",),
        "scale": ("d",),
    }
    if "mean" in arrays:
        due["mean"] = ("d",)
    sites = header.get("sites")
    if not isinstance(sites, list) or not all(
        isinstance(site, dict)
        and isinstance(site.get("name"), str)
        and isinstance(site.get("n"), int)
        and site["n"] >= 0
        for site in sites
    ):
        raise FileError(f"{path} has a header without the names and rows of its sites")
    if len({site["name"] for site in sites}) < len(sites):
        raise FileError(f"{path} has two sites of one name")
    for i in range(len(sites)):
        due |= {
            f"{i}/{field}": tuple(f"{i}/r" if length == "r" else length for length in shape)
            for field, shape in PART.items()
        }
    lengths = check_arrays(path, "model", arrays, due)
    check_features(path, header.get("features"), lengths["d"])
    if not (arrays["scale"] > 0).all():
        raise FileError(f"{path}: scale has values that are not above 0")
    parts = {
        site["name"]: SitePart(n=site["n"], **{field: arrays[f"{i}/{field}"] for field in PART})
        for i, site in enumerate(sites)
    }
    shared = {name: arrays[name] for name in ("components", "variance", "scale")}
    return PersonalModel(**shared, mean=arrays.get("mean"), parts=parts), header
