"""A check of rows finds what would stop a fit, and a fit agrees."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from fedpca import FederatedPCA, RobustPCA
from fedpca.errors import InputError
from fedpca.rows import in_memory
from fedpca.rows.check import examine, findings_at, findings_between, refuse_unfit
from fedpca.rows.open import open_rows
from support import NAMES, gapped_rows

X = gapped_rows(np.random.default_rng(0), 40, 4, 2)


def changed(row, column, value):
    Y = X.copy()
    Y[row, column] = value
    return Y


def texts(rows, **options):
    return [f.text for f in findings_at("a", examine(open_rows(rows)), **options) if f.stops_fit]


@pytest.mark.parametrize(
    "make", [np.asarray, sp.csr_array, lambda Y: pd.DataFrame(Y, columns=NAMES)]
)
@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (changed(3, 1, np.nan), "contains NaN in columns (b|1); .*--allow-missing"),
        (changed(3, 1, np.inf), "contains infinity in columns (b|1)"),
        (changed(3, 1, 1e200), r"columns (b|1) have values beyond 1e\+68"),
        (changed(3, 1, 1e80), r"columns (b|1) have values beyond 1e\+68"),
        (X, None),
        (changed(slice(None), 2, 7.0), None),
    ],
)
@pytest.mark.parametrize("block_bytes", [1 << 20, 5 * 8 * 4])
def test_what_stops_a_fit_is_found_and_nothing_else(make, rows, text, block_bytes, monkeypatch):
    monkeypatch.setattr(in_memory, "BLOCK_BYTES", block_bytes)
    found = texts(make(rows))
    if text is None:
        assert found == []
        FederatedPCA(2).fit([make(rows)])
        return
    assert len(found) == 1
    with pytest.raises(InputError, match=text):
        refuse_unfit(findings_at("a", examine(open_rows(make(rows)))))
    with pytest.raises(InputError):
        FederatedPCA(2).fit(in_two(make(rows)))


def in_two(rows):
    return {"a": rows, "b": rows}


def test_gaps_do_not_stop_a_robust_fit_but_infinity_does():
    assert texts(changed(3, 1, np.nan), allow_missing=True) == []
    RobustPCA(1).fit({"a": changed(3, 1, np.nan), "b": X})
    assert "infinity" in texts(changed(3, 1, np.inf), allow_missing=True)[0]
    with pytest.raises(InputError):
        RobustPCA(1).fit({"a": changed(3, 1, np.inf), "b": X})


@pytest.mark.parametrize("make", [np.asarray, sp.csr_array])
def test_constant_columns_are_notes(make):
    Y = X.copy()
    Y[:, 1], Y[:, 2] = 0.0, 5.0
    (note,) = findings_at("a", examine(open_rows(make(Y))))
    assert not note.stops_fit
    assert "constant columns: 1, 2; unless they vary at other sites" in note.text


def test_a_column_that_counts_the_rows_is_pointed_out(monkeypatch):
    monkeypatch.setattr(in_memory, "BLOCK_BYTES", 5 * 8 * 5)
    frame = pd.DataFrame(X, columns=NAMES).assign(row=np.arange(100, 140))
    (note,) = findings_at("a", examine(open_rows(frame)))
    assert "columns that number the rows: row" in note.text
    assert "--id" in note.text
    frame["row"] = frame["row"].sample(frac=1, random_state=0).to_numpy()
    assert findings_at("a", examine(open_rows(frame))) == []


def test_columns_that_differ_between_sites_and_too_few_rows_are_found():
    tables = {
        "north": pd.DataFrame(X, columns=NAMES),
        "south": pd.DataFrame(X[:, :3], columns=NAMES[:3]),
        "west": X,
        "east": pd.DataFrame(X[:, ::-1], columns=NAMES[::-1]),
    }
    found = findings_between({name: examine(open_rows(rows)) for name, rows in tables.items()})
    assert [finding.where for finding in found] == ["south", "west"]
    assert "1 missing (d)" in found[0].text
    assert "--columns or --drop" in found[0].text
    (few,) = findings_between({"a": examine(open_rows(X[:1])), "b": examine(open_rows(X[:0]))})
    assert "1 rows in all; a fit needs at least 2" in few.text
    assert few.stops_fit
    assert findings_between({}) == []


def test_types_of_columns_are_those_in_the_file(tmp_path):
    frame = pd.DataFrame({"a": [1, 2], "b": [0.5, 1.5], "c": [True, False]})
    frame.to_parquet(tmp_path / "x.parquet")
    assert examine(open_rows(tmp_path / "x.parquet")).dtypes == ("int64", "double", "bool")
    frame[["b", "a", "c"]].astype(float).to_parquet(tmp_path / "y.parquet")
    joined = examine(open_rows(tmp_path))
    assert joined.dtypes == ("double or int64", "double", "bool or double")
