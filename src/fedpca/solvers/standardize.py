"""Find n, the mean, and the scale over all sites, in the rounds before every solver.

    m = sum x / n,   s_j^2 = sum (x_j - m_j)^2 / n,   over the rows x of all sites

The mean is taken over all sites. Centering each site on its own mean would lose the variance
between sites. Raw second moments would lose the digits that an offset takes up. So the coordinator
asks for the mean first, and everything else is summed about it. If rows have weights, n is the sum
of the weights, and each row counts in proportion to its weight. Gaps that are filled get the mean
of the values present in their column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.coordinator.federation import Federation
from fedpca.errors import InputError, MessageError, PolicyRefused
from fedpca.linalg.dense import ROUNDING
from fedpca.linalg.grid import TRACE_ERROR, growth
from fedpca.protocol.invariants import MAX_VALUE
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.question import question
from fedpca.protocol.script import Script, then
from fedpca.rows.centering import MAX_CANCELLATION
from fedpca.rows.columns import some_of
from fedpca.rows.gaps import DROP, ERROR, MEAN, MISSING
from fedpca.rows.genotypes.variants import MONOMORPHIC, RARE
from fedpca.rows.standardized import (
    FEW_FEATURES,
    Frame,
    deviations,
    refuse_large,
    refuse_tiny,
    usable_energy,
)
from fedpca.site.rules import Complete
from fedpca.solvers.common_features import CommonFeatures, ask_to_use, own_order

if TYPE_CHECKING:
    from fedpca.site.site import Site

MAX_PRODUCTS = 1 << 40  # columns by which rows can be multiplied in a run; a hint for the site
BINOMIAL = "binomial"  # the scale of genotypes
MONOMORPHIC_SHARE = 1e-12  # rarer alleles count as absent, since weights may leave rounding
SCALES = "1e-150..1e100"  # beyond these, the squares of single scaled values underflow or overflow
MANY_TERMS = 1024  # of a score; rounding errors of more terms cancel too often to add up
EPS = float(np.finfo(np.float64).eps)
SUM_ERROR = 1 / 8  # error of the mean of n values, in rounding units, divided by the root of n
MAX_TIMES_TYPICAL = 2.0**20  # a mean this many times as large as a site's values rounds them away


@dataclass(frozen=True)
class Moments:
    """The row count, mean, and scale over all sites, found before a solver starts."""

    n_rows: int
    mean: Array  # (d,)
    scale: Array  # (d,)
    features: tuple[str, ...] | None
    weight: float  # the total weight of the rows; n_rows if they have no weights

    @property
    def n(self) -> int:
        """Return the number of rows that a rank rule should count.

        A row with weight 3 counts as three rows. Weights below one do not reduce the possible rank.
        """
        return max(self.n_rows, int(self.weight))

    @property
    def d(self) -> int:
        """Return the number of features."""
        return len(self.mean)

    def residuals_of_mean(self, V: Array, energy: float = 0.0) -> Array:
        """Bound the error that rounding the mean causes in A'A times each direction, ``(k,)``.

        About a mean that is off by e, the scatter is larger by ``n e e'``,
        so a direction v leaves the residual ``n |e| |e'v|``. Squares about that mean do not show
        the error. A scale that is found from such squares is too large, by the same share of the
        column's variance.

        ``energy`` is the trace of A'A, if the solver multiplies by A'A. Sites whose rows are near the
        origin subtract the mean m from the products, which are then rounded like ``n m m'``. All sites
        round products to a grid, which is coarser if scores have many terms. That adds a share of the
        trace.
        """
        offset = np.abs(self.mean / self.scale)
        rounding = EPS * (2 + np.sqrt(self.weight) * SUM_ERROR)
        error = rounding * offset
        of_scale = self.d * np.square(error[self.scale != 1]).max(initial=0.0)
        of_mean = np.linalg.norm(error) * (error @ np.abs(V))
        if self.weight * np.square(offset).max(initial=0.0) <= MAX_CANCELLATION * energy:
            of_mean += np.linalg.norm(error) * (offset @ np.abs(V))
        of_grid = TRACE_ERROR * growth(1 if self.d <= FEW_FEATURES else MANY_TERMS) * energy
        return np.asarray(self.weight * (of_mean + of_scale) + of_grid)


@dataclass(frozen=True)
class ColumnSums:
    """The sums and the order of a site's columns, which the site remembers."""

    sums: Array  # (d,), of the values present, in the site's own order
    order: Array | None = None  # (d,), each common feature's column; None if the order is the same
    missing: int = ERROR  # what to do with gaps, as a position in MISSING
    weight: float | None = None  # the total weight of the site's rows
    absent: Array | None = None  # (d,), in the common order, the weight of the values to fill in

    def frame(self, mean: Array, scale: Array, n_products: int = 1) -> Frame:
        """Return the frame that this site uses to standardize its rows."""
        sums = self.sums
        if self.absent is not None:
            filled = self.absent * mean
            sums = sums + (filled if self.order is None else filled[np.argsort(self.order)])
        return Frame(
            mean,
            scale,
            self.order,
            sums,
            n_products,
            missing=self.missing,
            fill=mean if self.missing == MEAN else None,
            weight=self.weight,
        )


def near_frame(site: Site, mean: Array, scale: Array) -> Frame:
    """Return the frame for a mean and a scale; refuse a mean that would round the site's rows away.

    Sums of squares and products end where the rows' digits end (`fedpca.linalg.grid`), but directions
    do not. About a point that is 2^50 times as large as the values, each value becomes a multiple of
    the rounding unit, so directions would be made of rounding. The mean is compared with a sum of
    squares, because many refusals together show what it is compared with, and answers tell such sums
    anyway. A site whose policy allows everything does not check the mean.
    """
    sums = site.recall(ColumnSums)
    if not site.policy.is_open:
        own = sums.sums / (sums.weight or 1)
        own = own if sums.order is None else own[sums.order]
        if (
            np.abs(mean) > MAX_TIMES_TYPICAL * np.abs(own)
        ).any():  # otherwise, no need to read rows
            about_zero = sums.frame(np.zeros_like(mean), np.ones_like(mean), 1)
            typical = np.sqrt(site.rows_in(about_zero).squares() / (sums.weight or 1))
            if ((typical > 0) & (np.abs(mean) > MAX_TIMES_TYPICAL * typical)).any():
                raise PolicyRefused(
                    f"field 'mean' is more than {MAX_TIMES_TYPICAL:.0f} times as large as the typical "
                    "value of some of this site's columns, and would round its values away"
                )
    return sums.frame(mean, scale, 1)


def own_mean_of(site: Site) -> tuple[float, Array]:
    """Return the weight of a site's rows and their own mean, ``(d,)``, in the common order."""
    frame = site.recall(Frame)
    assert frame.sums is not None
    n = site.rows.n_rows if frame.weight is None else frame.weight
    return n, frame.sums[slice(None) if frame.order is None else frame.order] / (n or 1)


@question(
    doing="counting rows and adding up columns",
    asks={"features": "uint8 bytes", "missing": "int64"},
    answers={
        "n": "int64, count, rows",
        "weight": "float64, nonnegative, weight, of rows",
        "total": "float64 d",
        "present": "float64 columns, nonnegative",
    },
    remembers=True,
    at_most={"columns": "d"},
    check=lambda answer, _: impossible_sums(answer),
    grows={"columns": "d"},
)
def count_and_sum(site: Site, features: Array, missing: Array) -> dict[str, Any]:
    """Count the rows, and sum each column with the rows' weights, in the order of ``features``.

    ``missing`` says what to do with gaps, as a position in `MISSING`. If gaps are to be filled with the
    mean, ``present`` is the weight of the values present in each column; otherwise, it is empty.
    """
    if not 0 <= int(missing) < len(MISSING):
        raise InputError(f"missing={int(missing)} must be from 0 to {len(MISSING) - 1}")
    totals = site.column_totals(int(missing))
    if missing == DROP:
        site.policy.check_rows(Complete(totals.n, totals.sums.size))
    refuse_large(totals.sums, totals.weight)
    order = own_order(site, features)
    columns = slice(None) if order is None else order
    present, absent = np.empty(0), None
    if missing == MEAN:
        present = totals.present[columns]
        absent = totals.weight - present
    site.remember(ColumnSums(totals.sums, order, int(missing), totals.weight, absent))
    return {
        "n": np.int64(totals.n),
        "weight": np.float64(totals.weight),
        "total": totals.sums[columns],
        "present": present,
    }


def impossible_sums(sums: Arrays) -> str | None:
    """Return what is wrong with the counts and sums of one site or of all sites, or None."""
    if (sums["present"] > (1 + ROUNDING) * sums["weight"]).any():
        return "has values with more weight than the rows"
    return large_mean(sums["total"], sums["weight"])


def large_mean(total: Array, n: Array, most: float = MAX_VALUE) -> str | None:
    """Return what is wrong with sums of n values, or None if nothing is.

    If a mean were beyond the bound, the squares of other sites' rows about it would overflow.
    """
    is_possible = (np.abs(total) <= most * n).all()
    return None if is_possible else f"has a mean beyond {most:.0e}"


@question(
    doing="adding up squares",
    asks={"mean": "float64 d"},
    answers={"squares": "float64 d, squares"},
    remembers=True,
)
def squares(site: Site, mean: Array) -> dict[str, Any]:
    """Sum the squares of each column about the mean."""
    site.remember(site.recall(ColumnSums).frame(mean, np.ones_like(mean), 1))
    return {"squares": site.standardized.squares()}


@question(
    doing="centering and scaling rows",
    asks={
        "mean": "float64 d, fixed",
        "scale": f"float64 d, fixed, {SCALES}",
        "n_products": f"int64, 0..{MAX_PRODUCTS}",
    },
    answers={"energy": "float64, squares, energy"},
    remembers=True,
)
def standardize(site: Site, mean: Array, scale: Array, n_products: Array) -> dict[str, Any]:
    """Store the mean and the scale, and send the sum of squares of the standardized rows."""
    frame = site.recall(ColumnSums).frame(mean, scale, int(n_products))
    site.remember(frame)
    energy = site.standardized.squares().sum()
    site.remember(replace(frame, energy=energy))
    return {"energy": energy}


def polymorphic(
    fed: Federation, common: CommonFeatures, *, maf: float | None, missing: str = "error"
) -> tuple[CommonFeatures, ColumnMeans | None]:
    """Leave out variants that are monomorphic or rarer than ``maf`` over all sites.

    Return the features that are left. Also return the means, or None if any variant was left out.
    """
    means = ask_means(fed, common, missing, may_lack_values=True)
    assert common.names is not None
    minor = np.minimum(means.mean, 2.0 - means.mean) / 2
    least = MONOMORPHIC_SHARE if maf is None else max(MONOMORPHIC_SHARE, maf * (1 - ROUNDING))
    is_kept = minor >= least
    if is_kept.all():
        return common, means
    if not is_kept.any():
        raise InputError(
            f"no variant is left: all {common.n_features:,} are monomorphic over all sites or below "
            f"maf={maf}; use a smaller maf, or other variants"
        )
    left_out = dict(common.left_out or {})
    for i in np.flatnonzero(~is_kept):
        left_out[common.names[i]] = MONOMORPHIC if minor[i] < MONOMORPHIC_SHARE else RARE
    kept = [name for name, keeps in zip(common.names, is_kept, strict=True) if keeps]
    return ask_to_use(fed, replace(common, left_out=left_out), kept), None


@dataclass(frozen=True)
class ColumnMeans:
    """The row count, the total weight, and the mean of each column over all sites."""

    n: int
    weight: float
    mean: Array  # (d,)


def ask_sums(fed: Federation, common: CommonFeatures, missing: int) -> Arrays:
    """Ask for the counts and column sums of all sites; refuse totals that contradict each other.

    Secure sums hide each site's part, so only the totals can be checked.
    """
    sums = fed.sum(count_and_sum, features=common.to_ask, missing=np.int64(missing))
    problem = impossible_sums(sums)
    away = abs(float(sums["weight"]) - int(sums["n"]))
    if problem is None and not common.has_weights and away > ROUNDING * int(sums["n"]):
        problem = "has a weight that is not the row count, although no site's rows have weights"
    if problem is not None:
        raise MessageError(
            f"the total over all sites {problem}; a site sent something other than its answer"
        )
    return sums


def ask_means(
    fed: Federation,
    common: CommonFeatures,
    missing: str = "error",
    *,
    may_lack_values: bool = False,
) -> ColumnMeans:
    """Ask for n and the mean over all sites.

    A column without any value is refused; with ``may_lack_values``, its mean is 0 instead.
    """
    position = MISSING.index(missing)
    sums = ask_sums(fed, common, position)
    n, weight = int(sums["n"]), float(sums["weight"])
    if common.has_weights:
        _check_weight(weight)
    at_least_two(max(n, int(weight)), "complete rows" if position == DROP else "rows")
    present: Any = weight
    if position == MEAN:
        present = sums["present"]
        present = np.maximum(present, 1e-300) if may_lack_values else _some_present(present, common)
    mean = sums["total"] / present
    refuse_tiny(mean)
    return ColumnMeans(n, weight, mean)


def ask_moments(
    fed: Federation,
    common: CommonFeatures,
    *,
    center: bool,
    scale: bool | str,
    missing: str = "error",
    means: ColumnMeans | None = None,
) -> Moments:
    """Ask for n, the mean, and the scale over all sites; they equal those of the pooled rows."""
    n, weight, mean = astuple(means or ask_means(fed, common, missing))
    factors = np.ones_like(mean)
    if scale == BINOMIAL:
        factors = binomial_deviations(mean, common.names)
    elif scale:  # the standard deviation is about the mean, even if the components are not
        factors = deviations(fed.sum(squares, mean=mean)["squares"] / weight, mean, n)
    return Moments(n, mean if center else np.zeros_like(mean), factors, common.names, weight)


def binomial_deviations(mean: Array, names: Sequence[str] | None) -> Array:
    """Return ``sqrt(2 p (1 - p))``, or 1 if only one allele occurs; a column's mean is 2 p."""
    outside = np.flatnonzero((mean < 0) | (mean > 2))
    if outside.size:
        columns = [str(i) if names is None else names[i] for i in outside.tolist()]
        raise InputError(
            f"scale={BINOMIAL!r} needs allele counts from 0 to 2, but the means of columns "
            f"{some_of(columns)} are outside this range; use scale=True"
        )
    variance = mean * (2 - mean) / 2
    is_constant = np.minimum(mean, 2 - mean) / 2 < MONOMORPHIC_SHARE
    return np.where(is_constant, 1.0, np.sqrt(np.where(is_constant, 1.0, variance)))


def moments_script(plan: RunPlan) -> Script:
    """Return the script of `ask_moments`."""
    values: dict[str, Any] = {"missing": MISSING.index(plan.parameters.get("missing", "error"))}
    scale = plan.parameters.get("scale")
    if scale == BINOMIAL:
        return Script(then(count_and_sum), values=values)
    if not scale:
        return Script(then(count_and_sum), values={**values, "scale": 1.0})
    # with center=False, the squares are about the mean, but the rows are about zero
    fixed = (f"{squares.name}.mean",) if plan.parameters.get("center", True) else ()
    return Script(then(count_and_sum, squares), values=values, fixed=fixed)


def at_least_two(n: int, rows: str = "rows") -> int:
    """Return the total row count; refuse fewer than two rows."""
    if n < 2:
        raise InputError(f"all sites together have n_samples={n}; at least 2 {rows} are required")
    return n


def _check_weight(weight: float) -> None:
    """Refuse weights that add up to less than 2, since the variance would not be defined."""
    if not weight:
        raise InputError("all weights are zero, so no row counts; use positive weights")
    if not weight >= 2:
        raise InputError(
            f"the weights of all sites add up to {weight:.6g}; a weight of 1 counts as one row, so "
            "they must add up to at least 2; scale them, for example to add up to the number of rows"
        )


def _some_present(present: Array, common: CommonFeatures) -> Array:
    """Return the weight of the values present in each column; refuse a column without any value."""
    empty = np.flatnonzero(present <= 0)
    if empty.size:
        names = [str(i) if common.names is None else common.names[i] for i in empty]
        raise InputError(
            f"some columns have no values at any site: {some_of(names)}; drop these columns"
        )
    return present


def standardize_sites(fed: Federation, moments: Moments, n_products: int) -> float:
    """Send the mean and scale to every site; return the sum of squares of all standardized rows.

    ``n_products`` is an estimate of how many columns the rows will be multiplied by.
    """
    answer = fed.sum(
        standardize, mean=moments.mean, scale=moments.scale, n_products=np.int64(n_products)
    )
    return usable_energy(float(answer["energy"]))
