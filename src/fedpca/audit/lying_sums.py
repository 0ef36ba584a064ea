"""Attack sites with the questions of `FederatedPCA`, asked honestly, out of turn, or with odd numbers.

An honest run tells n, the sums s, and ``C = sum (x - m)(x - m)'``, so that

    X'X = C + s m' + m s' - n m m'.

These are sums over all rows. An attack gets at a single row if it finds a sum that stands on one row: a
flag that only one row has, two sums that differ by one row, or a rounding that one row alone survives.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedpca.arrays import Array
from fedpca.audit.liar import Found, Liar, Refused, made_up_key
from fedpca.linalg.dense import unpack_triangle
from fedpca.linalg.parallel_analysis import MANY_DRAWS
from fedpca.rows.gaps import MISSING
from fedpca.rows.in_memory import rows_per_block
from fedpca.solvers.exact.local_power import MAX_LOCAL_STEPS
from fedpca.solvers.exact.tsqr import unpack_factor
from fedpca.solvers.standardize import names_to_bytes

N_INVENTED = 1000  # sites that do not exist
MANY_STEPS = 4 * MAX_LOCAL_STEPS  # more than any plan allows, and still an answer within seconds
ENDLESS = 1 << 62
MANY_COLUMNS = 20_000  # in a block for a handful of features
STRETCH = 1e8  # by which a direction is longer than it should be
IS_ONE = 1e-9  # a sum within this of 1 stands on a single flag
MIN_COLUMNS_TO_ROUND = 7  # two runs leave out three columns each, and share one
GRID_BITS = 52
NOTCH = 2.0**-14  # a small entry of a block, which keeps it orthonormal within the tolerance
DEPTH = 60  # halvings of an interval of thresholds


class Moments(NamedTuple):
    """What one honest run tells about the rows that the liar hears."""

    n: int
    sums: Array  # (d,)
    products: Array  # (d, d), X'X

    @property
    def found(self) -> Found:
        """Return the moments as facts."""
        facts = {"row count": self.n, "mean": self.sums / self.n, "X'X": self.products}
        return Found(facts=facts)


def honest_run(liar: Liar) -> Found:
    """Ask what an honest run asks, and look at the answers."""
    return _moments(liar).found


def claimed_sites(liar: Liar) -> Found:
    """Claim in every message that the sum covers a thousand sites."""
    return _moments(liar, n_sites=N_INVENTED).found


def invented_sites(liar: Liar) -> Found:
    """Declare a plan with a thousand sites, of which only those that the liar hears exist."""
    invented = [f"invented-{i}" for i in range(N_INVENTED)]
    liar.roster = {name: made_up_key(name) for name in (*liar.names, *invented)}
    liar.begin("FederatedPCA", solver="covariance", n_components=1)
    return _moments(liar).found


def colluding_sites(liar: Liar) -> Found:
    """Subtract the terms of sites that collude from honest totals; one site is left."""
    total = _moments(liar)
    others = np.vstack(list(liar.colluding.values()))
    rest = Moments(
        total.n - len(others), total.sums - others.sum(axis=0), total.products - others.T @ others
    )
    return rest.found


def gathered_as_sum(liar: Liar) -> Found:
    """Ask for a triangular factor, which is meant to be gathered, as if it were summed."""
    moments = _begin(liar)
    asked: dict[str, Any] = {"mean": np.zeros(moments.d), "scale": np.ones(moments.d)}
    try:
        answer = liar.ask("triangular_factor", verb="sum", **asked)
    except Refused:
        answer = liar.ask("triangular_factor", **asked)
    R = unpack_factor(answer["entries"], int(answer["rank"]), moments.d)
    return Found(facts={"X'X": R.T @ R})


def rare_flag(liar: Liar) -> Found:
    """Find columns of zeros with a single one in an honest X'X; their products are that row."""
    moments = _moments(liar)
    squares = moments.products.diagonal()
    is_single = (np.abs(moments.sums - 1) < IS_ONE) & (np.abs(squares - 1) < IS_ONE)
    flagged = np.flatnonzero(is_single)
    return Found(moments.products[:, flagged].T, facts=moments.found.facts)


def one_row_less(liar: Liar) -> Found:
    """Subtract the sums of two honest runs between which one row has gone."""
    before = _moments(liar)
    liar.meanwhile()
    liar.again()
    after = _moments(liar)
    is_one = before.n - after.n == 1
    return Found((before.sums - after.sums)[None] if is_one else None, facts=after.found.facts)


def with_and_without_gaps(liar: Liar) -> Found:
    """Subtract honest sums without the rows that have gaps from honest sums with them."""
    sums = {}
    for missing in ("mean", "drop"):
        liar.begin("FederatedPCA", solver="covariance", n_components=1, missing=missing)
        liar.ask_one("column_names")
        sums[missing] = liar.ask(
            "count_and_sum",
            features=names_to_bytes(None),
            missing=np.int64(MISSING.index(missing)),
        )
    is_one = sums["mean"]["n"] - sums["drop"]["n"] == 1
    return Found((sums["mean"]["total"] - sums["drop"]["total"])[None] if is_one else None)


def out_of_turn(liar: Liar) -> Found:
    """Declare a solver that multiplies blocks, and ask for the whole covariance."""
    moments = _begin(liar)
    d = moments.d
    liar.ask("standardize", mean=np.zeros(d), scale=np.ones(d), n_products=np.int64(1))
    return Found(facts={"X'X": _triangle(liar, d)})


def asked_again(liar: Liar) -> Found:
    """Ask the same question twice in a run."""
    _moments(liar)
    _begin(liar)
    return Found(facts={"an answer too many": None})


def replayed_plan(liar: Liar) -> Found:
    """Declare the plan of a run that was admitted before in another run."""
    plan = liar.plan
    _begin(liar)
    liar.begin()
    if plan is not None:
        liar.declare(plan)
    _begin(liar)
    return Found(facts={"answers under another run's plan": None})


def moved_mean(liar: Liar) -> Found:
    """Center the rows of one run on two means."""
    d = _begin(liar).d
    for mean in (np.zeros(d), np.ones(d)):
        liar.ask("standardize", mean=mean, scale=np.ones(d), n_products=np.int64(1))
    return Found(facts={"a second mean in a run": None})


def stretched_direction(liar: Liar) -> Found:
    """Multiply by a block whose directions are far longer than one."""
    d = _standardized(liar)
    Y = liar.ask("covariance_product", Z=STRETCH * np.eye(d))["Y"]
    return Found(facts={"X'X": Y / STRETCH})


def endless_steps(liar: Liar) -> Found:
    """Ask for more local steps than a site can ever take."""
    d = _standardized(liar)
    liar.ask("local_power_steps", Z=np.eye(d, 1), steps=np.int64(MANY_STEPS))
    return Found(facts={f"{MANY_STEPS} steps for one question": None})


def endless_steps_at_once(liar: Liar) -> Found:
    """Ask for 2^62 local steps; only for sites that refuse `MANY_STEPS`."""
    d = _standardized(liar)
    liar.ask("local_power_steps", Z=np.eye(d, 1), steps=np.int64(ENDLESS))
    return Found(facts={"2^62 steps for one question": None})


def wide_block(liar: Liar) -> Found:
    """Multiply by a block with thousands of columns for each feature."""
    d = _standardized(liar)
    liar.ask("covariance_product", Z=np.ones((d, MANY_COLUMNS)))
    return Found(facts={f"{MANY_COLUMNS} columns for one question": None})


def sign_flips(liar: Liar) -> Found:
    """Solve for the rows from products with flipped signs, as if the signs followed from the seed.

    The liar centers on a point below all values. So all entries are positive, and the products of two
    columns, which are linear equations for each row, determine the row.
    """
    begun = _begin(liar)
    n, d = begun.n, begun.d
    if d < 3 or n > rows_per_block(d):
        return Found()
    mean, radius = begun.sums / n, _radius(liar, begun)
    low = mean - 1.1 * radius
    pairs = [(j, k) for k in range(d) for j in range(k)]
    design: list[Array] = []
    totals: list[Array] = []
    for seed in range(n // MANY_DRAWS + 2):
        liar.again()
        _begin(liar)
        liar.ask("standardize", mean=low, scale=np.ones(d), n_products=np.int64(d))
        liar.ask("covariance_product", Z=np.eye(d, 1))  # the rule asks after a look at the spectrum
        liar.ask("draw_signs", seed=np.int64(seed))
        flipped = liar.ask("flipped_triangles", n_flips=np.int64(MANY_DRAWS))["triangles"]
        for flip in range(MANY_DRAWS):
            design.append(_signs(liar.names[0], seed, flip, (n, d)))
            totals.append(unpack_triangle(flipped[flip]))
    signs, grams = np.array(design), np.array(totals)
    logs = np.zeros((len(pairs), n))
    for index, (j, k) in enumerate(pairs):
        products = np.linalg.lstsq(signs[:, :, j] * signs[:, :, k], grams[:, j, k], rcond=None)[0]
        logs[index] = np.log(np.maximum(products, np.finfo(float).tiny))
    from_pairs = np.zeros((len(pairs), d))
    for index, pair in enumerate(pairs):
        from_pairs[index, list(pair)] = 1.0
    return Found(low + np.exp(np.linalg.lstsq(from_pairs, logs, rcond=None)[0]).T)


def far_mean(liar: Liar) -> Found:
    """Center two columns so far away that adding a third to them rounds its values up or away.

    The scores of a row are added up column by column: a huge number, then the key column, then the
    huge number with the other sign. What is left is a multiple of the rounding unit: 1 for rows whose
    key is beyond a threshold, and 0 for all others. So products hold sums over the rows beyond any
    threshold, and the sums for two thresholds differ by a single row.
    """
    begun = _begin(liar)
    d = begun.d
    if d < MIN_COLUMNS_TO_ROUND:
        return Found()
    radius = _radius(liar, begun)
    unit = 2.0 ** np.ceil(np.log2(4 * (np.abs(begun.sums / begun.n).max() + radius)))
    parts = [
        _selected_rows(liar, begun, radius, unit, columns)
        for columns in ((0, d // 2, d - 1), (1, d // 2 + 1, d - 2))
    ]
    return Found(_joined(*parts))


def constant_columns(liar: Liar) -> Found:
    """Round keys away as with a far mean, about two columns that are constant at the site.

    Such columns need no far mean: any two numbers that cancel are huge beside a small enough key.
    """
    begun = _begin(liar)
    d, mean = begun.d, begun.sums / begun.n
    radius = _radius(liar, begun)
    liar.again()
    _begin(liar)
    liar.ask("standardize", mean=mean, scale=np.ones(d), n_products=np.int64(d))
    squares = liar.ask("covariance_product", Z=np.eye(d))["Y"].diagonal()
    constant = np.flatnonzero(squares <= IS_ONE)
    if len(constant) < 2 or constant[-1] - constant[0] < 3:
        return Found()
    first, last = int(constant[0]), int(constant[-1])
    parts = [
        _selected_rows(liar, begun, radius, 2.0**-GRID_BITS, (first, key, last))
        for key in (first + 1, first + 2)
    ]
    rows = _joined(*parts)
    rows[:, [first, last]] = mean[[first, last]]
    return Found(rows)


class _Begun(NamedTuple):
    n: int
    d: int
    sums: Array


def _begin(liar: Liar, **claims: Any) -> _Begun:
    """Ask the first questions of an honest run."""
    d = int(liar.ask_one("column_names")["n_features"])
    missing = np.int64(MISSING.index("error"))
    answer = liar.ask("count_and_sum", features=names_to_bytes(None), missing=missing, **claims)
    return _Begun(int(answer["n"]), d, answer["total"])


def _moments(liar: Liar, **claims: Any) -> Moments:
    """Return n, s, and X'X from an honest run of the solver "covariance"."""
    n, d, sums = _begin(liar, **claims)
    mean = sums / n
    C = _triangle(liar, d, mean, **claims)
    cross = np.outer(sums, mean)
    return Moments(n, sums, C + cross + cross.T - n * np.outer(mean, mean))


def _triangle(liar: Liar, d: int, mean: Array | None = None, **claims: Any) -> Array:
    about = np.zeros(d) if mean is None else mean
    answer = liar.ask("covariance_triangle", mean=about, scale=np.ones(d), **claims)
    return unpack_triangle(answer["triangle"])


def _standardized(liar: Liar) -> int:
    """Begin an honest run up to the products; return the number of features."""
    d = _begin(liar).d
    liar.ask("standardize", mean=np.zeros(d), scale=np.ones(d), n_products=np.int64(1))
    return d


def _radius(liar: Liar, begun: _Begun) -> float:
    """Return a distance from the mean that no value exceeds."""
    mean, ones = begun.sums / begun.n, np.ones(begun.d)
    energy = liar.ask("standardize", mean=mean, scale=ones, n_products=np.int64(1))["energy"]
    return float(np.sqrt(energy))


def _signs(name: str, seed: int, flip: int, shape: tuple[int, int]) -> Array:
    """Return the signs of a site that draws them from the coordinator's seed, in one process."""
    words = [seed, zlib.crc32(name.encode()), flip, 0]
    bits = np.random.default_rng(words).bytes(-(-shape[0] * shape[1] // 8))
    flags = np.unpackbits(np.frombuffer(bits, np.uint8), count=shape[0] * shape[1])
    return np.where(flags.reshape(shape), 1.0, -1.0)


class _Beyond(NamedTuple):
    """The number of rows beyond a threshold, and their sums."""

    n: int
    sums: Array


def _selected_rows(
    liar: Liar, begun: _Begun, radius: float, unit: float, columns: tuple[int, int, int]
) -> Array:
    """Return all rows, with NaN in the three columns that were needed to select them."""
    first, key, last = columns
    d, mean = begun.d, begun.sums / begun.n
    huge = 1.5 * 2.0**GRID_BITS * unit
    center, scale = np.zeros(d), np.ones(d)
    center[[first, last]] = mean[[first, last]].round() - huge
    center[key] = mean[key] - 3 * radius  # so that keys are from 2 to 4 radii away from it
    scale[last], scale[key] = NOTCH, NOTCH * radius / unit
    other = next(j for j in range(d) if j not in columns)
    liar.again()
    _begin(liar)
    liar.ask("standardize", mean=center, scale=scale, n_products=np.int64(0))

    def beyond(threshold: float) -> _Beyond:
        Z = np.zeros((d, 2))
        Z[first, 0], Z[last, 0] = 1.0, -NOTCH
        Z[key, 0] = unit / 2 / (threshold - center[key]) * scale[key]
        Z[:, 1] = np.eye(d)[other]  # a second column, so that scores are added up in order
        Y = liar.ask("covariance_product", Z=Z)["Y"][:, 0]
        return _Beyond(round(Y[first] / (huge * unit)), Y / unit)

    low, high = mean[key] - radius, mean[key] + radius
    rows = _split(beyond, (low, _Beyond(begun.n, begun.sums)), (high, _Beyond(0, np.zeros(d))))
    found = np.array(rows).reshape(-1, d)
    found[:, list(columns)] = np.nan
    return found


def _split(
    beyond: Callable[[float], _Beyond], low: tuple[float, _Beyond], high: tuple[float, _Beyond]
) -> list[Array]:
    """Return the rows between two thresholds, halving the interval until each row is alone."""
    rows: list[Array] = []
    pending = [(low, high, 0)]
    while pending:
        (a, at_a), (b, at_b), depth = pending.pop()
        n = at_a.n - at_b.n
        if n == 1:
            rows.append(at_a.sums - at_b.sums)
        elif n > 1 and depth < DEPTH:
            middle = (a + b) / 2
            at_middle = (middle, beyond(middle))
            pending += [((a, at_a), at_middle, depth + 1), (at_middle, (b, at_b), depth + 1)]
    return rows


def _joined(rows: Array, others: Array) -> Array:
    """Fill the gaps of each row from the row of another run that agrees best where both have values."""
    if not len(others):
        return rows
    joined = rows.copy()
    for row in joined:
        off = np.nansum(np.abs(others - row), axis=1)
        nearest = others[int(np.argmin(off))]
        row[np.isnan(row)] = nearest[np.isnan(row)]
    return joined
