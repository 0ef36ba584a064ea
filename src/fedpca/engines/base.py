"""Define the interface of engines, which carry a message to sites and bring back the answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any

from fedpca.arrays import Arrays
from fedpca.errors import InputError, SiteError
from fedpca.protocol.message import Header, Message

if TYPE_CHECKING:
    from fedpca.site.site import Site

FEATURES = ("secure", "journal", "privacy")  # what an engine may lack
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


class Engine(ABC):
    """A transport that carries questions to sites and answers back.

    To write an engine, derive a class from this one and override `names` and `ask`. Every other member
    stands for something that only some transports have, and does nothing until it is overridden. To
    look at messages on their way, or to change them, wrap an engine in an `EngineWrapper`.

    `fedpca.testing.check_engine` checks that an engine meets the requirements below.
    """

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """Return the names of the sites; sums are computed in their order."""

    @abstractmethod
    def ask(
        self, names: Sequence[str], request: Message, timeout: float | None
    ) -> Iterator[tuple[str, Message | bytes | SiteError]]:
        """Send the same message to every site in ``names``, and yield each answer as it arrives.

        Answers arrive in any order: a `Message`, bytes if the answer comes from a different process,
        or a `SiteError` in place of an answer. A transport error becomes a `SiteError`. If an answer
        from a different process is larger than ``request.max_answer_bytes``, it becomes a `SiteError`
        too, before it is downloaded completely. The engine encodes the message if the message leaves
        the process.
        """

    def ask_total(
        self, names: Sequence[str], request: Message, timeout: float | None
    ) -> Total | None:
        """Return the sum of the answers if they are added up on their way, and otherwise None."""
        return None

    def close(self) -> None:
        """Release connections and threads; a later `ask` reopens them."""
        return

    def hold(self, run: str) -> AbstractContextManager[None]:
        """Return a context manager that reserves the sites for one run.

        It raises `SitesBusy` if they are reserved for a different run. An engine whose sites no second
        run can ask has nothing to reserve.
        """
        return nullcontext()

    def fingerprints(self) -> Mapping[str, str]:
        """Return what identifies the rows that the engine itself can read.

        A resumed run recognizes its rows by these texts.
        """
        return {}

    def sign(self, data: bytes) -> bytes | None:
        """Return the coordinator's signature of a plan, which the sites check; None without a key."""
        return None

    @property
    def sites(self) -> Mapping[str, Site]:
        """Return the sites that are in this process."""
        return {}

    @property
    def declares(self) -> bool:
        """Return whether a run declares its plan to the sites before the first question."""
        return False

    @property
    def lacks(self) -> Mapping[str, str]:
        """Return the reason for each unsupported feature: "secure", "journal", or "privacy"."""
        return {}

    @property
    def absent(self) -> Mapping[str, str]:
        """Return the sites that the engine was given but begins without, and why."""
        return {}

    @property
    def keys(self) -> Mapping[str, str]:
        """Return the fingerprint of each site's key, if the sites have keys; the plan lists them."""
        return {}

    @property
    def proofs(self) -> Mapping[str, dict[str, str]]:
        """Return the proof of each site's last verified answer, if the sites sign their answers.

        `RunRecord.proofs` describes the fields. An answer without a valid signature becomes a
        `SiteError`.
        """
        return {}


class EngineWrapper(Engine):
    """An engine over another engine, which is like that engine in everything but what it overrides.

    To look at messages on their way, or to change them, derive a class from this one and override
    `ask`. `ask_total` is the one member that is not passed on: it always leaves the answers to `ask`,
    since answers that are added up on the way would pass unseen.

    Parameters
    ----------
    engine : Engine
        The engine that carries the messages.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import FederatedPCA, Federation
    >>> from fedpca.engines.base import EngineWrapper
    >>> from fedpca.engines.local import LocalEngine
    >>> class Printing(EngineWrapper):
    ...     def ask(self, names, request, timeout):
    ...         print(request.header["question"])
    ...         return self.engine.ask(names, request, timeout)
    >>> rng = np.random.default_rng(0)
    >>> engine = LocalEngine([rng.normal(size=(50, 4)), rng.normal(size=(30, 4))])
    >>> model = FederatedPCA(2, solver="merge").fit(Federation(Printing(engine)))
    column_names
    summarize_rows
    explained_in_summary
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def names(self) -> Sequence[str]:
        return self.engine.names

    def ask(
        self, names: Sequence[str], request: Message, timeout: float | None
    ) -> Iterator[tuple[str, Message | bytes | SiteError]]:
        return self.engine.ask(names, request, timeout)

    def close(self) -> None:
        self.engine.close()

    def hold(self, run: str) -> AbstractContextManager[None]:
        return self.engine.hold(run)

    def fingerprints(self) -> Mapping[str, str]:
        return self.engine.fingerprints()

    def sign(self, data: bytes) -> bytes | None:
        return self.engine.sign(data)

    @property
    def sites(self) -> Mapping[str, Site]:
        return self.engine.sites

    @property
    def declares(self) -> bool:
        return self.engine.declares

    @property
    def lacks(self) -> Mapping[str, str]:
        return self.engine.lacks

    @property
    def absent(self) -> Mapping[str, str]:
        return self.engine.absent

    @property
    def keys(self) -> Mapping[str, str]:
        return self.engine.keys

    @property
    def proofs(self) -> Mapping[str, dict[str, str]]:
        return self.engine.proofs


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
