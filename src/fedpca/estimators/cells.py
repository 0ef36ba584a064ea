"""Score cells with a fitted model, and put the results where scanpy expects them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.estimators.federated import FederatedPCA
from fedpca.estimators.fitting import matching_rows
from fedpca.estimators.personalized import PersonalizedPCA
from fedpca.estimators.robust import RobustPCA
from fedpca.models.linear import Model
from fedpca.models.scanpy_results import ScanpyResults
from fedpca.rows.cells.cell_rows import Cells, cells_in
from fedpca.rows.in_memory import is_cells
from fedpca.rows.matching import scores_in_blocks
from fedpca.rows.reading import Reading


def to_anndata(
    pca: Any,
    adata: Any,
    *,
    layer: str | None = None,
    site: str | None = None,
    key_added: str | None = None,
) -> None:
    """Write a fitted model's results for cells to their AnnData object, as ``scanpy.pp.pca`` does.

    The scores go to ``obsm["X_pca"]``, the components to ``varm["PCs"]``, and their variances to
    ``uns["pca"]``. Genes are matched by name; components are zero for genes that are not in the model.
    If the sites normalized their cells for the fit, pass counts; this function normalizes them too.

    Parameters
    ----------
    pca : FederatedPCA, PersonalizedPCA, RobustPCA, or StreamingPCA
        A fitted estimator.
    adata : AnnData
        The cells.
    layer : str, optional
        The layer that holds the values; by default, ``X`` holds them.
    site : str, optional
        The site that the cells belong to; only for `PersonalizedPCA`.
    key_added : str, optional
        The key to use in ``obsm``, ``varm``, and ``uns`` instead of those above.
    """
    if not is_cells(adata):
        raise InputError(f"adata must be an AnnData object, got {type(adata).__name__}")
    results_for(pca, adata, layer, site).add_to(adata, key_added)


def results_for(pca: Any, source: Any, layer: str | None, site: str | None) -> ScanpyResults:
    """Return a fitted model's results for the cells in an AnnData object or an ``.h5ad`` file."""
    rows = matching_rows(pca, source, Reading(layer=layer))
    model, score, _ = scoring(pca, site)
    scores = [scores for scores, _ in scores_in_blocks(rows, score)]
    names = getattr(pca, "feature_names_in_", None)
    cells = cells_in(source)
    return ScanpyResults.of(
        model,
        np.vstack([np.empty((0, len(model.components))), *scores]),
        cells.genes,
        None if names is None else [str(name) for name in names],
        _params(pca, cells, names, layer),
    )


class Scoring(NamedTuple):
    """How the rows of one site are scored."""

    model: Model  # the components of the scores
    score: Callable[[Any], Array]  # of a block of rows
    names: list[str]  # of the scores


def scoring(pca: Any, site: str | None) -> Scoring:
    """Return how an estimator scores rows, or rows of one of its sites."""
    if isinstance(pca, PersonalizedPCA):
        parts = list(pca.model_.parts)
        name = parts[0] if site is None and len(parts) == 1 else site
        if name not in parts:
            problem = f"no site {site!r} in the model" if site else "the rows' site is not given"
            raise InputError(f"{problem}; set site to one of {parts}")
        one = pca.model_.of_site(name)
        return Scoring(one, one.transform, pca.model_.only(name).score_names)
    if site is not None:
        raise InputError(f"a {type(pca).__name__} has no site-specific components; omit site")
    model = pca._model()
    names = [f"pc{i + 1}" for i in range(len(model.components))]
    if isinstance(pca, RobustPCA):  # its scores ignore outliers
        return Scoring(model, pca.model_.transform, names)
    if isinstance(pca, FederatedPCA):
        return Scoring(model, pca._scores, names)
    return Scoring(model, partial(model.transform, whiten=pca.whiten), names)


def _params(pca: Any, cells: Cells, names: Any, layer: str | None) -> dict[str, Any]:
    """Return the parameters that scanpy records about a fit, as far as they are known."""
    chosen = set(cells.genes if names is None else map(str, names))
    is_marked = False
    if "highly_variable" in cells.columns_of("var"):
        marked = np.asarray(cells.column("var", "highly_variable")).astype(bool)
        is_marked = marked.tolist() == [gene in chosen for gene in cells.genes]
    params = {
        "zero_center": pca.center not in (False, "none"),
        "use_highly_variable": is_marked,
        **({"mask_var": "highly_variable"} if is_marked else {}),
        **({"layer": layer} if layer is not None else {}),
    }
    target = getattr(getattr(pca, "run_", None), "log_normalized", 0.0)
    return params | ({"log_normalize": target} if target else {})


def write_h5ad(pca: Any, source: Path, state: str, target: Path, **which: Any) -> int:
    """Write a copy of an ``.h5ad`` file with a model's results in it; return the number of cells.

    ``state`` is what `state_of` returned for the source file before the file was read.
    """
    results = results_for(pca, source, which.get("layer"), which.get("site"))
    results.write_copy(source, state, target)
    return len(results.scores)
