"""Hold a coordinator to the thresholds that the methods of robust PCA use, and to their histograms.

A coordinator that may choose thresholds freely can single out rows: the sums of two rounds differ
by the rows between their thresholds. So a site that follows a plan remembers the last threshold of
a fit. The next one is the same, or it is lower by a step that the method takes. A histogram for a
median divides a bin of the previous histogram, and no other bin.

A site whose policy allows everything checks nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import PolicyRefused
from fedpca.models.robust import TIMES_MEDIAN
from fedpca.solvers.robust.medians import BITS, FIRST_SHIFT, KINDS, same_bin

if TYPE_CHECKING:
    from fedpca.site.site import Site

SLACK = 1e-9  # rounding, as a share of a threshold


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of a fit so far, which a site remembers."""

    most: float  # the first one after a center and scale were set; no later one is larger
    first: float  # the first one of the current fit
    last: float

    def next(self, threshold: float, decay: float, least_step: float) -> Thresholds:
        """Return the thresholds, updated with the next one.

        It must equal the last one, or be lower by one step of the method.
        """
        low, high = decay * self.last * (1 - SLACK), self.last / least_step * (1 + SLACK)
        if threshold != self.last and not low <= threshold <= high:
            raise PolicyRefused(
                f"threshold={threshold:.6g} comes after {self.last:.6g} in the same fit; it must be "
                f"the same, or between {decay:g} and {1 / least_step:.3g} times the last one"
            )
        return replace(self, last=threshold)


def follow_threshold(
    site: Site, threshold: Array, *, decay: float, least_step: float = 1.0, is_first: bool = False
) -> float:
    """Check and remember a round's threshold; return the first threshold of its fit.

    If the previous question was a different one, this round begins a fit, and may start from scratch.
    """
    value = float(threshold)
    if site.policy.is_open:
        return value
    *before, name = site.asked
    begins = not before or before[-1] != name
    if is_first and not begins:
        raise PolicyRefused("is_first must be 0 after the first round of a fit, got 1")
    known = site.recall(Thresholds) if site.remembers(Thresholds) else None
    if known is None or not known.most:
        known = Thresholds(value, value, value)
    elif begins:
        refuse_larger(value, known.most)
        known = Thresholds(known.most, value, value)
    else:
        known = known.next(value, decay, least_step)
    site.remember(known)
    return known.first


def forget_thresholds(site: Site) -> None:
    """Forget the thresholds of earlier fits, since the sites leave out rows from now on."""
    if not site.policy.is_open:
        site.remember(Thresholds(0.0, 0.0, 0.0))


def check_last_threshold(site: Site, threshold: Array) -> None:
    """Refuse a threshold at the end of a fit that is larger than the fit's own thresholds allow."""
    if not site.policy.is_open and site.remembers(Thresholds):
        refuse_larger(float(threshold), TIMES_MEDIAN * site.recall(Thresholds).most)


def check_reach(site: Site, reach: Array, threshold: Array, first: float) -> None:
    """Refuse a reach other than zero, the round's threshold, or the first one of the fit."""
    if not site.policy.is_open and not np.isin(reach, (0.0, float(threshold), first)).all():
        raise PolicyRefused("reach must be 0, the threshold, or the first threshold of the fit")


def refuse_larger(threshold: float, most: float) -> None:
    """Refuse a threshold beyond a bound."""
    if threshold > most * (1 + SLACK):
        raise PolicyRefused(
            f"threshold={threshold:.6g} must be at most {most:.6g}, as earlier rounds require"
        )


@dataclass(frozen=True)
class Narrowing:
    """The bins in which a site has counted each feature's values, which the site remembers."""

    of: int  # what was counted, as a position in KINDS
    about: Array  # (d,)
    guess: Array  # (d,), a number in the bin
    shift: Array  # (d,), of the bins; negative for features that were not counted
    medians: Array  # (d,), a number in the last bin of each feature's values
    median_shift: Array  # (d,)


def follow_bins(
    site: Site, features: Array, about: Array, guess: Array, shift: int, of: int
) -> None:
    """Check that a histogram divides a bin of the previous one, and remember its bins."""
    if site.policy.is_open:
        return
    d = site.rows.n_features
    if (
        not len(features)
        or (np.diff(features) <= 0).any()
        or not 0 <= features[0] <= features[-1] < d
    ):
        raise PolicyRefused("features must be positions of columns, in ascending order")
    known = site.recall(Narrowing) if site.remembers(Narrowing) else None
    if shift == FIRST_SHIFT:
        known = _first_bins(known, d, features, about, guess, of)
    elif known is None or of != known.of or (known.about[features] != about).any():
        raise PolicyRefused(
            "a histogram must count what the previous one did, about the same point"
        )
    elif not ((known.shift[features] == shift + BITS).all()) or shift < 0:
        raise PolicyRefused("a histogram must divide the bins of the previous one")
    elif not same_bin(guess, known.guess[features], shift + BITS).all():
        raise PolicyRefused("a guess must be in the bin of the previous guess")
    shifts, guesses = known.shift.copy(), known.guess.copy()
    shifts[features], guesses[features] = shift, guess
    medians, median_shift = known.medians, known.median_shift
    if not of:
        medians, median_shift = guesses, shifts
    site.remember(Narrowing(of, known.about, guesses, shifts, medians, median_shift))


def _first_bins(
    known: Narrowing | None, d: int, features: Array, about: Array, guess: Array, of: int
) -> Narrowing:
    """Return the state before the first histogram of a kind; refuse one that is out of turn."""
    expected = 0 if known is None else known.of + 1
    if of != expected or of >= len(KINDS):
        raise PolicyRefused(
            f"a histogram of {KINDS[of]} is out of turn; count each kind once, in order"
        )
    if guess.any() or (of < 2 and len(features) < d):
        raise PolicyRefused("the first histogram of a kind must have guesses of 0 for all columns")
    if known is None:
        if about.any():
            raise PolicyRefused("the values of columns must be counted about 0")
        begun = Narrowing(0, np.zeros(d), np.zeros(d), np.full(d, -1), np.zeros(d), np.full(d, -1))
    else:
        if not same_bin(about, known.medians[features], known.median_shift[features]).all():
            raise PolicyRefused("distances must be counted about the medians that were found")
        if of == 2 and (known.about[features] != about).any():
            raise PolicyRefused(
                "distances above zero must be counted about the same points as all distances"
            )
        begun = known
    everywhere = begun.about.copy()
    everywhere[features] = about
    return replace(begun, of=of, about=everywhere, shift=np.full(d, -1))
