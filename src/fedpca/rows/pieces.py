"""Read rows from pieces of a table that are loaded one at a time, such as blocks on a cluster.

A piece is anything that `fedpca.rows.open.open_rows` accepts. It is released before the next one is
loaded, so a pass over the rows takes the memory of one piece, however many pieces there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fedpca.errors import InputError
from fedpca.rows.columns import matching_order
from fedpca.rows.in_memory import Block, Rows

LOADED_COST, HELD_COST = 200.0, 20.0  # the cost of reading one entry, in multiplications


@dataclass(frozen=True)
class Pieces:
    """A table in pieces.

    Parameters
    ----------
    load : list of callables
        A function for each piece, which returns the piece.
    n_rows : int, optional
        The number of rows of all pieces, if known.
    are_held : bool
        Whether the pieces are in memory anyway, so that loading them takes no time.
    """

    load: Sequence[Callable[[], Any]]
    n_rows: int | None = None
    are_held: bool = False


class PieceRows:
    """Rows in pieces, with the columns of the first piece."""

    def __init__(self, pieces: Pieces, open_piece: Callable[[Any], Rows]) -> None:
        if not pieces.load:
            raise InputError("the table has no blocks, so it has no rows; pass at least one block")
        self._pieces, self._open = pieces, open_piece
        self._kept: tuple[int, Rows] | None = None  # the last piece, which is often the only one
        self._n_rows = pieces.n_rows
        first = self._piece(0)
        self.features, self.n_features, self.dtypes = first.features, first.n_features, first.dtypes
        self._about_n_rows = float(len(pieces.load) * first.n_rows)
        self.pass_cost = HELD_COST if pieces.are_held else LOADED_COST

    @property
    def n_rows(self) -> int:
        """Return the number of rows, which takes a pass if it is not known."""
        if self._n_rows is None:
            self._n_rows = sum(self._piece(i).n_rows for i in range(len(self._pieces.load)))
        return self._n_rows

    @property
    def about_n_rows(self) -> float:
        """Return the number of rows, or an estimate if counting them would take a pass."""
        return self._about_n_rows if self._n_rows is None else float(self._n_rows)

    def blocks(self) -> Iterator[Block]:
        n_rows = 0
        for i in range(len(self._pieces.load)):
            rows = self._piece(i)
            order = matching_order(self, rows, f"block {i + 1}, compared with block 1")
            for block in rows.blocks():
                n_rows += block.shape[0]
                yield block if order is None else block[:, order]
        self._n_rows = n_rows  # counted for free by this pass

    def _piece(self, index: int) -> Rows:
        if self._kept is None or self._kept[0] != index:
            # released before the next piece is loaded, so that memory holds only one
            self._kept = None
            self._kept = index, self._open(self._pieces.load[index]())
        return self._kept[1]
