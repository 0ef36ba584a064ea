"""Measure how much each site moves the components if the coordinator sees each site's part anyway.

    C = sum_i P_i'P_i + between,   without site i:   C - P_i'P_i - n_i n / (n - n_i) (m_i - m)(m_i - m)'

The rows P_i are a site's factor or its summary, about its own mean m_i. The last term is what the site
adds to the variance between sites; it is zero if all sites' rows are about the same mean. Measuring
this costs no round. It is skipped if it would take the coordinator too long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedpca.arrays import Array
from fedpca.coordinator.federation import Federation
from fedpca.coordinator.record import shares_of
from fedpca.linalg.dense import sine_of_angle, top_eigen
from fedpca.summary.summary import Summary

MAX_FLOPS = 2e9  # operations; they take about a second


class SitePart(NamedTuple):
    """A site's rows about its mean, ``(r, d)``, its row count, and its mean minus that of all rows."""

    rows: Array
    n: float
    away: Array  # (d,)


def report_angles(
    fed: Federation, V: Array, n_rows: int, parts: Callable[[], Sequence[SitePart]]
) -> None:
    """Record the angle by which V, ``(d, k)``, moves without each site, if finding it is quick.

    ``parts`` returns the sites' parts in site order; they have ``n_rows`` rows in total.
    """
    names, d = fed.record.sites, len(V)
    stacked = n_rows + len(names)  # with a row for each mean
    width = min(stacked, d)
    if len(names) > 1 and stacked * width * d + 4 * len(names) * width**3 <= MAX_FLOPS:
        fed.report_influence("angle", dict(zip(names, angles_without(parts(), V), strict=True)))


def angles_without(parts: Sequence[SitePart], V: Array) -> list[float]:
    """Return, for each site left out, the sine of the largest angle by which V, ``(d, k)``, moves."""
    return [angle for angle, _ in without_each(parts, V)]


def without_each(
    parts: Sequence[SitePart], V: Array, *, is_centered: bool = True
) -> Iterator[tuple[float, Array]]:
    """Yield, for each site left out, the sine of an angle and the leading directions, ``(d, k)``.

    The angle is the largest one by which V moves. If rows are not centered, leaving out a site moves no
    mean. Without the only site that has rows, nothing is left; the sine is then 1, and the directions
    are V.
    """
    n, d, k = sum(part.n for part in parts), len(V), V.shape[1]
    rows = [np.vstack([part.rows, np.sqrt(part.n) * part.away]) for part in parts]
    whole, Q = V, None
    if sum(len(each) for each in rows) < d:  # coordinates in the span of all rows suffice
        Q, _ = np.linalg.qr(np.vstack(rows).T)
        rows, V = [each @ Q for each in rows], Q.T @ V
    grams = [each.T @ each for each in rows]
    C = np.sum(grams, axis=0)
    for part, each, gram in zip(parts, rows, grams, strict=True):
        others = n - part.n
        if others <= 0 or k > len(C):
            yield 1.0, whole
            continue
        moved = part.n / others * np.outer(each[-1], each[-1]) if is_centered else 0.0
        _, left = top_eigen(C - gram - moved, k)
        yield sine_of_angle(V, left), left if Q is None else Q @ left


def report_summaries(fed: Federation, sites: Sequence[Summary], merged: Summary, V: Array) -> None:
    """Record each site's share of the variance and the angle by which V moves without the site."""

    def away(site: Summary) -> Array:
        if not merged.centered:
            return np.zeros(merged.n_features)
        return np.asarray((site.at.high - merged.at.high) + (site.at.low - merged.at.low))

    def energy(site: Summary) -> float:
        return site.energy + site.n * float(np.sum(away(site) ** 2))

    def parts() -> list[SitePart]:
        return [SitePart(site.known.rows(), site.n, away(site)) for site in sites]

    energies = dict(zip(fed.record.sites, map(energy, sites), strict=True))
    fed.report_influence("variance", shares_of(energies))
    report_angles(fed, V, sum(len(site.singular_values) for site in sites), parts)


def report_caused(fed: Federation, within: Mapping[str, float], energy: float) -> None:
    """Record the share of the variance that would vanish without each site, if it is known.

    ``within`` holds each site's sum of squares about its own mean, and ``energy`` is the sum of
    squares of all rows about the common mean. A site with a distant mean also moves the common
    mean, which adds to the squares of all other sites. So without site i,
    ``n_i n / (n - n_i) |m_i - m|^2`` would vanish in addition to the squares within the site.
    """
    for name, own in within.items():
        known = fed.record.influence.get(name, {})
        weight = known.get("weight", known.get("rows", 1.0))
        if "variance" in known and weight < 1 and energy > 0:
            between = max(0.0, known["variance"] * energy - own)
            caused = (own + between / (1 - weight)) / energy
            fed.report_influence("caused", {name: min(1.0, caused)})
