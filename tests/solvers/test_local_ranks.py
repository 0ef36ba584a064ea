"""The number of local components, as users, files and messages give it."""

from __future__ import annotations

import numpy as np
import pytest

from fedpca.errors import InputError
from fedpca.solvers.personalized.local_ranks import LocalRanks


@pytest.mark.parametrize("given", [2, np.int64(2), {"a": 1, "b": 3}, {1: np.int32(4)}])
def test_ranks_survive_a_message_and_a_file(given):
    ranks = LocalRanks.of(given)
    assert LocalRanks.from_bytes(ranks.to_bytes()) == ranks
    assert LocalRanks.of(ranks.plain) == ranks


def test_a_site_has_its_own_number_or_the_common_one():
    assert LocalRanks.of(2).at("anywhere") == LocalRanks.of(2).most == 2
    ranks = LocalRanks.of({"a": 1, "b": 3})
    assert (ranks.at("a"), ranks.at("b"), ranks.most, ranks.least) == (1, 3, 3, 1)
    with pytest.raises(InputError, match="no entry for site 'c'"):
        ranks.at("c")


@pytest.mark.parametrize("bad", [-1, 1.5, True, None, "2", {"a": -2}, {"a": 1.0}])
def test_other_values_are_named(bad):
    with pytest.raises(InputError, match=r"n_local.* must be a whole number of at least 0"):
        LocalRanks.of(bad)


def test_sites_and_features_bound_the_numbers():
    LocalRanks.of(3).check_sites(["a", "b"])
    LocalRanks.of({"a": 3}).check_sites(["a"])
    with pytest.raises(InputError, match=r"entries for \['a'\], but the sites are \['a', 'b'\]"):
        LocalRanks.of({"a": 3}).check_sites(["a", "b"])
    LocalRanks.of({"a": 3, "b": 1}).check_features(2, 5)
    with pytest.raises(InputError, match="n_shared=3 plus n_local=3 for site 'a' exceeds"):
        LocalRanks.of({"a": 3, "b": 1}).check_features(3, 5)
    with pytest.raises(InputError, match="n_shared=3 plus n_local=3 exceeds n_features=5"):
        LocalRanks.of(3).check_features(3, 5)
    LocalRanks.of({"a": 0, "b": 1}).check_features(0, 5)
    with pytest.raises(InputError, match="n_shared=0 and n_local=0 leave no components"):
        LocalRanks.of({"a": 0, "b": 0}).check_features(0, 5)
