"""Read the label that says which site each row of a table belongs to."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.rows.cells.cell_rows import LoadedCells
from fedpca.rows.gpu.devices import selected_rows
from fedpca.rows.in_memory import is_cells, is_sparse, stacked
from fedpca.rows.open import open_rows
from fedpca.rows.reading import Reading


def labels_of_rows(sites: Any, n_rows: int) -> Array:
    """Check that each row has a site label, and return the labels as strings."""
    labels = np.asarray(sites)
    if labels.shape != (n_rows,):
        raise InputError(
            f"sites has shape {labels.shape}; pass one label for each of the {n_rows} rows"
        )
    n_unlabeled = sum(label is None or label != label for label in labels.tolist())
    if n_unlabeled:
        raise InputError(
            f"sites has no label for {n_unlabeled} of the {n_rows} rows; label every row"
        )
    return labels.astype(str)


def selections(sites: Any, n_rows: int) -> dict[str, Array]:
    """Return a mask of each site's rows, ``(n_rows,)`` of bool, by the site's name."""
    labels = labels_of_rows(sites, n_rows)
    return {str(name): labels == name for name in np.unique(labels)}


def rows_by_label(X: Any, sites: Any) -> dict[str, Any]:
    """Group the rows of one table by their site labels."""
    labels = selections(sites, X.shape[0])
    return {name: selected_rows(X, chosen) for name, chosen in labels.items()}


def take_label_column(source: Any, column: str) -> tuple[Any, list[Any]]:
    """Read a table into memory, and return it without the column that names each row's site.

    The result is a pyarrow table of float64; cells, however, stay cells and stay sparse. The labels are
    returned too, with None for an empty label.
    """
    import pyarrow as pa

    rows: Any = open_rows(source, Reading(id=(column,)))
    if is_cells(source):  # a column of obs is not a gene, so no column is taken out
        return source, _labels_in(rows.ids)
    blocks, labels = [], []
    for block, ids in rows.blocks_with_ids():
        blocks.append(block)
        labels += _labels_in(ids)
    if any(is_sparse(block) for block in blocks):
        return LoadedCells(stacked(blocks), rows.features), labels
    table = np.vstack([np.empty((0, rows.n_features)), *blocks])
    return pa.table(dict(zip(rows.features, table.T, strict=True))), labels


def _labels_in(ids: Any) -> list[Any]:
    """Return the values of the only column of ids; an empty string becomes None."""
    return [label if label != "" else None for label in ids.column(0).to_pylist()]
