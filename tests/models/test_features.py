"""Loadings, contributions, and squared cosines carry the names of features and components."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedpca import FederatedPCA, StreamingPCA
from fedpca.errors import InputError
from support import gapped_rows

NAMES = ["a", "b", "c", "d", "e"]
ROWS = gapped_rows(np.random.default_rng(0), 80, 5, 2) * [1, 2, 3, 4, 5]
FRAME = pd.DataFrame(ROWS, columns=NAMES)


def test_tables_have_the_names_of_the_fit():
    model = FederatedPCA(2).fit(FRAME)
    loadings = model.loadings()
    assert loadings.features == tuple(NAMES)
    assert loadings.components == ("pc1", "pc2")
    np.testing.assert_array_equal(loadings, model.components_.T)
    assert loadings["c"] == {"pc1": model.components_[0, 2], "pc2": model.components_[1, 2]}
    largest = int(np.abs(model.components_[0]).argmax())
    assert loadings.leading("pc1", 1) == {NAMES[largest]: model.components_[0, largest]}
    assert pd.DataFrame(loadings.to_dict()).shape == (5, 2)
    assert StreamingPCA(2).fit(ROWS).loadings().features[4] == "column 4"
    with pytest.raises(InputError, match="no feature 'z'"):
        loadings["z"]
    with pytest.raises(InputError, match="no component 'pc3'; the components are pc1, pc2"):
        loadings.leading("pc3")


def test_contributions_to_a_component_add_up_to_one():
    contributions = FederatedPCA(3).fit(FRAME).contributions().values
    np.testing.assert_allclose(contributions.sum(axis=0), 1)


def test_cos2_of_all_components_add_up_to_one():
    X = np.column_stack([ROWS, np.full(80, 7.0)])
    for scale in (False, True):
        share = FederatedPCA(6, scale=scale).fit(X).cos2().values
        np.testing.assert_allclose(share[:5].sum(axis=1), 1)
        assert (share[5] == 0).all()  # a feature without variance


def test_variances_must_be_given_where_they_do_not_follow():
    model = FederatedPCA(2).fit(ROWS)
    with pytest.raises(InputError, match="does not follow from the model; pass feature_variances"):
        model.cos2()
    share = model.cos2(ROWS.var(axis=0, ddof=1)).values
    scores = model.transform(ROWS)
    exact = np.corrcoef(ROWS.T, scores.T)[:5, 5:] ** 2
    np.testing.assert_allclose(share, exact)
    for wrong in (np.ones(4), -np.ones(5)):
        with pytest.raises(InputError, match="must be 5 nonnegative numbers"):
            model.cos2(wrong)
