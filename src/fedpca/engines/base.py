"""Define the interface of engines, which carry a message to sites and bring back the answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from numbers import Integral
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedpca.arrays import Arrays
from fedpca.errors import InputError, SiteError
from fedpca.protocol.message import Header, Message

if TYPE_CHECKING:
    from fedpca.site.site import Site

NOTHING: Mapping[str, Any] = MappingProxyType({})
ENGINE_FEATURES = ("secure", "journal", "privacy")  # what an engine may lack
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

    To write an engine, derive a class from this one, set `names`, and override `ask`. Every other
    member stands for something that only some transports have, and does nothing until it is set or
    overridden. To look at messages on their way, or to change them, wrap an engine in an
    `EngineWrapper`.

    `fedpca.testing.check_engine` checks that an engine meets the requirements below.

    Attributes
    ----------
    names : sequence of str
        The names of the sites; sums are computed in their order.
    declares : bool
        Whether a run declares its plan to the sites before the first question.
    lacks : dict
        The reason for each unsupported feature: "secure", "journal", or "privacy".
    absent : dict
        The sites that the engine was given but begins without, and why.
    keys : dict
        The fingerprint of each site's key, if the sites have keys; the plan lists them.
    proofs : dict
        The proof of each site's last verified answer, with the fields that `RunRecord.proofs`
        describes, if the sites sign their answers. An answer without a valid signature becomes a
        `SiteError`.
    sites : dict
        The sites that are in this process, by name.
    ask_total : callable or None
        Takes the same arguments as `ask`, and returns the `Total` of the answers, if the engine adds
        up answers on their way.
    """

    names: Sequence[str] = ()
    declares: bool = False
    lacks: Mapping[str, str] = NOTHING
    absent: Mapping[str, str] = NOTHING
    keys: Mapping[str, str] = NOTHING
    proofs: Mapping[str, dict[str, str]] = NOTHING
    sites: Mapping[str, Site] = NOTHING
    ask_total: Callable[[Sequence[str], Message, float | None], Total] | None = None

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


class _Forwarded:
    """A member that a wrapper has from the engine below it, whenever it is asked for."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, wrapper: EngineWrapper | None, owner: type) -> Any:
        return self if wrapper is None else getattr(wrapper.engine, self._name)


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

    names: Any = _Forwarded()
    declares: Any = _Forwarded()
    lacks: Any = _Forwarded()
    absent: Any = _Forwarded()
    keys: Any = _Forwarded()
    proofs: Any = _Forwarded()
    sites: Any = _Forwarded()
    close: Any = _Forwarded()
    hold: Any = _Forwarded()
    fingerprints: Any = _Forwarded()
    sign: Any = _Forwarded()

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def ask(
        self, names: Sequence[str], request: Message, timeout: float | None
    ) -> Iterator[tuple[str, Message | bytes | SiteError]]:
        """Send a message through the engine, and yield its answers."""
        return self.engine.ask(names, request, timeout)


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
