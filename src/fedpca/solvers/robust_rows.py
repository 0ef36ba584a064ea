"""A site's rows for robust PCA: whole, about the common centre, with the values that are there.

    A = (X - 1 m') / s,   present where X is not NaN

The rows of one site are in memory while it answers, and of no other. What it keeps between questions
are the scores V_i of its rows, n_i x r, and in the end the sparse part S_i.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpca.errors import InputError
from fedpca.framed import refuse_overflow
from fedpca.message import Array
from fedpca.moments import own_order
from fedpca.question import question
from fedpca.rows import is_sparse


def whole_rows(site: Any) -> Array:
    """The rows of a site as they are, ``(n, d)``, in the common order of features.

    Not those without any value, which tell nothing of components, centre or variances.
    """
    blocks = [b.toarray() if is_sparse(b) else np.asarray(b) for b in site.rows.blocks()]
    rows = np.vstack(blocks) if blocks else np.empty((0, site.rows.n_features))
    rows = rows[~np.isnan(rows).all(axis=1)]
    order = site.memory.get("order")
    return np.asarray(rows if order is None else rows[:, order], np.float64)


def values_about(rows: Array, centre: Array, scale: Array | float = 1.0) -> tuple[Array, Array]:
    """A, with zeros for values that are missing, and where values are present."""
    present = ~np.isnan(rows)
    return np.where(present, (rows - centre) / scale, 0.0), present


def rows_about(
    site: Any, centre: Array, features: Array | slice = slice(None)
) -> tuple[Array, Array]:
    """A site's rows about a centre as they are, or some features of them, and what is present."""
    site.remembered("counted")
    return values_about(whole_rows(site)[:, features], centre)


def framed_rows(site: Any, centre: Array | float = 0.0) -> tuple[Array, Array]:
    """A about the centre and in the scale of the run, or about a centre in that frame.

    Of features that do not vary nothing counts as present: they are zero, and would be taken for
    entries that fit.
    """
    mean, scale, varies = site.remembered("mean", "scale", "varies")
    A, present = values_about(whole_rows(site), mean + centre * scale, scale)
    return np.where(varies, A, 0.0), present & (varies > 0)


@question(
    asks={"features": "uint8 bytes"},
    answers={"n": "int64", "present": "int64 d", "total": "float64 d"},
    remembers=True,
)
def count_present(site: Any, features: Array) -> dict[str, Any]:
    """The number of rows that have a value, and of each feature how many there are and their sum."""
    order = own_order(site, features)
    if order is not None:
        site.memory["order"] = np.array(order)
    rows = whole_rows(site)
    site.memory["counted"] = np.int64(len(rows))
    if np.isinf(rows).any():
        raise InputError("infinite values; missing ones are NaN")
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.nansum(rows, axis=0)
    refuse_overflow(total)
    return {"n": np.int64(len(rows)), "present": (~np.isnan(rows)).sum(axis=0), "total": total}


@question(asks={"about": "float64 d"}, answers={"squares": "float64 d"})
def squares_present(site: Any, about: Array) -> dict[str, Array]:
    """The sum of squares about a point of each feature's values."""
    away, _ = rows_about(site, about)
    with np.errstate(over="ignore"):
        squares = np.einsum("ij,ij->j", away, away)
    refuse_overflow(squares)
    return {"squares": squares}
