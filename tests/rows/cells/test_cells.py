"""AnnData objects and .h5ad files are rows: cells by genes, sparse, and the same from disk."""

from __future__ import annotations

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from fedpca import FederatedPCA, PersonalizedPCA, RobustPCA, Site, StreamingPCA
from fedpca.errors import InputError, SiteFailed
from fedpca.rows import in_memory
from fedpca.rows.in_memory import SparseRows, whole
from fedpca.rows.open import open_rows
from fedpca.rows.reading import Reading

N, D = 90, 12
GENES = [f"g{i}" for i in range(D)]
LABS = ["north", "south", "east"]


def counts(seed=0, n=N):
    rng = np.random.default_rng(seed)
    rates = np.exp(rng.normal(-0.5, 0.7, D) + rng.normal(size=(n, 2)) @ rng.normal(size=(2, D)) / 2)
    return rng.poisson(rates).astype(np.float32)


def annotated(X=None, genes=GENES, **more):
    X = counts() if X is None else X
    obs = pd.DataFrame(
        {"lab": pd.Categorical([LABS[i % 3] for i in range(X.shape[0])]), "depth": 1.5},
        index=[f"cell{i}" for i in range(X.shape[0])],
    )
    marked = pd.DataFrame({"marked": [i % 4 != 1 for i in range(len(genes))]}, index=list(genes))
    return anndata.AnnData(X, obs, marked, **more)


@pytest.fixture
def adata():
    return annotated(sp.csr_matrix(counts()), layers={"twice": sp.csc_matrix(2 * counts())})


def cosines(pca, rows):
    """The cosines of the angles to the components of rows in memory."""
    centered = rows - rows.mean(axis=0)
    exact = np.linalg.svd(centered, full_matrices=False)[2][: len(pca.components_)]
    return np.linalg.svd(pca.components_ @ exact.T, compute_uv=False)


def expected(X, target=1e4):
    return np.log1p(X * (target / X.sum(axis=1, keepdims=True)))


@pytest.mark.parametrize("kind", ["csr", "csc", "dense"])
@pytest.mark.parametrize("rows_in_block", [4, 1000])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mask_var": "marked"},
        {"columns": GENES[7:2:-1], "log_normalize": True},
        {"drop": "g3", "log_normalize": 100},
    ],
    ids=str,
)
def test_cells_on_disk_have_the_blocks_of_cells_in_memory(
    kind, rows_in_block, options, tmp_path, monkeypatch
):
    monkeypatch.setattr(in_memory, "BLOCK_BYTES", rows_in_block * 8 * D)
    X = counts() if kind == "dense" else sp.csr_matrix(counts()).asformat(kind)
    annotated(X).write(tmp_path / "lab.h5ad")
    choice = Reading(**options)
    here = open_rows(annotated(X), choice)
    backed = anndata.read_h5ad(tmp_path / "lab.h5ad", backed="r")
    for source in (str(tmp_path / "lab.h5ad"), backed):
        there = open_rows(source, choice)
        assert (there.n_rows, there.features) == (here.n_rows, here.features)
        for block, same in zip(there.blocks(), here.blocks(), strict=True):
            assert sp.issparse(block) == sp.issparse(same) == (kind != "dense")
            assert (block != same).sum() == 0
    backed.file.close()
    if kind == "csr" and rows_in_block == 4:
        assert len(list(here.blocks())) > 1
    columns = [GENES.index(name) for name in here.features]
    values = counts()
    if options.get("log_normalize"):
        values = expected(values.astype(np.float64), 1e4 if "columns" in options else 100)
    found = whole(here)
    found = found.toarray() if sp.issparse(found) else found
    np.testing.assert_allclose(found, values[:, columns], rtol=1e-14)
    if not options and kind == "csr":
        for block, same in zip(here.blocks(), SparseRows(X).blocks(), strict=True):
            assert (block != same).sum() == 0


def test_fits_to_files_and_objects_are_those_of_the_pooled_cells(adata, tmp_path):
    adata.write(tmp_path / "atlas.h5ad")
    fits = [FederatedPCA(3, random_state=0).fit(source, sites="lab") for source in
            (adata, str(tmp_path / "atlas.h5ad"))]  # fmt: skip
    for pca in fits:
        assert cosines(pca, counts()).min() > 1 - 1e-12
        assert sorted(pca.run_.sites) == sorted(LABS)
        assert list(pca.feature_names_in_) == GENES
        np.testing.assert_array_equal(pca.components_, fits[0].components_)
    sites = {lab: adata[adata.obs["lab"] == lab].copy() for lab in LABS}
    paths = []
    for lab, own in sites.items():
        own[:, GENES[::-1]].copy().write(tmp_path / f"{lab}.h5ad")  # genes are matched by name
        paths.append(Site(tmp_path / f"{lab}.h5ad", name=lab, layer="twice"))
    pca = FederatedPCA(3).fit(paths)
    assert cosines(pca, counts()[:, ::-1]).min() > 1 - 1e-12
    np.testing.assert_allclose(pca.explained_variance_, 4 * fits[0].explained_variance_, rtol=1e-6)
    joined = Site([str(tmp_path / f"{lab}.h5ad") for lab in LABS], name="all")
    assert (joined.rows.n_rows, joined.rows.features) == (N, tuple(GENES[::-1]))


def test_every_estimator_takes_cells(adata, tmp_path):
    adata.write(tmp_path / "atlas.h5ad")
    values = pd.DataFrame(counts().astype(np.float64), columns=GENES)
    labels = adata.obs["lab"].to_numpy()
    for make in (
        lambda: FederatedPCA(2, random_state=0),
        lambda: StreamingPCA(2),
        lambda: RobustPCA(2, random_state=0),
    ):
        plain = make().fit(values)
        for source in (adata, tmp_path / "atlas.h5ad"):
            pca = make().fit(source)
            np.testing.assert_allclose(pca.components_, plain.components_, atol=1e-6)
            np.testing.assert_allclose(pca.transform(source), plain.transform(values), atol=1e-5)
    plain = PersonalizedPCA(1, 1, random_state=0).fit(values, sites=labels)
    pca = PersonalizedPCA(1, 1, random_state=0).fit(adata, sites="lab")
    np.testing.assert_allclose(pca.components_, plain.components_, atol=1e-6)
    scores = pca.transform(adata, labels)
    np.testing.assert_allclose(scores, plain.transform(values, labels), atol=1e-5)
    np.testing.assert_allclose(
        pca.transform(adata, "east"), plain.transform(values, "east"), atol=1e-5
    )
    assert FederatedPCA(2).fit_transform(adata, sites="lab").shape == (N, 2)
    assert FederatedPCA(2).fit_transform(tmp_path / "atlas.h5ad", sites="lab").shape == (N, 2)


def test_a_model_normalizes_new_cells_as_the_sites_did_theirs(adata, tmp_path):
    adata.write(tmp_path / "lab.h5ad")
    pca = FederatedPCA(2, random_state=0).fit([Site(adata, name="a", log_normalize=100)])
    assert pca.run_.log_normalized == 100
    assert cosines(pca, expected(counts().astype(float), 100)).min() > 1 - 1e-12
    pca.save(tmp_path / "model")
    pca = FederatedPCA.load(tmp_path / "model")
    values = expected(counts().astype(float), 100)
    for source in (adata, tmp_path / "lab.h5ad"):
        np.testing.assert_allclose(pca.transform(source), pca.model_.transform(values), atol=1e-10)
    frame = pd.DataFrame(values, columns=GENES)  # which is taken to be normalized
    frame.to_parquet(tmp_path / "rows.parquet")
    for source in (frame, tmp_path / "rows.parquet"):
        np.testing.assert_allclose(pca.transform(source), pca.model_.transform(values), atol=1e-10)
    own = PersonalizedPCA(1, 1, gather=True, random_state=0).fit(
        {lab: Site(adata[adata.obs["lab"] == lab], name=lab, log_normalize=100) for lab in LABS}
    )
    own.save_site("east", tmp_path / "east")
    again = PersonalizedPCA.load(tmp_path / "east")
    np.testing.assert_allclose(again.transform(adata), own.transform(adata, "east"))
    again.add_site("west", adata)
    assert again.run_.log_normalized == 100


@pytest.mark.parametrize(
    ("other", "said"),
    [(False, "does not normalize cells"), (1e3, "log-normalizes its cells to 1000")],
)
def test_sites_that_normalize_differently_are_refused(other, said, adata):
    sites = [Site(adata, name="a", log_normalize=True), Site(adata, name="b", log_normalize=other)]
    with pytest.raises(
        InputError, match=f"'b' {said}, but site 'a' log-normalizes its cells to 10000"
    ):
        FederatedPCA(2).fit(sites)


def test_cells_without_counts_stay_zero():
    X = counts()
    X[5] = 0
    rows = open_rows(annotated(sp.csr_matrix(X)), Reading(log_normalize=True))
    assert whole(rows).toarray()[5].sum() == 0
    dense = open_rows(annotated(X), Reading(log_normalize=True))
    np.testing.assert_allclose(whole(dense), whole(rows).toarray())


def test_values_that_are_no_counts_are_noticed():
    X, normalize = counts(), Reading(log_normalize=True)
    scaled = X * (100 / X.sum(axis=1, keepdims=True))
    for matrix in (sp.csr_matrix(np.log1p(scaled)), np.log1p(scaled)):
        with pytest.raises(
            InputError, match="values of X are log-normalized already; name the layer"
        ):
            open_rows(annotated(matrix), normalize)
    with pytest.raises(InputError, match="values of X are normalized already"):
        open_rows(annotated(sp.csr_matrix(scaled)), normalize)
    with pytest.raises(InputError, match="some values are negative"):
        open_rows(annotated(sp.csr_matrix(-X)), normalize)
    with pytest.warns(UserWarning, match="values of X are not whole numbers"):
        open_rows(annotated(sp.csr_matrix(X * 0.3)), normalize)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"layer": "thrice"}, "thrice.*layers are: twice"),
        ({"mask_var": "variable"}, "no column variable in var; its columns are marked"),
        ({"mask_var": "number"}, "column number of var must be true or false for each gene"),
        ({"mask_var": "marked", "columns": "g1"}, "both choose the genes"),
        ({"columns": "h1"}, "there is no column h1; the columns are g0"),
        ({"id": "ward"}, "no column ward in obs; its columns are lab, depth"),
        ({"layer": 3}, "layer=3 must be a name"),
        ({"log_normalize": -1}, "log_normalize=-1 must be True"),
        ({"log_normalize": np.nan}, "log_normalize=nan must be True"),
        ({"log_normalize": "yes"}, "log_normalize='yes' must be True"),
    ],
)
def test_a_choice_that_does_not_fit_is_refused_with_the_way_out(options, said, adata, tmp_path):
    adata.var["number"] = 1
    adata.write(tmp_path / "lab.h5ad")
    for source in (adata, tmp_path / "lab.h5ad"):
        with pytest.raises(InputError, match=said):
            Site(source, name="a", **options)


@pytest.mark.parametrize(
    "options", [{"layer": "counts"}, {"mask_var": "m"}, {"log_normalize": 1e4}]
)
def test_rows_that_are_not_cells_refuse_what_is_only_for_cells(options, tmp_path):
    pd.DataFrame(counts(), columns=GENES).to_parquet(tmp_path / "rows.parquet")
    np.save(tmp_path / "rows.npy", counts())
    for source in (counts(), tmp_path / "rows.parquet", tmp_path / "rows.npy"):
        with pytest.raises(InputError, match=r"only AnnData objects and \.h5ad files have layers"):
            Site(source, name="a", **options)


@pytest.mark.filterwarnings("ignore:Variable names are not unique")
def test_genes_with_the_same_name_are_refused_only_if_they_are_used():
    adata = annotated(genes=["g0", "g0", *GENES[2:]])
    with pytest.raises(InputError, match="duplicate columns: g0"):
        open_rows(adata)
    assert open_rows(adata, Reading(drop="g0")).n_features == D - 2


def test_columns_of_obs_of_every_kind_are_ids(tmp_path):
    adata = annotated(sp.csr_matrix(counts(n=3)))
    adata.obs["text"] = ["a", "b", "c"]
    adata.obs["half"] = pd.Categorical(["x", None, "y"])
    adata.obs["whole"] = pd.array([1, None, 3], dtype="Int64")
    adata.write(tmp_path / "lab.h5ad")
    names = ["obs_names", "text", "half", "whole", "depth"]
    due = [
        ["cell0", "cell1", "cell2"],
        ["a", "b", "c"],
        ["x", None, "y"],
        [1, None, 3],
        [1.5] * 3,
    ]
    for source in (adata, tmp_path / "lab.h5ad"):
        rows = open_rows(source, Reading(id=names))
        ((_, ids),) = rows.blocks_with_ids()
        assert [column.to_pylist() for column in ids.columns] == due
    with pytest.raises(InputError, match="no label for 1 of the 3 rows"):
        FederatedPCA(1).fit(adata, sites="half")


def test_categories_as_older_versions_wrote_them_are_read(adata, tmp_path):
    adata.write(tmp_path / "lab.h5ad")
    with h5py.File(tmp_path / "lab.h5ad", "r+") as file:
        group = file["obs/lab"]
        codes, categories = group["codes"][:], group["categories"][:]
        del file["obs/lab"]
        file["obs/__categories/lab"] = categories
        file["obs/lab"] = codes
        file["obs/lab"].attrs["categories"] = file["obs/__categories/lab"].ref
    pca = FederatedPCA(2).fit(tmp_path / "lab.h5ad", sites="lab")
    assert sorted(pca.run_.sites) == sorted(LABS)


def _set(where, position, value):
    def change(file):
        file[where][position] = value

    return change


def _without(where):
    def change(file):
        del file[where]

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_set("X/indptr", 3, 10**6), "sparse matrix is not consistent"),
        (_set("X/indptr", 0, 1), "sparse matrix is not consistent"),
        (_set("X/indices", 7, D), "sparse matrix is not consistent"),
        (_set("X/indices", 7, -1), "sparse matrix is not consistent"),
        (_set("layers/twice/indices", 7, N), "sparse matrix is not consistent"),
        (_set("obs/lab/codes", 0, 9), "codes without a category"),
        (_without("X"), "the file has no X; its layers are: twice"),
        (_without("obs"), "no obs and var as AnnData has written them since version 0.7"),
        (_without("X/data"), "not a readable .h5ad file"),
        (lambda file: file["X"].attrs.__setitem__("encoding-type", "odd"), "X is a odd"),
        (lambda file: file["X"].attrs.__setitem__("shape", [N, D + 1]), "there are .* cells and genes"),
    ],
)  # fmt: skip
def test_damaged_files_of_cells_are_refused_by_name(change, said, adata, tmp_path):
    path = tmp_path / "lab.h5ad"
    adata.write(path)
    with h5py.File(path, "r+") as file:
        change(file)
    layer = (
        "twice"
        if "twice" in str(change.__closure__ and change.__closure__[-1].cell_contents)
        else None
    )
    with pytest.raises(InputError, match=rf"lab\.h5ad.*{said}"):
        list(open_rows(path, Reading(id="lab", layer=layer)).blocks())


def test_a_file_that_is_cut_off_or_goes_away_is_named(adata, tmp_path):
    path = tmp_path / "lab.h5ad"
    adata.write(path)
    rows = open_rows(path)
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(SiteFailed, match=r"lab\.h5ad, X, can no longer be read"):
        list(rows.blocks())
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=r"lab\.h5ad is not a readable \.h5ad file"):
        open_rows(path)


def test_values_that_cannot_be_read_here_say_what_to_pass(adata):
    dask = pytest.importorskip("dask.array")
    adata.X = None
    with pytest.raises(InputError, match="X is None; name the layer"):
        open_rows(adata)
    adata.layers["lazy"] = dask.from_array(counts())
    with pytest.raises(InputError, match=r"Dask array; pass adata\.to_memory\(\)"):
        open_rows(adata, Reading(layer="lazy"))
