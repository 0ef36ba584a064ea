"""Define a mergeable summary of rows: their count, mean, leading directions, and an error bound.

Let m be the mean of n rows, and let S be their scatter about m. A summary holds orthonormal directions
C, ``(r, d)``, and singular values s with

    S = C' diag(s^2) C + T + E,   where T and E are positive semidefinite and bounded in norm

T was cut off by the latest truncation, and E by earlier ones (see `fedpca.summary.lowrank`). `update`
and `merge` preserve this equation: scatters add up, the distance between two means contributes one more
row, and directions beyond the allowed number go into T. If E is zero, the directions are those of the
pooled rows, regardless of the merge order, the merge tree, or the number of sites. Otherwise, they are
within a bound that the summary reports (see `fedpca.summary.bounds`).

Source: Grammenos et al., "Federated PCA with adaptive rank estimation", Algorithms 2 and 3. We add a
factor that Algorithm 2 omits. We also add the mean, which the paper assumes to be zero.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Self

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.errors import InputError
from fedpca.facts import (
    BOUND,
    BYTES,
    CHANGE,
    COUNT,
    SHAPE,
    SHARE,
    SINE,
    Column,
    Fact,
    Records,
    Section,
    Sections,
    about,
    cautions,
    components_of,
    names_of_features,
    records_of_components,
)
from fedpca.linalg.dense import fix_signs
from fedpca.linalg.rank_rules import Spectrum
from fedpca.rows.centering import Centered, Mean, NotFinite, about_own_mean, naming_bad_values
from fedpca.rows.columns import matching_order
from fedpca.rows.genotypes.genotype_rows import matchable
from fedpca.rows.genotypes.variants import refuse_unmatched
from fedpca.rows.open import open_rows
from fedpca.rows.reading import Reading, reading_of, shows_options
from fedpca.summary import bounds
from fedpca.summary.lowrank import LowRank
from fedpca.summary.scatter import Scatter

N_SPARE = 10  # extra directions to carry, which keep truncation harmless

FIELD_COLUMNS = (Column("field"), Column("shape", SHAPE), Column("bytes", BYTES))
SHAPES = {  # the arrays of a summary in messages and files
    "n": "",
    "mean": "d",
    "mean_rest": "d",
    "squares": "d",
    "directions": "r d",
    "singular_values": "r",
    "tail": "",
    "missing": "",
}


@dataclass(frozen=True, eq=False)
class Summary:
    """A mergeable summary of rows.

    Parameters
    ----------
    at : Mean
        The number of rows and their mean.
    squares : ndarray of shape (d,)
        The sum of squares of each feature about its mean.
    known : LowRank
        The directions, the singular values, and a bound on their error.
    n_components : int
        The number of directions wanted in the final result.
    room : int
        The largest number of directions carried.
    centered : bool
        Whether the directions are about the mean; if False, they are about zero.
    features : tuple of str, optional
        The column names.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import Summary
    >>> rng = np.random.default_rng(0)
    >>> north, south = rng.normal(size=(50, 4)), rng.normal(size=(30, 4))
    >>> both = Summary.of(north, 2).merge(Summary.of(south, 2))
    >>> both.n, both.directions.shape, both.angle_bound() < 1e-12
    (80.0, (4, 4), True)
    """

    at: Mean
    squares: Array
    known: LowRank
    n_components: int
    room: int
    centered: bool = True
    features: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        return (
            f"Summary of {self.n:,.10g} rows with {self.n_features} features: {self.n_components} "
            f"components wanted, {len(self.known.values)} directions carried"
        )

    @classmethod
    def empty(
        cls,
        n_features: int,
        n_components: int | None = None,
        *,
        n_spare: int = N_SPARE,
        center: bool = True,
        features: Sequence[str] | None = None,
    ) -> Self:
        """Return an empty summary with room for ``n_components`` directions and some spare ones."""
        d = n_features
        wanted = d if n_components is None else int(n_components)
        if not 1 <= wanted <= d:
            raise InputError(
                f"n_components={wanted} must be between 1 and {d}, the number of features"
            )
        if not isinstance(n_spare, Integral) or n_spare < 0:
            raise InputError(f"n_spare={n_spare!r} must be a nonnegative integer")
        names = None if features is None else tuple(features)
        room = min(d, wanted + int(n_spare))
        return cls(Mean.none(d), np.zeros(d), LowRank.none(d), wanted, room, bool(center), names)

    @classmethod
    @shows_options
    def of(
        cls,
        X: Any,
        n_components: Any = None,
        *,
        n_spare: int = N_SPARE,
        center: bool = True,
        on_block: Callable[[int], None] | None = None,
        missing: str = "error",
        reading: Reading | None = None,
        **how: Any,
    ) -> Summary:
        """Return the summary of rows, which are read in a single pass.

        Variants of genotypes are left out if they could not be matched with those of other cohorts.
        These are variants with the alleles A and T, or C and G, whose strand is ambiguous, and variants
        that lack an allele.

        Parameters
        ----------
        X : array, sparse matrix, data frame, table, or path to a file or folder
            The rows.
        n_components : int, float in (0, 1), {"auto", "mp", "gap"} or None
            The number of directions wanted, or a rule that chooses it, as in `FederatedPCA`. A rule
            chooses at most 100 directions.
        n_spare : int
            The number of extra directions to carry.
        center : bool
            Whether the directions are about the mean; if False, they are about zero.
        on_block : callable, optional
            A function that is called after each block with the total number of rows read.
        missing : {"error", "mean", "drop"}
            What to do with missing values: "error" refuses them, "drop" leaves out the rows that
            contain any, and "mean" replaces them with the mean of the feature in these rows. For
            that, the rows are read twice.
        reading : Reading, optional
            How the rows are read, if all options are in one value.
        **how
            How the rows are read: the options of `fedpca.rows.reading.Reading`, such as
            ``id="patient"``. Summaries have no weights.
        """
        from fedpca.summary.from_rows import summarize

        return summarize(
            X,
            n_components,
            n_spare=n_spare,
            center=center,
            on_block=on_block,
            missing=missing,
            reading=reading_of(reading, how),
        )

    def of_scatter(self, scatter: Scatter) -> Self:
        """Return the summary of all rows in a scatter, with this summary's settings."""
        squares = _finite(scatter.squares())
        return replace(self, at=scatter.mean, squares=squares, known=scatter.leading(self.room))

    @property
    def n(self) -> float:
        """Return the number of rows; a discounted row counts as less than one."""
        return self.at.n

    @property
    def mean(self) -> Array:
        """Return the mean of the rows, ``(d,)``."""
        return self.at.high

    @property
    def directions(self) -> Array:
        """Return the directions as orthonormal rows, ``(r, d)``, the leading one first."""
        return self.known.directions

    @property
    def singular_values(self) -> Array:
        """Return the singular values of the rows about the mean, along the directions, ``(r,)``."""
        return self.known.values

    @property
    def eigenvalues(self) -> Array:
        """Return the eigenvalue of the scatter about the mean for each direction, ``(r,)``."""
        return np.asarray(self.known.values**2)

    @property
    def n_features(self) -> int:
        """Return the number of columns."""
        return len(self.squares)

    @property
    def energy(self) -> float:
        """Return the trace of the scatter: the sum of all squares about the mean."""
        return float(self.squares.sum())

    @property
    def lost(self) -> float:
        """Return the part of the energy that is not along the directions."""
        return bounds.lost_energy(self.known, self.energy)

    @property
    def spectrum(self) -> Spectrum:
        """Return the leading eigenvalues and the sum of all eigenvalues, for a rank rule.

        If only rounding error lies outside the directions, the next eigenvalue is zero and is included.
        """
        is_all = self.lost <= 10 * bounds.eigenvalue_rounding(self.known, self.n)
        values = np.append(self.eigenvalues, 0.0) if is_all else self.eigenvalues
        d = self.n_features
        return Spectrum(values, self.energy, self.n, d, is_all, self.squares, self.directions.T)

    def angle_bound(self, k: int | None = None) -> float:
        """Return a bound on the sine of the largest angle to the pooled rows' k leading directions.

        The bound includes rounding. If the gap after the k-th eigenvalue is too small, the bound is 1
        and carries no information.
        """
        return bounds.angle_bound(self.known, self.energy, self._checked(k), self.n)

    def variance_bound(self, k: int | None = None) -> float:
        """Return a bound on how much more variance the k best directions would carry, as a share."""
        return bounds.variance_bound(self.known, self.energy, self._checked(k))

    def facts(self) -> Sections:
        """Return what the summary holds and what its file reveals, as sections of `fedpca.facts`."""
        k = min(self.n_components, len(self.singular_values))
        freedom = self.n - 1 if self.n >= 2 else max(self.n, 1e-300) / 2
        components = components_of(
            self.eigenvalues[:k] / freedom,
            self.energy / freedom,
            fix_signs(self.directions[:k].T).T,
            names_of_features(self.features, self.n_features),
        )
        few = "There are so few rows that this file reveals them; do not share it."
        fields = [(name, each.shape, each.nbytes) for name, each in self.to_arrays().items()]
        return (
            about("Summary", self.n, components, self.n_features),
            cautions([few] if self.n <= self.room else []),
            records_of_components(components),
            self.certainty(self.n_components),
            Records("reveals", FIELD_COLUMNS, fields, "What this file reveals"),
        )

    def certainty(self, k: int) -> Section:
        """Return how far the k leading directions may be from those of the pooled rows, as facts."""
        bound, is_all = self.angle_bound(k), not self.known.missing
        exact = (
            "the components are exactly those of the pooled rows" if is_all and bound < 1 else SINE
        )
        outside = self.lost / self.energy if self.energy else 0.0
        facts = (
            Fact("n_directions", len(self.singular_values), COUNT, "directions kept"),
            Fact("outside", outside, SHARE, "variance outside the directions kept"),
            Fact("angle_bound", bound, BOUND, note=exact),
            Fact(
                "variance_bound",
                None if is_all else self.variance_bound(k),
                CHANGE,
                note=f"the best {k} components would explain at most this share of the variance more",
            ),
        )
        return Section("certainty", facts)

    def _checked(self, k: int | None) -> int:
        k = self.n_components if k is None else k
        if not 1 <= k <= self.n_features:
            raise InputError(
                f"k={k} must be between 1 and {self.n_features}, the number of features"
            )
        return k

    def update(self, block: Any, *, forgetting: float = 1.0) -> Self:
        """Return the summary with rows added, after discounting earlier rows by ``forgetting``.

        A block may be anything that `Summary.of` accepts. A block without rows changes nothing.
        """
        rows = matchable(open_rows(block))
        order = matching_order(self, rows, "the block, compared with the summary")
        summary = self
        for piece in rows.blocks():
            if not piece.shape[0]:
                continue
            # earlier rows are forgotten once a block, however many pieces the block is read in
            summary, forgetting = summary.discount(forgetting), 1.0
            ordered = piece if order is None else piece[:, order]
            with naming_bad_values(rows):
                summary = summary.append(*about_own_mean(ordered, center=self.centered))
        return summary

    def append(self, mean: Mean, rows: Centered) -> Self:
        """Return the summary after adding rows that are given about a mean."""
        at, row = self.at.join(mean)
        with np.errstate(over="ignore", invalid="ignore"):
            squares = _finite(self.squares + rows.squares() + _squares(row))
        known = self.known.append_block(rows, row, self.room)
        return replace(self, at=at, squares=squares, known=known)

    def merge(self, *others: Self, forgetting: float = 1.0, enhancing: float = 1.0) -> Self:
        """Return the summary of all rows in this summary and the others.

        The singular values of this summary are multiplied by ``forgetting`` and those of the others by
        ``enhancing``, so row weights are multiplied by the squares of these factors. Columns are
        matched by name. Genotypes are refused if the alleles of a variant cannot be matched.
        """
        refuse_unmatched(self.features or ())
        ours = self.discount(forgetting)
        theirs = [
            self.check_alike(other, f"summary {i}, compared with the first").discount(enhancing)
            for i, other in enumerate(others, start=2)
        ]
        room = max(summary.room for summary in (ours, *theirs))
        wanted = max(summary.n_components for summary in (ours, *theirs))
        with_rows = [summary for summary in (ours, *theirs) if summary.n]
        if len(with_rows) < 2:
            return replace((with_rows or [ours])[0], n_components=wanted, room=room)
        ours, *theirs = with_rows
        at, squares, rows = ours.at, ours.squares, [ours.directions[:0]]
        with np.errstate(over="ignore", invalid="ignore"):
            for other in theirs:
                at, row = at.join(other.at)
                squares = squares + other.squares + _squares(row)
                rows += [other.known.rows(), row]
            _finite(squares)
        # all at once, so that directions are cut off once and not after each summary
        their_rows = Centered(np.vstack(rows))
        known = ours.known.append(their_rows, their_rows.rows[:0], room)
        # nobody knows in which directions each summary has lost rows, so the bounds add up
        missing = known.missing + sum(other.known.dropped for other in theirs)
        return replace(
            self,
            at=at,
            squares=squares,
            known=known._replace(missing=missing),
            n_components=wanted,
            room=room,
        )

    def check_alike(self, other: Self, where: str) -> Self:
        """Return the other summary with columns in this summary's order, or refuse a mismatch."""
        if not isinstance(other, Summary):
            raise InputError(f"{where}: expected a Summary, not {type(other).__name__}")
        if self.centered != other.centered:
            ways = ("about zero", "about the mean")
            raise InputError(
                f"{where}: one is {ways[other.centered]} and the other {ways[self.centered]}; "
                "center both or neither"
            )
        order = matching_order(self, other, where)
        if order is None:
            return other
        at = Mean(other.n, other.at.high[order], other.at.low[order])
        known = other.known._replace(directions=other.directions[:, order])
        return replace(
            other, at=at, squares=other.squares[order], known=known, features=self.features
        )

    def discount(self, factor: float) -> Self:
        """Return the summary with singular values times ``factor``, weights times ``factor**2``."""
        if not factor > 0:
            raise InputError(f"a factor of {factor} discards all rows; use a factor above 0")
        if factor == 1:
            return self
        at = self.at._replace(n=factor**2 * self.n)
        squares, known = factor**2 * self.squares, self.known.discount(factor)
        return replace(self, at=at, squares=squares, known=known)

    def truncate(self, room: int) -> Self:
        """Return the summary with at most ``room`` directions, now and after later updates."""
        if room < 1:
            raise InputError(f"room={room} leaves no directions; use at least 1")
        return self.resize(min(self.n_components, int(room)), int(room))

    def resize(self, n_components: int, room: int) -> Self:
        """Return the summary with ``n_components`` directions wanted and at most ``room`` carried."""
        known = self.known.truncate(room)
        return replace(self, known=known, n_components=n_components, room=room)

    def to_arrays(self) -> Arrays:
        """Return the summary's numbers as named arrays with the shapes in `SHAPES`."""
        return {
            "n": np.array(self.n),
            "mean": self.at.high,
            "mean_rest": self.at.low,
            "squares": self.squares,
            "directions": np.ascontiguousarray(self.directions),
            "singular_values": self.singular_values,
            "tail": np.array(self.known.tail),
            "missing": np.array(self.known.missing),
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays, **others: Any) -> Self:
        """Return a summary from its arrays (see `to_arrays`); ``others`` are its remaining fields."""
        at = Mean(float(arrays["n"]), arrays["mean"], arrays["mean_rest"])
        tail, missing = float(arrays["tail"]), float(arrays["missing"])
        known = LowRank(arrays["directions"], arrays["singular_values"], tail, missing)
        return cls(at=at, squares=arrays["squares"], known=known, **others)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the summary to a file that `Summary.load` can read."""
        from fedpca.summary.file import write_summary

        write_summary(path, self)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Summary:
        """Return the summary in a file after validating it."""
        from fedpca.summary.file import read_summary

        return read_summary(path)


MERGE_FAN_IN = 32  # summaries to merge in one step if they have many directions
MAX_STACKED = 2000  # directions to merge in one step


def merge_in_tree(summaries: Sequence[Summary], fan_in: int | None = None) -> Summary:
    """Merge all summaries ``fan_in`` at a time, level by level.

    By default, one step merges all summaries and truncates only once. If the summaries carry more than
    a few thousand directions in total, 32 are merged at a time, since the time for one step grows with
    the cube of the number of directions.
    """
    if not summaries:
        raise InputError("there are no summaries to merge; pass at least 1")
    if fan_in is not None and fan_in < 2:
        raise InputError(f"fan_in={fan_in} merges nothing; use at least 2")
    level = list(summaries)
    while len(level) > 1:
        step = fan_in or (len(level) if _n_directions(level) <= MAX_STACKED else MERGE_FAN_IN)
        groups = [level[i : i + step] for i in range(0, len(level), step)]
        level = [first.merge(*others) for first, *others in groups]
    return level[0]


def _n_directions(summaries: Sequence[Summary]) -> int:
    return sum(len(summary.singular_values) for summary in summaries)


def _finite(squares: Array) -> Array:
    if not np.isfinite(squares.sum()):
        raise NotFinite
    return squares


def _squares(row: Array) -> Array:
    return np.asarray((row**2).sum(axis=0))
