"""The chance that honest sites fall into parts is what the page on privacy says."""

from __future__ import annotations

import importlib.util
from itertools import permutations
from math import exp
from pathlib import Path

import numpy as np
import pytest

from fedpca.privacy.masks import MAX_ALL_PAIRS, N_RINGS, neighbors

EXAMPLE = Path(__file__).parents[2] / "examples" / "secure_sums.py"
PAGE = Path(__file__).parents[2] / "docs" / "privacy.md"


@pytest.fixture(scope="module")
def figures():
    spec = importlib.util.spec_from_file_location("secure_sums", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("n", "c", "s"), [(7, 3, 1), (7, 3, 2), (7, 2, 2), (8, 4, 3), (6, 1, 2)])
def test_the_chance_that_a_ring_keeps_sites_apart_is_counted_right(figures, n, c, s):
    """All rings are drawn; the first c sites collude, and the next s are looked at."""
    part, rest = set(range(c, c + s)), set(range(c + s, n))
    apart = total = 0
    for order in permutations(range(1, n)):
        ring = (0, *order)
        pairs = zip(ring, (*order, 0), strict=True)
        total += 1
        apart += not any({a, b} & part and {a, b} & rest for a, b in pairs)
    assert exp(figures.log_chance_apart(n, c, s)) == pytest.approx(apart / total)


def test_half_of_a_thousand_sites_cannot_part_the_others(figures):
    assert figures.log2_chance_of_parts(1000, 500) < -54
    assert figures.log2_chance_of_parts(MAX_ALL_PAIRS + 1, (MAX_ALL_PAIRS + 1) // 2) < -54
    # with a single ring, the bound says nothing
    assert figures.log2_chance_of_parts(1000, 500, rings=1) > 0


def test_honest_sites_of_a_drawn_graph_are_connected():
    names = [f"site-{i}" for i in range(200)]
    near = {name: set(neighbors(name, names, b"seed")) for name in names}
    assert all(name in near[other] for name in names for other in near[name])
    assert max(map(len, near.values())) <= 2 * N_RINGS
    honest = set(np.random.default_rng(0).choice(names, 100, replace=False))
    reached, ahead = set(), [min(honest)]
    while ahead:
        name = ahead.pop()
        reached.add(name)
        ahead += [other for other in near[name] & honest if other not in reached]
    assert reached == honest


@pytest.mark.slow
def test_the_page_on_privacy_has_the_figures(figures, capsys):
    figures.main()
    page = PAGE.read_text()
    chances = capsys.readouterr().out.split("\n\n")[0]  # what follows may differ in a last digit
    assert chances in page, "run: python examples/secure_sums.py"
