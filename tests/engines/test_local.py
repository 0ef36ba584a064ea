"""Within one process, too, a second fit on the same sites is refused and does not end the first."""

from __future__ import annotations

import numpy as np
import pytest

from fedpca import FederatedPCA, Federation, Site
from fedpca.errors import SitesBusy
from fedpca.solvers.standardize import column_names

ROWS = np.random.default_rng(4).normal(size=(60, 5)) * [1, 2, 3, 4, 5]
MODEL = {"n_components": 2, "solver": "lanczos", "random_state": 0}


def sites():
    halves = zip(("north", "south"), np.split(ROWS, 2), strict=True)
    return {name: Site(rows, name=name) for name, rows in halves}


def interrupted(federation, intrude):
    """A fit in the middle of which something else is tried."""
    refusals = []

    def on_round(entry):
        if entry["round"] == 3:
            with pytest.raises(SitesBusy) as refusal:
                intrude()
            refusals.append(str(refusal.value))

    federation.on_round = on_round
    model = FederatedPCA(**MODEL).fit(federation)
    assert len(refusals) == 1
    federation.on_round = None
    return model, refusals[0]


@pytest.mark.parametrize("what", ["a fit", "a question", "the same federation", "the same engine"])
def test_a_second_fit_on_the_same_sites_is_refused(what):
    shared = sites()
    first, second = Federation.local(shared), Federation.local([shared["south"]])
    intrusions = {
        "a fit": lambda: FederatedPCA(2).fit(second),
        "a question": lambda: second.gather(column_names),
        "the same federation": lambda: FederatedPCA(2).fit(first),
        "the same engine": lambda: FederatedPCA(2).fit(Federation(first.engine)),
    }
    model, text = interrupted(first, intrusions[what])
    whole = FederatedPCA(**MODEL).fit(Federation.local(sites()))
    assert model.components_.tobytes() == whole.components_.tobytes()
    assert list(model.run_.ledger) == list(whole.run_.ledger)
    assert "is using" in text
    assert FederatedPCA(2).fit(second).run_.sites == ("south",)  # now that the first has ended
    assert FederatedPCA(2).fit(first).run_.sites == ("north", "south")


def test_a_fit_that_fails_gives_its_sites_back():
    def on_round(entry):
        raise KeyboardInterrupt

    shared = sites()
    with pytest.raises(KeyboardInterrupt):
        FederatedPCA(2).fit(Federation.local(shared, on_round=on_round))
    assert FederatedPCA(2).fit(Federation.local(shared)).run_.sites == ("north", "south")


def test_questions_outside_of_a_run_keep_no_site():
    shared = sites()
    first, second = Federation.local(shared), Federation.local(shared)
    assert set(first.gather(column_names)) == set(second.gather(column_names)) == set(shared)
    assert FederatedPCA(2).fit(second).run_.sites == ("north", "south")
