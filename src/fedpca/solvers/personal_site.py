"""What a site keeps in personalised PCA, and what it tells: its own directions stay with it.

    S_i = A_i'A_i / n_i,   A_i the site's rows about its own mean, the common one, or zero.

A site counts by ``w_i``, which is 1 or its number of rows; the sums that it takes part in are of
``w_i S_i``. In its memory lie the frame of A_i, ``factor = w_i / n_i``, ``n_local``, and under `BASIS`
its leading directions, in the end those outside U: its own ones, V_i.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from fedpca.errors import InputError
from fedpca.framed import column_sums, energy_beyond_rounding
from fedpca.leading import TOL, leading_directions
from fedpca.message import Array
from fedpca.moments import own_order
from fedpca.personal_model import PersonalModel, site_part
from fedpca.question import question
from fedpca.rows import refuse_non_finite
from fedpca.solvers.bases import BASIS, LENGTHS

# what sites lay out for the start: nothing, their leading directions, or these by their variances
NOTHING, DIRECTIONS, COVARIANCE = range(3)


@question(
    asks={
        "features": "uint8 bytes",
        "mean": "float64 d",
        "scale": "float64 d",
        "own_mean": "int64",
        "by_rows": "int64",
        "ranks": "uint8 letters",
        "n_shared": "int64",
        "n_products": "int64",
        "lays_out": "int64",
    },
    answers={
        "n": "int64",
        "n_sites": "int64",
        "weight": "float64",
        "energy": "float64",
        "columns": "int64",
    },
    remembers=True,
)
def enter_frame(
    site: Any,
    features: Array,
    mean: Array,
    scale: Array,
    own_mean: Array,
    by_rows: Array,
    ranks: Array,
    n_shared: Array,
    n_products: Array,
    lays_out: Array,
) -> dict[str, Any]:
    """Settle on the frame and the weight, and lay out what the start needs; their totals go out."""
    order = own_order(site, features)
    n, sums = column_sums(site.rows)
    if not np.isfinite(sums).all():
        refuse_non_finite(site.rows)
    if order is not None:
        site.memory["order"] = np.array(order)
    if own_mean:
        mean = sums[slice(None) if order is None else order] / max(1, n)
    weight = float(n if by_rows else n > 0)
    site.memory |= {
        "mean": mean,
        "scale": scale,
        "sums": sums,
        "n_products": n_products,
        "factor": np.float64(weight / max(1, n)),
        "weight": np.float64(weight),
        "n_local": np.int64(own_rank(ranks, site.name)),
        "own_mean": own_mean,
    }
    site.memory["energy"] = np.float64(energy_beyond_rounding(site.framed, n, mean / scale))
    columns = 0
    if lays_out != NOTHING:
        columns = int(n_shared) + int(site.memory["n_local"])
        values, W = leading_directions(site.framed, columns, float(site.memory["energy"]))
        lengths = values * site.memory["factor"] if lays_out == COVARIANCE else weight + 0 * values
        site.memory |= {BASIS: W, LENGTHS: lengths}
    return {
        "n": np.int64(n),
        "n_sites": np.int64(n > 0),
        "weight": weight,
        "energy": site.memory["factor"] * site.memory["energy"],
        "columns": np.int64(columns),
    }


def to_bytes(plain: Any) -> Array:
    """Plain values as a field of a message."""
    return np.frombuffer(json.dumps(plain).encode(), np.uint8)


def own_rank(ranks: Array, name: str) -> int:
    """The number that is meant for a site."""
    found = json.loads(ranks.tobytes())
    if isinstance(found, dict):
        if name not in found:
            raise InputError(f"n_local has no number for it; give one for site {name!r}")
        found = found[name]
    return int(found)


def gram_times(site: Any, Z: Array) -> Array:
    """A_i'A_i Z; nothing, where rounding is all that A_i holds."""
    product = site.framed.gram_times(Z)
    return np.asarray(product if site.memory["energy"] else 0 * product)


def local_directions(site: Any, U: Array, tol: float = TOL) -> tuple[Array, Array]:
    """The squares along the site's own directions outside U, and these."""
    rows, memory = site.framed, site.memory
    k, energy = int(memory["n_local"]), float(memory["energy"])
    return leading_directions(rows, k, energy, U, tol=tol)


@question(
    asks={"U": "float64 d k", "variance": "float64 k", "header": "uint8 bytes"},
    answers={"local": "float64"},
    remembers=True,
)
def keep_local(site: Any, U: Array, variance: Array, header: Array) -> dict[str, Any]:
    """Keep the site's own directions beside the final U; how much they carry goes out.

    Where the site has a folder of its own, it writes its model there: what is shared, and its part.
    """
    values, V = local_directions(site, U)
    memory = site.memory
    along = np.einsum("ij,ij->j", U, gram_times(site, U))
    memory |= {"along": along, "along_local": values, BASIS: V, LENGTHS: np.ones(len(values))}
    path = site.file(".fedpca")
    if path is not None:
        part = site_part(
            site.rows.n_rows, memory["mean"], V, values, along, float(memory["energy"])
        )
        model = PersonalModel(
            np.ascontiguousarray(U.T),
            variance,
            memory["scale"],
            None if memory["own_mean"] else memory["mean"],
            {site.name: part},
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        model.save(path, json.loads(header.tobytes()))
    return {"local": memory["factor"] * values.sum()}


@question(answers={"shared": "float64", "local": "float64", "total": "float64"})
def site_shares(site: Any) -> dict[str, Any]:
    """How much of a site's squares shared and local directions carry, and all of them."""
    memory = site.memory
    return {
        "shared": memory["along"].sum(),
        "local": memory["along_local"].sum(),
        "total": memory["energy"],
    }


@question(
    answers={
        "n": "int64",
        "mean": "float64 d",
        "V": "float64 d r",
        "along": "float64 k",
        "along_local": "float64 r",
        "total": "float64",
    }
)
def whole_local_part(site: Any) -> dict[str, Any]:
    """All that the site has of its own: directions, the squares along them, and the mean."""
    memory = site.memory
    return {
        "n": np.int64(site.rows.n_rows),
        "total": memory["energy"],
        "V": memory[BASIS],
        **{name: memory[name] for name in ("mean", "along", "along_local")},
    }
