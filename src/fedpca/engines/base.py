"""Define the interface of engines, which carry a message to sites and bring back the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Protocol

from fedpca.arrays import Arrays
from fedpca.errors import InputError, SiteError
from fedpca.protocol.message import Header, Message

# called with the names of all sites and the names of those online
OnOnline = Callable[[Sequence[str], Sequence[str]], None]


@dataclass(frozen=True)
class Summand:
    """What is left of a site's answer after its arrays were added to a total."""

    header: Header
    n_bytes: int  # of the encoded answer
    told: Mapping[str, float]  # what `Question.told` returns


@dataclass(frozen=True)
class Total:
    """The sum of several sites' answers, which were added up before they reached the coordinator."""

    arrays: Arrays  # empty if no site answered
    replies: Mapping[str, Summand | Message | SiteError]  # a message here reports an error
    sums: Mapping[str, int]  # encoded size of each partial sum that traveled, and of the total


class Engine(Protocol):
    """A transport that carries questions to sites and answers back.

    `ask` sends the same message to every site in ``names``. It encodes the message if the message
    leaves the process. It yields each site's answer as the answer arrives, in any order: a `Message`,
    bytes if the answer comes from a different process, or a `SiteError` in place of an answer. A
    transport error becomes a `SiteError`. If an answer from a different process is larger than
    ``request.max_answer_bytes``, it becomes a `SiteError` too, before it is downloaded completely.

    `fingerprints` identifies the rows that the engine itself can read, so that a resumed run can
    recognize them. An engine that begins without some of the sites it was given may have an attribute
    ``absent`` with the names of these sites and the reasons. An engine whose sites sign their answers
    keeps the proof of each site's last verified answer in an attribute ``proofs``, with the fields that
    `RunRecord.proofs` describes. Such an engine turns an answer without a valid signature into a
    `SiteError`. If a second run could ask the sites of an engine at the same time, the engine has a
    method ``hold(run)``. The method returns a context manager that reserves the sites for one run, and
    raises `SitesBusy` if they are reserved for a different run.

    An engine that can add up answers on the way has a method ``ask_total(names, request, timeout)``,
    which replaces `ask` for sums and returns a `Total`. An engine may have an attribute ``lacks``,
    which maps each unsupported feature ("secure", "journal", or "privacy") to the reason.

    A run declares its plan to the sites of an engine whose attribute ``declares`` is true. If the sites
    have keys, ``keys`` maps each site's name to the fingerprint of its key, and the plan lists these
    fingerprints. If the coordinator has a key, ``sign(data)`` returns its signature of the plan, which
    the sites check; otherwise, ``sign`` is None. `close` releases connections and threads; a later
    `ask` reopens them.

    `fedpca.testing.check_engine` checks that an engine meets these requirements.
    """

    @property
    def names(self) -> Sequence[str]: ...

    def fingerprints(self) -> Mapping[str, str]: ...

    def ask(
        self, names: Sequence[str], request: Message, timeout: float | None
    ) -> Iterator[tuple[str, Message | bytes | SiteError]]: ...

    def close(self) -> None: ...


def requested_sites(sites: Any) -> int | list[str]:
    """Return the number or names of the sites that a caller asks for; refuse anything else."""
    if isinstance(sites, Integral) and not isinstance(sites, bool):
        return int(sites)
    is_list = isinstance(sites, Sequence) and not isinstance(sites, str | bytes)
    if not is_list or not sites or not all(isinstance(name, str) and name for name in sites):
        raise InputError(f"sites={sites!r} must be a number of sites or a list of site names")
    if len(set(sites)) < len(sites):
        raise InputError(f"sites={list(sites)} contains a duplicate; name each site once")
    return list(sites)
