"""Put scores, components, and variances where scanpy puts those of ``scanpy.pp.pca``.

obsm["X_pca"]   the scores of the cells, float32
varm["PCs"]     the components; zeros for genes that the model does not use
uns["pca"]      the variances, their ratios, and the parameters
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.models.linear import Model
from fedpca.rows.formats.array_files import package
from fedpca.rows.open import state_of
from fedpca.storage import atomic

SLOTS = ("X_pca", "PCs", "pca")  # of obsm, varm, and uns, unless one key is given for all
CHANGED = "changed while its cells were scored; run the command again"


@dataclass(frozen=True)
class ScanpyResults:
    """The results of a fit for some cells."""

    scores: Array  # (n_cells, k)
    loadings: Array  # (n_genes, k), in the order of the genes of the cells
    variance: Array  # (k,)
    variance_ratio: Array  # (k,)
    params: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        model: Model,
        scores: Array,
        genes: Sequence[str],
        features: Sequence[str] | None,
        params: dict[str, Any],
    ) -> ScanpyResults:
        """Return the results for cells with these scores and genes; ``features`` are the model's."""
        loadings = np.zeros((len(genes), len(model.components)))
        position = {gene: i for i, gene in enumerate(genes)}
        own = range(len(genes)) if features is None else [position[name] for name in features]
        loadings[list(own)] = model.components.T
        ratio = model.explained_variance / (float(model.total_variance) or 1.0)
        return cls(
            scores.astype(np.float32), loadings, model.explained_variance, np.asarray(ratio), params
        )

    def add_to(self, adata: Any, key: str | None = None) -> None:
        """Write the results to an AnnData object."""
        obsm, varm, uns = SLOTS if key is None else (key,) * 3
        adata.obsm[obsm], adata.varm[varm] = self.scores, self.loadings
        adata.uns[uns] = self._uns

    def write_copy(self, source: Path, state: str, target: Path, key: str | None = None) -> None:
        """Write a copy of an ``.h5ad`` file with the results in it, completely or not at all.

        ``state`` is the state of the source file when its cells were read.
        """
        h5py = package("h5py", source, extra="anndata")
        obsm, varm, uns = SLOTS if key is None else (key,) * 3
        with atomic.writing(target) as temporary:
            shutil.copyfile(source, temporary)
            if state_of(source) != state:
                raise InputError(f"{source} {CHANGED}")
            with h5py.File(temporary, "r+") as file:
                _put(file, ("obsm", obsm), self.scores)
                _put(file, ("varm", varm), self.loadings)
                _put(file, ("uns", uns), self._uns)

    @property
    def _uns(self) -> dict[str, Any]:
        more = {"variance": self.variance, "variance_ratio": self.variance_ratio}
        return {"params": dict(self.params), **more}


def _put(group: Any, where: Sequence[str], value: Any) -> None:
    """Write a value to a file in AnnData's encoding, replacing what is there."""
    first, *rest = where
    if rest:
        _put(_group(group, first), rest, value)
        return
    if first in group:
        del group[first]
    if isinstance(value, dict):
        made = _group(group, first)
        for name, item in value.items():
            _put(made, (name,), item)
        return
    item = group.create_dataset(first, data=value)
    kind = (
        "string" if isinstance(value, str) else "numeric-scalar" if np.ndim(value) == 0 else "array"
    )
    item.attrs["encoding-type"], item.attrs["encoding-version"] = kind, "0.2.0"


def _group(parent: Any, name: str) -> Any:
    if name not in parent:
        made = parent.create_group(name)
        made.attrs["encoding-type"], made.attrs["encoding-version"] = "dict", "0.1.0"
    return parent[name]
