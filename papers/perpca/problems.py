"""Generate the data of the personalized PCA paper, and watch fits to them round by round.

    y = U phi + V_i phi_i + noise,   [U V_i] orthonormal, every score normal with mean zero.

Shared and local directions are uniformly random; those of a site are orthogonal to the shared ones. As
in the paper, rows are not centered. If all sites have the same weight, a fit sees only the covariance
of a site's rows, so many rows may be replaced by d rows with the same covariance.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from fedpca import Federation, PersonalizedPCA
from fedpca.arrays import Arrays
from fedpca.protocol.question import Question

Array = np.ndarray
POWER, STIEFEL, POLAR = "power", "stiefel", "polar"
FEWER = 5  # half of the paper's sites have a fraction of the rows: a fifth, here


@dataclass(frozen=True)
class Truth:
    """The directions that rows were made from, and the rows."""

    U: Array  # (d, r1)
    V: dict[str, Array]  # (d, r2) by site
    sites: dict[str, Array]  # (n_i, d) by site

    @property
    def ranks(self) -> tuple[int, int]:
        """Return r1 and r2."""
        return self.U.shape[1], next(iter(self.V.values())).shape[1]


def orthonormal_beside(U: Array, k: int, rng: np.random.Generator) -> Array:
    """Draw k orthonormal columns that are orthogonal to U's, ``(d, k)``."""
    return np.linalg.qr(np.hstack([U, rng.standard_normal((len(U), k))]))[0][:, U.shape[1] :]


def some_directions(
    d: int, r1: int, r2: int, n_sites: int, rng: np.random.Generator, n_groups: int | None = None
) -> tuple[Array, dict[str, Array]]:
    """Draw U and V_i; if there are groups, all sites of a group have the same V_i."""
    U = np.linalg.qr(rng.standard_normal((d, r1)))[0]
    V = [orthonormal_beside(U, r2, rng) for _ in range(n_groups or n_sites)]
    return U, {f"site-{i}": V[i % len(V)] for i in range(n_sites)}


def draw(
    U: Array,
    V: Mapping[str, Array],
    n_rows: Sequence[int],
    rng: np.random.Generator,
    *,
    ratio: float = 1.0,
    noise: float = 0.0,
    condensed: bool = False,
) -> Truth:
    """Draw rows; local scores have ``ratio`` times the standard deviation of shared ones.

    ``noise`` is a variance. With ``condensed``, a site has at most d rows, with the covariance of all
    that were drawn.
    """
    d, sites = len(U), {}
    for (name, own), n in zip(V.items(), n_rows, strict=True):
        rows = rng.standard_normal((n, U.shape[1])) @ U.T
        rows += ratio * rng.standard_normal((n, own.shape[1])) @ own.T
        if noise:
            rows += np.sqrt(noise) * rng.standard_normal((n, d))
        if condensed and n > d:
            rows = np.sqrt(d / n) * np.linalg.qr(rows, mode="r")
        sites[name] = rows
    return Truth(U, dict(V), sites)


def uneven(
    seed: int, n: int = 300, d: int = 15, n_sites: int = 100, *, condensed: bool = False
) -> Truth:
    """Draw the data of section 7.1.2: 2 shared and 10 local directions, the latter ten times as wide.

    The noise has the variance 0.5.
    """
    rng = np.random.default_rng([seed, n, d, n_sites])
    U, V = some_directions(d, 2, 10, n_sites, rng)
    return draw(U, V, uneven_rows(n, n_sites), rng, ratio=10.0, noise=0.5, condensed=condensed)


def uneven_rows(n: int, n_sites: int) -> list[int]:
    """Return each site's number of rows: n for the first half, and a fifth of n for the others."""
    return [n if i < n_sites // 2 else n // FEWER for i in range(n_sites)]


def projection_error(A: Array, B: Array) -> float:
    """Return ``||P_A - P_B||_F^2`` for orthonormal columns."""
    return float(A.shape[1] + B.shape[1] - 2 * np.sum((A.T @ B) ** 2))


def shared_error(truth: Truth, shared: Array) -> float:
    """Return ``||P_U - P_U0||^2`` of shared components, ``(r1, d)``."""
    return projection_error(shared.T, truth.U)


def local_error(truth: Truth, local: Mapping[str, Array]) -> float:
    """Return the mean over sites of ``||P_Vi - P_Vi0||^2``, of local components ``(r2, d)``."""
    return float(np.mean([projection_error(local[name].T, own) for name, own in truth.V.items()]))


class Reached(Exception):
    """The objective is as close to the reference as requested."""


class Watched(Federation):
    """A federation that notes the objective at the point of each round.

    ``values`` has one entry for each round, the start first; ``accepted`` has those of rounds whose
    point the solver kept. The fit is stopped once a value is at least ``enough``.
    """

    def watch(self, n_shared: int, enough: float = np.inf) -> None:
        """Begin to note the objective of this many shared directions."""
        self._n_shared = n_shared
        self.values: list[float] = []
        self.accepted: list[float] = []
        self._enough = enough

    def sum(self, question: Question, **arrays: Any) -> Arrays:
        answer = super().sum(question, **arrays)
        # a tie at the end is broken by one more question, about more directions
        if "along" in answer and arrays["U"].shape[-1] == self._n_shared:
            # the solver without a step can ask about several points at once; here, about one
            total = np.trace(answer["along"], axis1=-2, axis2=-1) + answer["local"]
            self.values.append(float(np.max(total)) / len(self.engine.names))
            self._asked = arrays["U"].reshape(arrays["U"].shape[-2:])
            if self.values[-1] >= self._enough:
                raise Reached
        return answer

    def report(self, residual: float, subspace: Callable[[], Array]) -> None:
        super().report(residual, subspace)
        if np.array_equal(subspace(), self._asked):
            self.accepted.append(self.values[-1])


def say(text: str) -> None:
    """Print a remark below a table, broken into lines."""
    print(textwrap.fill(text, 96))


def fit(X: Any, r1: int, r2: int, **options: Any) -> PersonalizedPCA:
    """Fit the estimator about zero, without warnings about too few rounds or too similar sites."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", "misalignment_", UserWarning)
        return PersonalizedPCA(
            r1, r2, center="none", **{"gather": True, "n_init": 1, **options}
        ).fit(X)


def watch(
    truth: Truth, *, enough: float = np.inf, ranks: tuple[int, int] | None = None, **options: Any
) -> tuple[Watched, PersonalizedPCA | None]:
    """Fit and watch, with the same weight for all sites; no model is returned if the fit is stopped."""
    fed = Watched.local(truth.sites)
    n_shared, n_local = ranks or truth.ranks
    fed.watch(n_shared, enough)
    model = None
    with suppress(Reached):
        model = fit(fed, n_shared, n_local, **options)
    return fed, model
