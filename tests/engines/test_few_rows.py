"""Sites of their own processes keep few rows to themselves, between runs and after a restart."""

from __future__ import annotations

import numpy as np
import pytest

from fedpca import FederatedPCA
from fedpca.errors import PolicyRefused
from processes import Processes, until

pytestmark = pytest.mark.process
RNG = np.random.default_rng(3)
PATIENTS = np.column_stack([RNG.normal(size=(60, 3)), np.arange(60) == 7])
NAMES = ["age", "weight", "pressure", "hiv"]
DROP = ("--drop", "hiv")


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    folder = tmp_path_factory.mktemp("few")
    write(folder, "south", np.column_stack([RNG.normal(size=(50, 3)), np.arange(50) % 2]))
    processes = Processes(folder, ("north", "south"))
    yield processes
    processes.stop_all()


def write(folder, site, rows):
    header = ",".join(NAMES)
    np.savetxt(folder / f"{site}.csv", rows, "%.17g", ",", header=header, comments="")


def fit(there):
    with there.federation(sites=["north", "south"]) as fed:
        return FederatedPCA(2, random_state=0).fit(fed)


def test_a_flag_that_one_patient_has_is_named_and_refused_until_all_drop_it(there):
    write(there.folder, "north", PATIENTS)
    sites = [
        there.join(site, f"{site}.csv", "--folder", f"a-{site}") for site in ("north", "south")
    ]
    with pytest.raises(PolicyRefused) as refused:
        fit(there)
    assert "site 'north', round 2" in str(refused.value)
    assert "in columns hiv, so a sum over such a column gives these rows away" in str(refused.value)
    log = there.log(sites[0])
    assert "differ from the most frequent value in columns hiv, and a site whose policy has" in log
    assert "not answered: fewer than 5 rows differ" in log
    assert 'the default policy: allow = ["federated"], gather = false, min_count = 5' in log
    for site in sites:
        there.stop(site)
    sites = [
        there.join(site, f"{site}.csv", "--folder", f"a-{site}", *DROP)
        for site in ("north", "south")
    ]
    model = fit(there)
    assert model.n_features_in_ == 3
    assert model.site_variance_ratio_ == {}
    for site in sites:
        there.stop(site)


def test_a_patient_who_was_added_between_two_runs_stays_hidden_after_a_restart(there):
    south = there.join("south", "south.csv", "--folder", "b-south", *DROP)

    def join():
        return there.join("north", "north.csv", "--folder", "b-north", *DROP)

    write(there.folder, "north", PATIENTS[:40])
    north = join()
    first = fit(there)
    write(there.folder, "north", PATIENTS[:41])
    with pytest.raises(PolicyRefused, match=r"site 'north'.*min_change=5"):
        fit(there)
    there.stop(north)
    north = join()
    with pytest.raises(PolicyRefused, match=r"site 'north'.*min_change=5"):
        fit(there)
    until(lambda: "min_change=5" in there.log(north), "the site's note of its refusal")
    write(there.folder, "north", PATIENTS[:40])
    assert fit(there).components_.tobytes() == first.components_.tobytes()
    write(there.folder, "north", PATIENTS[:45])
    assert fit(there).n_samples_ == 95
    for site in (north, south):
        there.stop(site)


def test_a_budget_that_is_spent_stays_spent_after_a_restart(there):
    south = there.join("south", "south.csv", "--folder", "c-south", *DROP)
    (there.folder / "two.toml").write_text("max_runs_per_day = 2\nend = true\n")

    def join():
        where = ("--folder", "c-north", "--policy", "two.toml")
        return there.join("north", "north.csv", *where, *DROP)

    write(there.folder, "north", PATIENTS[:40])
    north = join()
    fit(there)
    there.stop(north)
    north = join()
    fit(there)
    for _ in range(2):
        with pytest.raises(
            PolicyRefused, match=r"site 'north'.*2 runs in 24 hours.*max_runs_per_day"
        ):
            fit(there)
        there.stop(north)
        north = join()
    for site in (north, south):
        there.stop(site)
