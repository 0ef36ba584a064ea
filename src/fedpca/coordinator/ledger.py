"""Count the bytes of each message field that passes between the coordinator and the sites.

Sizes are those of encoded messages, so they do not depend on the engine. A field that the coordinator
sends to the sites is ``sent``. A field in an answer is ``summed`` if the coordinator uses only the
total over sites, and ``seen`` if it reads each site's answer. In a run with secure sums, the field is
``masked`` if the coordinator can read only the total. If a site fails or refuses, the round is void,
and the other sites' answers are ``discarded``. Bytes that do not belong to an expected message are not
counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fedpca.arrays import Array
from fedpca.facts import BYTES, COUNT, SHAPE, Column, Records

ENVELOPE = "(envelope)"  # a message's prefix, header, and padding


class Entry(NamedTuple):
    """One field of one message.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import FederatedPCA
    >>> rng = np.random.default_rng(0)
    >>> sites = {"north": rng.normal(size=(50, 4)), "south": rng.normal(size=(30, 4))}
    >>> ledger = FederatedPCA(2).fit(sites).run_.ledger
    >>> entry = next(entry for entry in ledger if entry.field == "triangle")
    >>> entry.site, entry.shape, entry.bytes, entry.how
    ('north', (10,), 80, 'summed')
    """

    round: int
    site: str
    direction: str
    question: str
    field: str
    shape: tuple[int, ...]
    bytes: int
    how: str


class TrafficTotal(NamedTuple):
    """The number and total size of a question's fields that have the same name and shape."""

    question: str
    direction: str
    field: str
    shape: tuple[int, ...]
    how: str
    messages: int
    bytes: int


CROSSED = (
    Column("question"),
    Column("direction"),
    Column("field"),
    Column("shape", SHAPE),
    Column("how"),
    Column("messages", COUNT),
    Column("bytes", BYTES),
)
Fields = tuple[tuple[str, tuple[int, ...], int], ...]  # name, shape, and bytes of each field


def fields_of(arrays: Mapping[str, Array]) -> Fields:
    """Return the name, shape, and size of each array."""
    return tuple((name, array.shape, array.nbytes) for name, array in arrays.items())


class _Crossing(NamedTuple):
    """The messages in one round and direction that have the same fields."""

    round: int
    question: str
    direction: str
    how: str
    fields: Fields
    sites: tuple[tuple[str, int], ...]


@dataclass
class Ledger:
    """The messages of one run; iterating yields an `Entry` for each field of each message.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import FederatedPCA
    >>> rng = np.random.default_rng(0)
    >>> sites = {"north": rng.normal(size=(50, 4)), "south": rng.normal(size=(30, 4))}
    >>> ledger = FederatedPCA(2).fit(sites).run_.ledger
    >>> sorted({entry.question for entry in ledger if entry.how == "summed"})
    ['count_and_sum', 'covariance_triangle']
    """

    _crossings: list[_Crossing] = field(default_factory=list)

    def record(
        self,
        round_number: int,
        question: str,
        how: str,
        fields: Fields,
        sizes: Mapping[str, int],
    ) -> None:
        """Add a message with these fields for each site; ``sizes`` holds the messages' bytes."""
        direction = "down" if how == "sent" else "up"
        self._crossings.append(
            _Crossing(round_number, question, direction, how, fields, tuple(sizes.items()))
        )

    @property
    def bytes_up(self) -> int:
        """Return the number of bytes sent from the sites to the coordinator."""
        return self._bytes("up")

    @property
    def bytes_down(self) -> int:
        """Return the number of bytes sent from the coordinator to the sites."""
        return self._bytes("down")

    def __iter__(self) -> Iterator[Entry]:
        for crossing in self._crossings:
            payload = sum(size for _, _, size in crossing.fields)
            for site, total in crossing.sites:
                head = (crossing.round, site, crossing.direction, crossing.question)
                for name, shape, size in crossing.fields:
                    yield Entry(*head, name, shape, size, crossing.how)
                yield Entry(*head, ENVELOPE, (), total - payload, crossing.how)

    def totals(self, site: str | None = None) -> list[TrafficTotal]:
        """Count messages and bytes by question, field, and shape, for all sites or for one site."""
        totals: dict[tuple[str, str, str, tuple[int, ...], str], TrafficTotal] = {}
        for entry in self:
            if site not in (None, entry.site):
                continue
            key = (entry.question, entry.direction, entry.field, entry.shape, entry.how)
            so_far = totals.get(key, TrafficTotal(*key, 0, 0))
            totals[key] = so_far._replace(
                messages=so_far.messages + 1, bytes=so_far.bytes + entry.bytes
            )
        return list(totals.values())

    def facts(self, site: str | None = None) -> Records:
        """Return the data exchanged with all sites, or with one, by question, field, and shape."""
        whom = "" if site is None else f" with {site}"
        return Records("ledger", CROSSED, self.totals(site), f"Data exchanged{whom}")

    def to_header(self) -> list[list[object]]:
        """Return the ledger as plain values."""
        return [list(crossing) for crossing in self._crossings]

    @classmethod
    def from_header(cls, crossings: list[list[Any]]) -> Ledger:
        """Restore a ledger from the values that `to_header` returned."""
        restored = []
        for number, question, direction, how, fields, sites in crossings:
            shapes = tuple((name, tuple(shape), size) for name, shape, size in fields)
            sizes = tuple((site, size) for site, size in sites)
            restored.append(_Crossing(number, question, direction, how, shapes, sizes))
        return cls(restored)

    def _bytes(self, direction: str) -> int:
        return sum(
            size
            for crossing in self._crossings
            if crossing.direction == direction
            for _, size in crossing.sites
        )
