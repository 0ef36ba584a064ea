"""The number of local components: one number for all sites, or one for each site."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError


@dataclass(frozen=True)
class LocalRanks:
    """The checked numbers of local components; ``common`` applies to sites not in ``by_site``."""

    common: int | None
    by_site: Mapping[str, int]

    @classmethod
    def of(cls, n_local: Any) -> LocalRanks:
        """Return the ranks that a user or a file gives as a number or a mapping of sites to numbers."""
        if not isinstance(n_local, Mapping):
            return cls(_whole(n_local, "n_local"), {})
        by_site = {str(name): rank for name, rank in n_local.items()}
        return cls(None, {k: _whole(v, f"n_local[{k!r}]") for k, v in by_site.items()})

    @classmethod
    def from_bytes(cls, field: Array) -> LocalRanks:
        """Decode the ranks from a message field."""
        return cls.of(json.loads(field.tobytes()))

    def to_bytes(self) -> Array:
        """Encode the ranks as a message field; the same ranks always have the same bytes."""
        return np.frombuffer(json.dumps(self.plain, sort_keys=True).encode(), np.uint8)

    @property
    def plain(self) -> int | dict[str, int]:
        """Return the ranks as plain values, for a file or a journal."""
        return dict(self.by_site) if self.common is None else self.common

    @property
    def most(self) -> int:
        """Return the largest rank of any site."""
        return max(self.by_site.values(), default=self.common or 0)

    @property
    def least(self) -> int:
        """Return the smallest rank of any site."""
        return min(self.by_site.values(), default=self.common or 0)

    def at(self, site: str) -> int:
        """Return the rank of one site."""
        rank = self.by_site.get(site, self.common)
        if rank is None:
            raise InputError(f"n_local has no entry for site {site!r}; add one")
        return rank

    def check_sites(self, names: Collection[str]) -> None:
        """Refuse a mapping that lacks any of these sites or has entries for others."""
        if self.common is None and set(self.by_site) != set(names):
            raise InputError(
                f"n_local has entries for {sorted(self.by_site)}, but the sites are "
                f"{sorted(names)}; include one entry per site"
            )

    def check_features(self, n_shared: int, d: int) -> None:
        """Refuse a total of zero components, or more components than features."""
        if n_shared + self.most == 0:
            raise InputError("n_shared=0 and n_local=0 leave no components; set one of them to 1")
        for name, rank in (self.by_site or {"": self.most}).items():
            if n_shared + rank > d:
                where = f" for site {name!r}" if name else ""
                raise InputError(
                    f"n_shared={n_shared} plus n_local={rank}{where} exceeds n_features={d}; their "
                    f"sum must be at most {d}"
                )


def _whole(rank: Any, name: str) -> int:
    if not isinstance(rank, Integral) or isinstance(rank, bool) or rank < 0:
        raise InputError(f"{name}={rank!r} must be a whole number of at least 0")
    return int(rank)
