"""Attack sites with the questions of `FederatedPCA`, asked honestly, out of turn, or with odd numbers.

An honest run reveals n, the sums s, and ``C = sum (x - m)(x - m)'``, and so

    X'X = C + s m' + m s' - n m m'.

These are sums over all rows. An attack reveals a single row if it finds a sum over only that row: from
a flag that only one row has, two sums that differ by one row, or a rounding that only one row survives.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.audit.liar import Found, Liar, Refused, made_up_key
from fedpca.linalg.dense import unpack_triangle
from fedpca.linalg.parallel_analysis import MANY_DRAWS
from fedpca.rows.gaps import MISSING
from fedpca.rows.in_memory import rows_per_block
from fedpca.solvers.common_features import names_to_bytes
from fedpca.solvers.exact.local_power import MAX_LOCAL_STEPS
from fedpca.solvers.exact.tsqr import unpack_factor

N_INVENTED = 1000  # sites that do not exist
# more local steps than any plan allows, but few enough to answer within seconds
MANY_STEPS = 4 * MAX_LOCAL_STEPS
ENDLESS = 1 << 62
MANY_COLUMNS = 20_000  # columns of a block for a handful of features
STRETCH = 1e8  # a direction is this many times as long as it should be
IS_ONE = 1e-9  # a sum within this distance of 1 contains a single flag
MIN_COLUMNS_TO_ROUND = 7  # two runs leave out three columns each, and must have one in common
HIDDEN_BITS = 52
NOTCH = 2.0**-14  # a small entry of a block, which keeps it orthonormal within the tolerance
MIN_COLUMNS_TO_SOLVE = 4
MAX_ROWS_TO_SOLVE = 8  # with more rows, not all combinations of signs occur within a day
MAX_RUNS_TO_SOLVE = 99
IS_SAME = 1e-12  # share of the largest sum; sums that differ by less have the same signs
DEPTH = 60  # halvings of an interval of thresholds


class HonestMoments(NamedTuple):
    """What one honest run reveals about the rows that the liar hears."""

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
    return honest_moments(liar).found


def claimed_sites(liar: Liar) -> Found:
    """Claim in every message that the sum covers a thousand sites."""
    return honest_moments(liar, n_sites=N_INVENTED).found


def invented_sites(liar: Liar) -> Found:
    """Declare a plan with a thousand sites, of which only those that the liar hears exist."""
    invented = [f"invented-{i}" for i in range(N_INVENTED)]
    liar.roster = {name: made_up_key(name) for name in (*liar.names, *invented)}
    liar.begin("FederatedPCA", solver="covariance", n_components=1)
    return honest_moments(liar).found


def colluding_sites(liar: Liar) -> Found:
    """Subtract the terms of colluding sites from honest totals, which leaves one site's terms."""
    total = honest_moments(liar)
    others = np.vstack(list(liar.colluding.values()))
    rest = HonestMoments(
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
    """Find columns that are 1 in one row and 0 elsewhere; their products in X'X are that row."""
    moments = honest_moments(liar)
    squares = moments.products.diagonal()
    is_single = (np.abs(moments.sums - 1) < IS_ONE) & (np.abs(squares - 1) < IS_ONE)
    flagged = np.flatnonzero(is_single)
    return Found(moments.products[:, flagged].T, facts=moments.found.facts)


def one_row_less(liar: Liar) -> Found:
    """Subtract the sums of two honest runs between which one row has gone."""
    before = honest_moments(liar)
    liar.meanwhile()
    liar.again()
    after = honest_moments(liar)
    is_one = before.n - after.n == 1
    return Found((before.sums - after.sums)[None] if is_one else None, facts=after.found.facts)


def with_and_without_gaps(liar: Liar) -> Found:
    """Subtract honest sums without the rows that have gaps from honest sums with these rows."""
    sums = {}
    for missing in ("mean", "drop"):
        liar.begin("FederatedPCA", solver="covariance", n_components=1, missing=missing)
        liar.ask_one("column_names")
        sums[missing] = liar.ask(
            "count_and_sum",
            features=names_to_bytes(None),
            missing=np.int64(MISSING.index(missing)),
        )
    apart = sums["mean"]["total"] - sums["drop"]["total"]
    is_one = sums["mean"]["n"] - sums["drop"]["n"] == 1
    single = np.flatnonzero(sums["mean"]["present"] - sums["drop"]["n"] == 1)
    return Found(apart[None] if is_one else None, {int(j): apart[[j]] for j in single})


def moved_fill(liar: Liar) -> Found:
    """Fill gaps with one mean and then another, which reveals sums over only the rows without a gap.

    A filled gap is zero relative to the mean. So if the mean of column k moves by c, the product of the
    columns k and j falls by c times the sum of column j over the rows that have a value in column k.
    """
    sums, products = _filled(liar, None)
    n, d = int(sums["n"]), len(sums["total"])
    gapped = np.flatnonzero(n - sums["present"] == 1)
    values: dict[int, list[float]] = {j: [] for j in range(d)}
    for k in gapped:
        moved = _filled(liar, np.eye(d)[k])[1]
        apart = sums["total"] - (products - moved)[:, k]
        for j in np.flatnonzero(np.arange(d) != k):
            values[int(j)].append(float(apart[j]))
    return Found(values={j: np.array(each) for j, each in values.items()})


def _filled(liar: Liar, mean: Array | None) -> tuple[Arrays, Array]:
    """Return the sums of a run that fills gaps, and the run's products about a mean, or about zero."""
    liar.begin("FederatedPCA", solver="covariance", n_components=1, missing="mean")
    d = int(liar.ask_one("column_names")["n_features"])
    sums = liar.ask(
        "count_and_sum", features=names_to_bytes(None), missing=np.int64(MISSING.index("mean"))
    )
    return sums, products_about(liar, d, mean)


def out_of_turn(liar: Liar) -> Found:
    """Declare a solver that multiplies blocks, and ask for the whole covariance."""
    moments = _begin(liar)
    d = moments.d
    liar.ask("standardize", mean=np.zeros(d), scale=np.ones(d), n_products=np.int64(1))
    return Found(facts={"X'X": products_about(liar, d)})


def asked_again(liar: Liar) -> Found:
    """Ask the same question twice in a run."""
    honest_moments(liar)
    _begin(liar)
    return Found(facts={"an answer too many": None})


def replayed_plan(liar: Liar) -> Found:
    """Declare the plan of an admitted run again in another run."""
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
    """Multiply by a block whose directions are far longer than 1."""
    d = _standardized(liar)
    Y = liar.ask("covariance_product", Z=STRETCH * np.eye(d))["Y"]
    return Found(facts={"X'X": Y / STRETCH})


def endless_steps(liar: Liar) -> Found:
    """Ask for more local steps than a site can ever take."""
    d = _standardized(liar)
    liar.ask("local_power_steps", Z=np.eye(d, 1), steps=np.int64(MANY_STEPS))
    return Found(facts={f"{MANY_STEPS} steps for one question": None})


def endless_steps_at_once(liar: Liar) -> Found:
    """Ask for 2^62 local steps; use this only for sites that refuse `MANY_STEPS`."""
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

    The liar centers on a point below all values, so all entries are positive. The flipped products are
    linear equations for each row's products of two columns, and these products determine the row.
    """
    begun = _begin(liar)
    n, d = begun.n, begun.d
    if d < 3 or n > rows_per_block(d):
        return Found()
    mean, ones = begun.sums / n, np.ones(d)
    energy = liar.ask("standardize", mean=mean, scale=ones, n_products=np.int64(1))["energy"]
    low = mean - 1.1 * np.sqrt(energy)
    pairs = [(j, k) for k in range(d) for j in range(k)]
    design: list[Array] = []
    totals: list[Array] = []
    for seed in range(n // MANY_DRAWS + 2):
        totals += _flipped_grams(liar, low, seed)
        design += [_signs(liar.names[0], seed, flip, (n, d)) for flip in range(MANY_DRAWS)]
    signs, grams = np.array(design), np.array(totals)
    logs = np.zeros((len(pairs), n))
    for index, (j, k) in enumerate(pairs):
        products = np.linalg.lstsq(signs[:, :, j] * signs[:, :, k], grams[:, j, k], rcond=None)[0]
        logs[index] = np.log(np.maximum(products, np.finfo(float).tiny))
    from_pairs = np.zeros((len(pairs), d))
    for index, pair in enumerate(pairs):
        from_pairs[index, list(pair)] = 1.0
    return Found(low + np.exp(np.linalg.lstsq(from_pairs, logs, rcond=None)[0]).T)


def few_rows_flipped(liar: Liar) -> Found:
    """Collect products with unknown signs over many runs, until all signs of a few rows have occurred.

    With all entries positive, the product of two columns is ``sum +-p_i``, with one p_i for each row.
    Over all signs, the distances to the largest sum are all sums over subsets of the p_i, which
    determine the p_i. The products of three columns then determine the entries.
    """
    begun = _begin(liar)
    n, d = begun.n, begun.d
    if d < MIN_COLUMNS_TO_SOLVE or n > MAX_ROWS_TO_SOLVE:
        return Found()
    mean, ones = begun.sums / n, np.ones(d)
    energy = liar.ask("standardize", mean=mean, scale=ones, n_products=np.int64(1))["energy"]
    low = mean - 1.1 * np.sqrt(energy)
    grams: list[Array] = []
    for seed in range(MAX_RUNS_TO_SOLVE):
        try:
            grams += _flipped_grams(liar, low, seed)
        except Refused:
            break
        subsets = _products_of_rows(np.array(grams), n)
        if subsets is not None:
            return Found(low + _entries_from_products(subsets, n, d))
    return Found()


def _flipped_grams(liar: Liar, mean: Array, seed: int) -> list[Array]:
    """Return the products of all columns with all flips of one run."""
    liar.again()
    d = _begin(liar).d
    liar.ask("standardize", mean=mean, scale=np.ones(d), n_products=np.int64(d))
    liar.ask("covariance_product", Z=np.eye(d, 1))  # the rule asks after a look at the spectrum
    liar.ask("column_squares")
    liar.ask("draw_signs", seed=np.int64(seed), removed=np.empty((d, 0)))
    flipped = liar.ask("flipped_triangles", n_flips=np.int64(MANY_DRAWS))["triangles"]
    return [unpack_triangle(each) for each in flipped]


def _products_of_rows(grams: Array, n: int) -> dict[tuple[int, int], Array] | None:
    """Return each pair of columns' products in all rows, ``(n,)``, if all signs have occurred."""
    d = grams.shape[1]
    found = {}
    for k in range(d):
        for j in range(k):
            seen = np.sort(grams[:, j, k])
            sums = seen[np.diff(seen, prepend=-np.inf) > IS_SAME * seen[-1]]
            if len(sums) != 1 << n:
                return None
            found[j, k] = _from_subset_sums((sums[-1] - sums[::-1]) / 2)
    return found


def _from_subset_sums(sums: Array) -> Array:
    """Return the positive numbers whose sums over all subsets these are, in ascending order."""
    known, numbers = np.zeros(1), []
    left = sums[1:]
    while len(left):
        numbers.append(left[0])
        added = known + left[0]
        known = np.concatenate([known, added])
        left = np.delete(left, np.unique([np.argmin(np.abs(left - each)) for each in added]))
    return np.array(numbers)


def _entries_from_products(products: dict[tuple[int, int], Array], n: int, d: int) -> Array:
    """Return the rows with these products of columns; for each pair, the order of rows is unknown.

    ``u = a_0 a_1``, ``v = a_0 a_2`` and ``w = a_1 a_2`` belong to one row if the entries that follow
    from them also agree with products that were found for the other columns.
    """
    rows = []
    for u, v, w in itertools.product(products[0, 1], products[0, 2], products[1, 2]):
        row = np.zeros(d)
        row[0] = np.sqrt(u * v / w)
        row[1:3] = u / row[0], v / row[0]
        off = 0.0
        for k in range(3, d):
            given = products[0, k] / row[0]
            also = [products[j, k] / row[j] / given[:, None] - 1 for j in (1, 2)]
            errors = np.max([np.abs(each).min(axis=1) for each in also], axis=0)
            row[k], off = given[np.argmin(errors)], max(off, float(errors.min()))
        rows.append((off, row))
    rows.sort(key=lambda each: each[0])
    return np.array([row for _, row in rows[:n]])


def far_mean(liar: Liar) -> Found:
    """Center two columns so far away that adding a third column rounds its values up or away.

    A row's score is added up column by column: a huge number, then the key column, then the huge number
    with the other sign. The result is one rounding unit for rows whose key is beyond a threshold, and 0
    for all others. So the products contain sums over the rows beyond any threshold. For two close
    thresholds, these sums differ by a single row.
    """
    begun = _begin(liar)
    d = begun.d
    if d < MIN_COLUMNS_TO_ROUND:
        return Found()
    radius = _radius(_squares(liar, begun))
    unit = 2.0 ** np.ceil(np.log2(4 * (np.abs(begun.sums / begun.n).max() + radius)))
    parts = [
        _selected_rows(liar, begun, radius, unit, columns)
        for columns in ((0, d // 2, d - 1), (1, d // 2 + 1, d - 2))
    ]
    return Found(_joined(*parts))


def constant_columns(liar: Liar) -> Found:
    """Round keys away as with a far mean, but with two columns that are constant at the site.

    Such columns need no far mean: any two numbers that cancel are huge next to a small enough key.
    """
    begun = _begin(liar)
    mean = begun.sums / begun.n
    squares = _squares(liar, begun)
    radius = _radius(squares)
    constant = np.flatnonzero(squares <= IS_ONE)
    if len(constant) < 2 or constant[-1] - constant[0] < 3:
        return Found()
    first, last = int(constant[0]), int(constant[-1])
    parts = [
        _selected_rows(liar, begun, radius, 2.0**-HIDDEN_BITS, (first, key, last))
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


def honest_moments(liar: Liar, **claims: Any) -> HonestMoments:
    """Return n, s, and X'X from an honest run of the solver "covariance"."""
    n, d, sums = _begin(liar, **claims)
    mean = sums / n
    C = products_about(liar, d, mean, **claims)
    cross = np.outer(sums, mean)
    return HonestMoments(n, sums, C + cross + cross.T - n * np.outer(mean, mean))


def products_about(liar: Liar, d: int, mean: Array | None = None, **claims: Any) -> Array:
    """Return the products of all columns about a mean, or about zero, ``(d, d)``."""
    about = np.zeros(d) if mean is None else mean
    answer = liar.ask("covariance_triangle", mean=about, scale=np.ones(d), **claims)
    return unpack_triangle(answer["triangle"])


def _standardized(liar: Liar) -> int:
    """Begin an honest run up to the products; return the number of features."""
    d = _begin(liar).d
    liar.ask("standardize", mean=np.zeros(d), scale=np.ones(d), n_products=np.int64(1))
    return d


def _squares(liar: Liar, begun: _Begun) -> Array:
    """Ask for the sum of squares of each column about the mean, as a run with ``scale=True`` does."""
    return np.asarray(liar.ask("squares", mean=begun.sums / begun.n)["squares"])


def _radius(squares: Array) -> float:
    """Return a distance from the mean that no value exceeds."""
    return float(np.sqrt(squares.sum()))


def _signs(name: str, seed: int, flip: int, shape: tuple[int, int]) -> Array:
    """Return the signs of a site in the coordinator's process, which draws them from the seed."""
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
    """Return all rows, with NaN in the three columns that were needed to select the rows."""
    first, key, last = columns
    d, mean = begun.d, begun.sums / begun.n
    huge = 1.5 * 2.0**HIDDEN_BITS * unit
    center, scale = np.zeros(d), np.ones(d)
    center[[first, last]] = mean[[first, last]].round() - huge
    center[key] = mean[key] - 3 * radius  # so that keys are from 2 to 4 radii away from it
    scale[last], scale[key] = NOTCH, NOTCH * radius / unit
    other = next(j for j in range(d) if j not in columns)
    liar.again()
    _begin(liar)
    # the mean of a run is fixed from here on, but the scale is not
    liar.ask("squares", mean=center)
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
    """Return the rows between two thresholds, halving intervals until each holds one row."""
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
    """Fill each row's gaps from the row of another run that agrees best with its values."""
    if not len(others):
        return rows
    joined = rows.copy()
    for row in joined:
        off = np.nansum(np.abs(others - row), axis=1)
        nearest = others[int(np.argmin(off))]
        row[np.isnan(row)] = nearest[np.isnan(row)]
    return joined
