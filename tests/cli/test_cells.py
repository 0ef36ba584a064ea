"""Single cells from the shell, and results where scanpy puts them."""

from __future__ import annotations

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from command_line import run
from fedpca import (
    FederatedPCA,
    PersonalizedPCA,
    RobustPCA,
    Site,
    StreamingPCA,
    Summary,
    load,
    to_anndata,
)
from fedpca.errors import InputError
from fedpca.models import scanpy_results

GENES = [f"g{i}" for i in range(8)]


@pytest.fixture
def labs(tmp_path):
    """Files of two labs with counts in a layer, whose genes are in different orders."""
    rng = np.random.default_rng(0)
    rates = np.exp(rng.normal(size=(60, 2)) @ rng.normal(size=(2, 8)) / 2)
    paths = []
    for lab, own in (("north", slice(0, 25)), ("south", slice(25, 60))):
        X = sp.csr_matrix(rng.poisson(rates[own]).astype(np.float32))
        adata = anndata.AnnData(
            sp.csr_matrix(X.shape, dtype=np.float32),
            pd.DataFrame({"type": ["a"] * X.shape[0]}, [f"{lab}{i}" for i in range(X.shape[0])]),
            pd.DataFrame({"highly_variable": [i != 2 for i in range(8)]}, GENES),
            layers={"counts": X},
            uns={"log": "kept"},
        )
        adata = adata if lab == "north" else adata[:, GENES[::-1]].copy()
        paths.append(tmp_path / f"{lab}.h5ad")
        adata.write(paths[-1])
    return paths


OPTIONS = ("--layer", "counts", "--mask-var", "highly_variable", "--log-normalize", 100)


def log_counts(adata):
    X = adata.layers["counts"].toarray().astype(np.float64)
    values = np.log1p(X * (100 / X.sum(axis=1, keepdims=True)))
    return pd.DataFrame(values, columns=adata.var_names)


def test_verify_normalizes_cells_as_the_fit_did(labs, tmp_path):
    model = tmp_path / "m"
    assert run("fit", *labs, *OPTIONS, "-k", 3, "-o", model, "-q").exit_code == 0
    assert "certified" in run("verify", model, *labs, "--layer", "counts").stdout
    assert (
        "drifted" in run("verify", model, *labs, "--layer", "counts", "--log-normalize", 9).stdout
    )


def test_a_summary_of_cells_is_that_of_their_normalized_values(labs, tmp_path):
    output = tmp_path / "s.summary"
    assert run("summarize", labs[0], *OPTIONS, "-k", 3, "-o", output, "-q").exit_code == 0
    values = log_counts(anndata.read_h5ad(labs[0])).drop(columns="g2")
    np.testing.assert_allclose(Summary.load(output).mean, values.mean(), rtol=1e-12)


def test_a_plot_reads_the_layer_that_is_named(labs, tmp_path):
    model = tmp_path / "m"
    assert run("fit", *labs, *OPTIONS, "-k", 3, "-o", model, "-q").exit_code == 0
    words = ("plot", model, "control", "-o", tmp_path / "c.svg", "--rows", labs[0])
    assert run(*words, "--layer", "counts").exit_code == 0
    assert run("plot", model, "scree", "-o", tmp_path / "s.svg", "--layer", "x").exit_code == 2


def test_a_fit_and_a_transform_write_what_scanpy_would(labs, tmp_path):
    model, output = tmp_path / "m", tmp_path / "south-pca.h5ad"
    assert run("check", *labs, *OPTIONS, "--min-count", 1).exit_code == 0
    assert run("fit", *labs, *OPTIONS, "-k", 3, "-o", model, "-q").exit_code == 0
    done = run("transform", model, labs[1], "--layer", "counts", "-o", output)
    assert "Wrote 35 rows" in done.output
    pca = load(model)
    assert pca.run_.log_normalized == 100
    south, north = anndata.read_h5ad(output), anndata.read_h5ad(labs[0])
    used = [gene for gene in GENES if gene != "g2"]
    both = pd.concat([log_counts(north), log_counts(south)])[used]
    plain = FederatedPCA(3).fit(both)
    scores = plain.transform(log_counts(south)[used])
    np.testing.assert_allclose(south.obsm["X_pca"], scores, atol=1e-5)
    assert south.obsm["X_pca"].dtype == np.float32
    loadings = pd.DataFrame(south.varm["PCs"], south.var_names)
    assert not loadings.loc["g2"].any()
    np.testing.assert_allclose(loadings.loc[used].T, plain.components_, atol=1e-9)
    np.testing.assert_allclose(south.uns["pca"]["variance"], plain.explained_variance_)
    np.testing.assert_allclose(south.uns["pca"]["variance_ratio"], plain.explained_variance_ratio_)
    assert dict(south.uns["pca"]["params"]) == {
        "zero_center": True,
        "use_highly_variable": True,
        "mask_var": "highly_variable",
        "layer": "counts",
        "log_normalize": 100.0,
    }
    assert south.uns["log"] == "kept"
    # the same in memory, and over results that are there already
    here = anndata.read_h5ad(labs[1])
    to_anndata(pca, here, layer="counts", key_added="fed")
    np.testing.assert_array_equal(here.obsm["fed"], south.obsm["X_pca"])
    np.testing.assert_array_equal(here.varm["fed"], south.varm["PCs"])
    run("fit", *labs, *OPTIONS, "-k", 2, "-o", model, "-q", "--force")
    again = run("transform", model, output, "--layer", "counts", "-o", output, "--force", "-q")
    assert again.exit_code == 0, again.output
    assert anndata.read_h5ad(output).obsm["X_pca"].shape == (35, 2)


def test_scores_of_cells_are_written_beside_their_names(labs, tmp_path):
    run("fit", *labs, "--layer", "counts", "-k", 2, "-o", tmp_path / "m", "-q")
    options = ("--layer", "counts", "--id", "obs_names,type", "-o", tmp_path / "scores.csv")
    done = run("transform", tmp_path / "m", labs[0], *options)
    assert done.exit_code == 0, done.output
    scores = pd.read_csv(tmp_path / "scores.csv")
    assert list(scores.columns) == ["obs_names", "type", "pc1", "pc2"]
    assert list(scores["obs_names"][:2]) == ["north0", "north1"]


@pytest.mark.parametrize(
    ("make", "site"),
    [
        (lambda: StreamingPCA(2), None),
        (lambda: RobustPCA(2, random_state=0), None),
        (lambda: FederatedPCA(2, whiten=True), None),
        (lambda: PersonalizedPCA(1, 1, random_state=0), "site-1"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_model_writes_its_scores_and_components(make, site, labs):
    adata = anndata.read_h5ad(labs[0])
    adata.X = adata.layers["counts"]
    pca = make().fit([adata] if site else adata)
    to_anndata(pca, adata, site=site)
    scores = pca.transform(adata, site) if site else pca.transform(adata)
    np.testing.assert_allclose(adata.obsm["X_pca"], scores, atol=1e-5)
    np.testing.assert_allclose(adata.varm["PCs"][:, : len(pca.components_)].T, pca.components_)
    assert not adata.uns["pca"]["params"]["use_highly_variable"]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_site_with_fewer_local_components_than_another_has_fewer_scores(labs):
    sites = {name: anndata.read_h5ad(path) for name, path in zip("ab", labs, strict=False)}
    for adata in sites.values():
        adata.X = adata.layers["counts"]
    pca = PersonalizedPCA(1, {"a": 1, "b": 2}, random_state=0).fit(sites)
    to_anndata(pca, sites["a"], site="a")
    expected = pca.transform(sites["a"], "a")
    np.testing.assert_allclose(sites["a"].obsm["X_pca"], expected[:, :2], atol=1e-5)
    assert not expected[:, 2:].any()


def test_a_copy_is_written_whole_or_not_at_all(labs, tmp_path, monkeypatch):
    run("fit", *labs, "--layer", "counts", "-k", 2, "-o", tmp_path / "m", "-q")
    output, before = tmp_path / "out.h5ad", {path.name for path in tmp_path.iterdir()}
    options = (tmp_path / "m", labs[0], "--layer", "counts", "-o", output)
    put = scanpy_results._put

    def fail(file, where, value):
        put(file, where, value)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(scanpy_results, "_put", fail)
    done = run("transform", *options)
    assert done.exit_code != 0
    assert "out.h5ad cannot be written" in done.output
    monkeypatch.setattr(scanpy_results, "_put", put)
    copy = scanpy_results.shutil.copyfile

    def copy_of_what_changes(source, target):
        copy(source, target)
        source.touch()

    monkeypatch.setattr(scanpy_results.shutil, "copyfile", copy_of_what_changes)
    done = run("transform", *options)
    assert done.exit_code == 2
    assert "changed while its cells were scored" in done.output
    assert {path.name for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--id", "type"), "do not apply to an .h5ad output"),
        (("--layer", "odd"), "no layers/odd"),
        (("--site", "north"), "has no site-specific components"),
    ],
)
def test_a_transform_of_cells_that_cannot_be_is_refused(options, said, labs, tmp_path):
    run("fit", *labs, "--layer", "counts", "-k", 2, "-o", tmp_path / "m", "-q")
    done = run("transform", tmp_path / "m", labs[0], *options, "-o", tmp_path / "o.h5ad")
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())
    np.save(tmp_path / "rows.npy", np.zeros((3, 8)))
    done = run("transform", tmp_path / "m", tmp_path / "rows.npy", "-o", tmp_path / "o.h5ad")
    assert "can only be written from an .h5ad file" in " ".join(done.output.split())
    assert not (tmp_path / "o.h5ad").exists()


def test_only_anndata_objects_take_results(labs):
    with pytest.raises(InputError, match="adata must be an AnnData object, got ndarray"):
        to_anndata(FederatedPCA(2), np.zeros((3, 2)))
    pca = PersonalizedPCA(1, 1, random_state=0, gather=True)
    pca.fit([Site(path, name=path.stem, layer="counts") for path in labs])
    with pytest.raises(
        InputError, match=r"the rows' site is not given; set site to one of \['north'"
    ):
        to_anndata(pca, anndata.read_h5ad(labs[0]), layer="counts")
