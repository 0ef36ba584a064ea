"""The shell loses sites that refuse, or stops at them, as Python does."""

from __future__ import annotations

import numpy as np
import pytest

from command_line import ROWS, run
from fedpca import load


@pytest.fixture
def files(tmp_path):
    bad = ROWS.copy()
    bad[0, 0] = np.nan
    parts = {"north": ROWS[:40], "south": ROWS[40:], "west": bad}
    for name, rows in parts.items():
        np.save(tmp_path / f"{name}.npy", rows)
    return [tmp_path / f"{name}.npy" for name in parts]


def test_a_fit_with_a_quorum_goes_on_without_a_file_that_no_fit_can_use(files, tmp_path):
    output = tmp_path / "m.fedpca"
    done = run("fit", *files, "-k", "2", "--quorum", "2", "-o", output)
    assert done.exit_code == 0, done.stderr
    model = load(output)
    assert model.run_.sites == ("north", "south")
    (loss,) = model.run_.lost
    assert loss["site"] == "west"
    assert "contains NaN" in loss["reason"]


@pytest.mark.parametrize(
    "options", [(), ("--quorum", "3"), ("--quorum", "2", "--on-refusal", "stop")], ids=str
)
def test_without_a_quorum_or_if_asked_to_the_fit_stops_and_says_why(files, tmp_path, options):
    done = run("fit", *files, "-k", "2", *options, "-o", tmp_path / "m.fedpca")
    assert done.exit_code == 2
    assert "site 'west'" in done.stderr
    assert not (tmp_path / "m.fedpca").exists()


def test_another_word_is_refused(files, tmp_path):
    done = run("fit", *files, "-k", "2", "--on-refusal", "wait", "-o", tmp_path / "m.fedpca")
    assert done.exit_code == 2
    assert "must be one of lose, stop" in " ".join(done.stderr.split())
