"""Questions tell in words what they do."""

from __future__ import annotations

import re

import numpy as np
import pytest

import fedpca.solvers  # noqa: F401  (registers all questions)
from fedpca import FederatedPCA, Federation, PersonalizedPCA, Policy, RobustPCA, Site
from fedpca.errors import FedpcaError
from fedpca.protocol.question import _REGISTRY, question

OWN = [q for q in _REGISTRY.values() if q.package == "fedpca"]


@pytest.mark.parametrize("asked", OWN, ids=lambda q: q.name)
def test_every_question_says_what_it_does(asked):
    assert re.match(r"[a-z]+ing [a-z]", asked.doing)
    assert "_" not in asked.doing


def test_a_question_of_another_package_is_told_by_its_name_in_words():
    @question(answers={"n": "int64"})
    def count_the_sheep(site):
        return {"n": np.int64(0)}

    del _REGISTRY["count_the_sheep"]
    assert count_the_sheep.doing == "answering 'count the sheep'"


def test_a_question_says_what_a_site_does_in_known_words():
    with pytest.raises(ValueError, match="work='guess' must be one of , scatter"):
        question(answers={"n": "int64"}, work="guess")(lambda site: {"n": np.int64(0)})


@pytest.mark.parametrize(
    "estimator",
    [FederatedPCA(2), PersonalizedPCA(1, 1), RobustPCA(2)],
    ids=lambda e: type(e).__name__,
)
@pytest.mark.parametrize("kind", ["infinite", "few rows", "one site"])
def test_no_error_names_a_question(estimator, kind):
    rows = np.random.default_rng(0).normal(size=(20, 4))
    if kind == "infinite":
        rows[3, 1] = np.inf
    rules = {"few rows": {"min_rows": 50}, "one site": {"min_sites": 9}}.get(kind)
    allow = ("federated", "personalized", "robust")
    policy = None if rules is None else Policy(allow=allow, **rules)
    with pytest.raises(FedpcaError, match=r"site 'a', round \d+, while \w+ing ") as caught:
        estimator.fit(Federation.local({"a": Site(rows, name="a", policy=policy)}))
    names = {q.name for q in OWN if "_" in q.name}
    assert not [name for name in names if name in str(caught.value)]
