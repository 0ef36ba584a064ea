"""Questions for personalized PCA: what a site keeps and what it sends.

    S_i = A_i'A_i / n_i,   A_i the site's rows about its own mean, the common mean, or zero

A site's weight ``w_i`` is 1 or its row count. The site adds ``w_i S_i`` to sums. It remembers the
frame of A_i, a `PersonalSite`, and a `Basis`. At first, the basis holds the site's leading directions.
At the end, it holds the site's local directions V_i outside U. V_i stays at the site unless the
coordinator is allowed to gather it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.errors import InputError
from fedpca.models.personalized import PersonalizedModel, SitePart
from fedpca.protocol.invariants import ROUNDING
from fedpca.protocol.question import question
from fedpca.rows.in_memory import refuse_non_finite
from fedpca.rows.leading import TOL, leading_directions
from fedpca.rows.standardized import Frame, column_sums, refuse_tiny
from fedpca.site.store import PERSONALIZED
from fedpca.solvers.common_features import own_order
from fedpca.solvers.personalized.local_ranks import LocalRanks
from fedpca.solvers.personalized.projections import Basis

if TYPE_CHECKING:
    from fedpca.site.site import Site


# what the header of a site's model file holds, besides the total variance
HEADER = ("features", "n_samples", "parameters")


@dataclass(frozen=True)
class PersonalSite:
    """A site's weight and rank in a personalized fit, which the site remembers."""

    weight: float  # w_i
    factor: float  # w_i / n_i
    n_local: int
    has_own_mean: bool


@dataclass(frozen=True)
class LocalPart:
    """Sums of squares of a site's rows along the shared directions and along its local directions."""

    along: Array  # (k,)
    along_local: Array  # (r,)


def misweighted(answer: Arrays, asked: Arrays) -> str | None:
    """Return what is wrong with a site's weight in an answer, or None if nothing is."""
    n = int(answer["n"])
    weight = n if asked["by_rows"] else n > 0
    is_possible = answer["n_sites"] == (n > 0) and answer["weight"] == weight
    return None if is_possible else f"has a weight that does not match {n} rows"


def exceeds_total(answer: Arrays, _: Arrays) -> str | None:
    """Return what is wrong if sums of squares exceed the site's total, else None."""
    parts = [part for part in ("shared", "along", "local", "along_local") if part in answer]
    explained = sum(float(answer[part].sum()) for part in parts)
    is_possible = explained <= (1 + ROUNDING) * answer["total"]
    return None if is_possible else "explains more than the site's sum of squares"


@question(
    doing="finding each site's leading directions",
    asks={
        "features": "uint8 bytes",
        "mean": "float64 d, fixed",
        "scale": "float64 d, fixed, positive",
        "own_mean": "int64, flag",
        "by_rows": "int64, flag",
        "ranks": "uint8 letters",
        "n_shared": "int64, nonnegative",
        "n_products": "int64, nonnegative",
        "prepares_start": "int64, flag",
    },
    answers={
        "n": "int64, count, rows",
        "n_sites": "int64, count",
        "weight": "float64, squares, weight",
        "energy": "float64, squares, energy",
        "columns": "int64, count",
    },
    remembers=True,
    check=misweighted,
)
def begin_personalized(
    site: Site,
    features: Array,
    mean: Array,
    scale: Array,
    own_mean: Array,
    by_rows: Array,
    ranks: Array,
    n_shared: Array,
    n_products: Array,
    prepares_start: Array,
) -> dict[str, Any]:
    """Store the frame and weight, find leading directions if a start needs them, and send totals."""
    order = own_order(site, features)
    n, sums = column_sums(site.rows)
    if not np.isfinite(sums).all():
        refuse_non_finite(site.rows)
    refuse_tiny(sums / max(1, n))
    if own_mean:
        # sums are in the order of the site's own columns, and the frame is in the common order
        mean = sums[slice(None) if order is None else order] / max(1, n)
    weight = float(n if by_rows else n > 0)
    local_ranks = LocalRanks.from_bytes(ranks)
    local_ranks.check_features(int(n_shared), site.rows.n_features)
    n_local = local_ranks.at(site.name)
    factor = weight / max(1, n)
    # in this order, because `site.standardized` follows from the frame that the site remembers
    site.remember(Frame(mean, scale, order, sums, int(n_products)))
    frame = site.standardized.without_constant_columns().frame
    site.remember(frame)
    site.remember(PersonalSite(weight, factor, n_local, bool(own_mean)))
    energy = site.standardized.energy()
    site.remember(replace(frame, energy=energy))
    columns = 0
    if prepares_start:
        columns = int(n_shared) + n_local
        values, W = leading_directions(site.standardized, columns, energy)
        site.remember(Basis(W, weight, factor * values))
    return {
        "n": np.int64(n),
        "n_sites": np.int64(n > 0),
        "weight": weight,
        "energy": factor * energy,
        "columns": np.int64(columns),
    }


def to_bytes(plain: Any) -> Array:
    """Encode plain values as a message field."""
    return np.frombuffer(json.dumps(plain).encode(), np.uint8)


def own_header(header: Array) -> dict[str, Any]:
    """Return the header of a site's model file; refuse anything else that a message may hold."""
    try:
        plain = json.loads(header.tobytes())
        kinds = {name: type(value) for name, value in plain.items()}
    except (ValueError, AttributeError, RecursionError):
        kinds = {}
    named = kinds.pop("features", None) in (list, type(None))
    if not named or kinds != {"n_samples": int, "parameters": dict}:
        raise InputError(f"the header must hold {', '.join(HEADER)}, and nothing else")
    return {name: plain[name] for name in HEADER}


def energy_of(site: Site) -> float:
    """Return the sum of squares of A_i, or zero if A_i contains only rounding errors."""
    energy = site.recall(Frame).energy
    assert energy is not None
    return energy


def gram_times(site: Site, Z: Array) -> Array:
    """Return A_i'A_i Z, or zero if A_i contains only rounding errors."""
    product = site.standardized.gram_times(Z)
    return np.asarray(product if energy_of(site) else 0 * product)


def local_directions(site: Site, U: Array, tol: float = TOL) -> tuple[Array, Array]:
    """Find the site's local directions outside U; return the squares along them and the directions."""
    k = site.recall(PersonalSite).n_local
    return leading_directions(site.standardized, k, energy_of(site), U, tol=tol)


@question(
    doing="finding each site's local components",
    asks={
        "U": "float64 d k, orthonormal",
        "variance": "float64 k, nonnegative",
        "total": "float64, nonnegative",
        "header": "uint8 bytes",
    },
    answers={"local": "float64, squares, explained"},
    remembers=True,
)
def finish_personalized(
    site: Site, U: Array, variance: Array, total: Array, header: Array
) -> dict[str, Any]:
    """Keep the site's local directions outside the final U and send the variance along them.

    If the site has a folder, it writes its model there: the shared directions and its local part.
    ``total`` is the variance of all features, averaged over sites.
    """
    personal, frame = site.recall(PersonalSite), site.recall(Frame)
    values, V = local_directions(site, U)
    along = np.einsum("ij,ij->j", U, gram_times(site, U))
    site.remember(LocalPart(along, values))
    # with a weight of 1, since the mean of projections counts every site alike
    site.remember(Basis(V, 1.0, values))
    path = site.file(PERSONALIZED)
    if path is not None:
        part = SitePart.from_squares(
            site.rows.n_rows, frame.mean, V, values, along, energy_of(site)
        )
        model = PersonalizedModel(
            np.ascontiguousarray(U.T),
            variance,
            frame.scale,
            None if personal.has_own_mean else frame.mean,
            {site.name: part},
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        more: dict[str, Any] = {"total_variance": float(total)}
        if site.log_normalized:
            more["log_normalized"] = site.log_normalized
        model.save(path, own_header(header) | more)
    return {"local": personal.factor * values.sum()}


@question(
    verb="gather",
    doing="measuring the variance explained at each site",
    answers={
        "shared": "float64, squares",
        "local": "float64, squares",
        "total": "float64, squares",
    },
    check=exceeds_total,
)
def site_shares(site: Site) -> dict[str, Any]:
    """Send a site's sums of squares along shared directions, along local directions, and in total."""
    part = site.recall(LocalPart)
    return {
        "shared": part.along.sum(),
        "local": part.along_local.sum(),
        "total": np.float64(energy_of(site)),
    }


@question(
    verb="gather",
    doing="gathering local components",
    answers={
        "n": "int64, count",
        "mean": "float64 d",
        "V": "float64 d r, orthonormal",
        "along": "float64 k, squares",
        "along_local": "float64 r, squares",
        "total": "float64, squares",
    },
    at_most={"r": "d", "k": "d"},
    check=exceeds_total,
)
def whole_local_part(site: Site) -> dict[str, Any]:
    """Send the site's local part: its mean, its directions, and the squares along all directions."""
    part = site.recall(LocalPart)
    return {
        "n": np.int64(site.rows.n_rows),
        "total": np.float64(energy_of(site)),
        "V": site.recall(Basis).B,
        "mean": site.recall(Frame).mean,
        "along": part.along,
        "along_local": part.along_local,
    }
