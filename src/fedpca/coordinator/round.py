"""Ask all sites one question: compose the request, check the answers, and combine them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fedpca.arrays import Array, Arrays, Dimensions
from fedpca.coordinator.ledger import Fields, Ledger, fields_of
from fedpca.engines.base import Summand, Total
from fedpca.errors import (
    REPORTED_BY_SITES,
    FedpcaError,
    InputError,
    JournalError,
    MessageError,
    PolicyRefused,
    SiteError,
    SitesLost,
)
from fedpca.protocol.invariants import contradiction
from fedpca.protocol.message import (
    ANSWER,
    ECHOED,
    MAX_BYTES,
    Header,
    Message,
    check_header,
    compose,
    decode,
)
from fedpca.protocol.printable import MAX_REASON_CHARS, printable
from fedpca.protocol.question import Question

if TYPE_CHECKING:
    from fedpca.coordinator.secure import Masks

T = TypeVar("T")
RawAnswer = Message | bytes | SiteError
SITE_ENERGY_SLACK = 1e-6  # share of all sites' energy that rounding may add to one site's


@dataclass
class Round:
    """One question to all sites, and its outcome."""

    run: str
    number: int
    question: Question
    arrays: Arrays
    sites: Sequence[str]
    dimensions: Dimensions
    memory: int = 0  # the last round of the run that changed the sites' memory
    energies: Mapping[str, float] = field(default_factory=dict)  # of each site's rows, if known
    # amounts by word and site that other questions of the attempt were told
    before: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    total: Arrays = field(default_factory=dict)  # the result of a sum
    answers: dict[str, Arrays] = field(default_factory=dict)  # gathered, or not summed yet
    sizes: dict[str, int] = field(default_factory=dict)  # bytes of each accepted answer
    fields: dict[str, Fields] = field(default_factory=dict)  # of each accepted answer
    told: dict[str, dict[str, float]] = field(default_factory=dict)  # rows and energy by site
    # bytes of each partial sum, if there are any
    sums: dict[str, int] = field(default_factory=dict)
    retried: list[str] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)  # what went wrong at each lost site
    refused: FedpcaError | None = None  # why sites refused, if some did
    is_void: bool = False
    masks: Masks | None = None  # of the answers, in a run with secure sums

    @property
    def has_failed(self) -> bool:
        """Return whether the total does not fit the rings of the masks."""
        return self.masks is not None and not self.is_void and not self.masks.fit(self.total)

    @property
    def verb(self) -> str:
        """Return what happens to the answers: "sum" or "gather"."""
        return self.question.verb

    def __post_init__(self) -> None:
        self._unsummed = deque(self.sites)
        # searching a tuple for every answer would be slow
        self._expected = frozenset(self.sites)
        header = {
            "run": self.run,
            "round": self.number,
            "question": self.question.name,
            "verb": self.verb,
            "n_sites": len(self.sites),
            "memory": self.memory,
        }
        most = self.question.max_answer_bytes(self.arrays, self.dimensions)
        if self.masks is not None:
            header["mask"] = self.masks.header
            most = min(2 * most, MAX_BYTES)  # numbers in a wide ring take 16 bytes
        # all sites get the same message
        self.request = replace(compose(header, self.arrays), max_answer_bytes=most)
        self._echo = [(key, header[key]) for key in ECHOED]
        self._most_explained = self._explainable()

    def accept(self, name: str, reply: RawAnswer | Summand) -> None:
        """Check a site's answer and add it; errors name the site, the round, and the site's task."""
        if name not in self._expected or name in self.sizes:
            return  # nobody is waiting for this answer
        try:
            if isinstance(reply, SiteError):
                raise reply
            message = decode(reply) if isinstance(reply, bytes) else reply
            self._check_header(message.header, name)
            if isinstance(message, Summand):  # its arrays are in the total
                self.told[name] = dict(message.told)
                self.sizes[name], self.fields[name] = message.n_bytes, fields_of(self.total)
                return
            dimensions = dict(self.dimensions)
            arrays = self._checked(message, name, dimensions)
            told = {} if self.masks is not None else self.question.told(arrays)
            if told:
                known = {word: each[name] for word, each in self.before.items() if name in each}
                problem = contradiction(told, known)
                if problem is not None:
                    raise MessageError(f"the answer {problem}")
        except FedpcaError as error:
            where = f"site {name!r}, round {self.number}, while {self.question.doing}"
            raise type(error)(printable(f"{where}: {error}", MAX_REASON_CHARS)) from None
        self.answers[name] = arrays
        if self.masks is None:
            self.told[name] = told
        self.sizes[name] = message.n_bytes
        self.fields[name] = fields_of(arrays)
        if self.verb == "sum":
            self.dimensions = dimensions
            self._sum_in_site_order()

    def add_total(self, total: Total) -> None:
        """Add a sum of checked answers that was formed on the way to the coordinator."""
        if not total.arrays:
            return
        try:
            arrays = self.question.check_answer(
                total.arrays, self.dimensions, self.arrays, is_total=True
            )
        except FedpcaError as error:
            where = f"round {self.number}, while {self.question.doing}"
            raise type(error)(f"{where}: the total: {error}") from None
        self.sums |= total.sums
        self._add(arrays)

    def close(self, *, lost: dict[str, str], is_void: bool) -> None:
        """End the round and put the answers in site order.

        A void round keeps no answers, so none can enter a result.
        """
        self.lost, self.is_void = lost, is_void
        if is_void:
            self.total, self.answers = {}, {}
        elif self.masks is not None:
            self.total = self._unmasked(self.masks)
        self.sizes = {name: self.sizes[name] for name in self.sites if name in self.sizes}
        self.fields = {name: self.fields[name] for name in self.sizes}
        self.answers = {name: self.answers[name] for name in self.sites if name in self.answers}

    def enter(self, ledger: Ledger) -> dict[str, Any]:
        """Write the round to the ledger and return its entry for the history."""
        asked = [*self.sites, *self.retried]
        for group in (self.sites, self.retried):
            sent = dict.fromkeys(group, self.request.n_bytes)
            ledger.record(self.number, self.question.name, "sent", fields_of(self.arrays), sent)
        how = "discarded" if self.is_void else "summed" if self.verb == "sum" else "seen"
        if self.masks is not None and not self.is_void:
            how = "masked"
        alike: dict[Fields, dict[str, int]] = {}  # answers with the same fields share an entry
        for name, size in self.sizes.items():
            alike.setdefault(self.fields[name], {})[name] = size
        for fields, sizes in alike.items():
            ledger.record(self.number, self.question.name, how, fields, sizes)
        if self.sums:
            fields = next(iter(alike))  # all answers have these fields, since they were added up
            ledger.record(self.number, self.question.name, how, fields, self.sums)
        entry = {
            "round": self.number,
            "question": self.question.name,
            "sites": len(self.sizes),
            "bytes_up": sum(self.sizes.values()) + sum(self.sums.values()),
            "bytes_down": len(asked) * self.request.n_bytes,
        }
        if self.masks is not None and not self.masks.is_size:
            entry["rings"] = self.masks.fields
        return entry

    def raise_outcome(self) -> None:
        """Raise the error that ended the round, if any: a refusal, or the loss of sites."""
        if self.refused is not None:
            raise self.refused
        if self.lost:
            raise SitesLost(self.lost)

    def to_record(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return the header and arrays from which `from_record` restores the outcome."""
        header = {
            "round": self.number,
            "verb": self.verb,
            "question": self.question.name,
            "sizes": list(self.sizes.items()),
            "retried": self.retried,
            "lost": list(self.lost.items()),
        }
        if self.is_void:
            header["discarded"] = list(self.fields.items())
        if self.refused is not None:
            header["refused"] = str(self.refused)
        if self.verb == "sum":
            return header, dict(self.total)
        numbered = enumerate(self.answers.values())
        return header, {
            f"{i}/{key}": array for i, group in numbered for key, array in group.items()
        }

    def from_record(self, record: Message) -> None:
        """Restore the outcome from a journal instead of asking the sites."""
        expected = (self.number, self.verb, self.question.name)
        recorded = tuple(record.header.get(key) for key in ("round", "verb", "question"))
        if expected != recorded:
            raise JournalError(
                f"round {self.number} in the journal does not match this run, which is "
                f"{self.question.doing} in that round; start the run with a new journal"
            )
        self.sizes = dict(record.header["sizes"])
        self.retried = record.header["retried"]
        self.lost = dict(record.header["lost"])
        if "refused" in record.header:
            self.refused = PolicyRefused(record.header["refused"])
        self.is_void = bool(self.lost or self.refused)
        if self.is_void:
            self.fields = {
                name: tuple((key, tuple(shape), size) for key, shape, size in fields)
                for name, fields in record.header["discarded"]
            }
            return
        if self.verb == "sum":
            self.total = record.arrays
            sent = self.total if self.masks is None else self.masks.elements_like(self.total)
            self.fields = dict.fromkeys(self.sizes, fields_of(sent))
            return
        names = list(self.sizes)
        for key, array in record.arrays.items():
            index, name = key.split("/", 1)
            self.answers.setdefault(names[int(index)], {})[name] = array
        self.told = {name: self.question.told(arrays) for name, arrays in self.answers.items()}
        self.fields = {name: fields_of(arrays) for name, arrays in self.answers.items()}

    def _checked(self, message: Message, name: str, dimensions: Dimensions) -> Arrays:
        """Return the arrays of an answer, or the elements of a masked answer, after all checks."""
        if self.masks is not None:
            return self.masks.check(message.arrays, dimensions)
        energy = self._most_explained.get(name)
        if self._is_checked(message, dimensions):
            if energy is not None:
                self.question.check_explained(message.arrays, energy)
            return message.arrays
        return self.question.check_answer(message.arrays, dimensions, self.arrays, energy=energy)

    def _is_checked(self, message: Message, dimensions: Dimensions) -> bool:
        """Return whether a site in this process has already checked its answer as this round would.

        That is so if the site answered this round's own message, with the same dimensions.
        """
        answer = message.checked.get(self.question.name)
        if answer is None:
            return False
        asked = self.request.checked.get((self.question.name, answer.dimensions.get("d")))
        if asked is None or answer.asked is not asked.arrays:
            return False
        for name, length in answer.dimensions.items():
            if dimensions.setdefault(name, length) != length:
                return False
        return True

    def _unmasked(self, masks: Masks) -> Arrays:
        """Return the total of masked answers; refuse a total in which masks are left."""
        where = f"round {self.number}, while {self.question.doing}"
        if not masks.cancel(self.total):
            raise MessageError(
                f"{where}: the masks of the sites do not cancel, or a site could not answer; a site's "
                "own log says why it could not"
            )
        total = masks.decode(self.total)
        try:
            if masks.is_size or not masks.fit(total):
                return total
            if not masks.is_within(total):
                raise MessageError("the total is not a sum of answers")
            own = {name: total[name] for name in self.question.answers}
            return total | self.question.check_answer(
                own, dict(self.dimensions), self.arrays, is_total=True
            )
        except FedpcaError as error:
            raise MessageError(
                f"{where}: {error}; a site sent something other than its answer"
            ) from None

    def _explainable(self) -> dict[str, float]:
        """Return the largest norm of an answer that each site's rows can explain.

        The norm of ``A_i'A_i Z`` is at most the trace of ``A_i'A_i`` times the norm of Z.
        """
        if not self.question.explained:
            return {}
        blocks = (array for array in self.arrays.values() if array.ndim > 1)
        factor = max([1.0, *(float(np.linalg.norm(block)) for block in blocks)])
        slack = SITE_ENERGY_SLACK * sum(self.energies.values())
        return {name: factor * (energy + slack) for name, energy in self.energies.items()}

    def _sum_in_site_order(self) -> None:
        """Add the answers that are next in site order, and drop each answer after adding it."""
        while self._unsummed and self._unsummed[0] in self.answers:
            self._add(self.answers.pop(self._unsummed.popleft()))

    def _add(self, arrays: Arrays) -> None:
        if not self.total:
            self.total = {name: np.array(array) for name, array in arrays.items()}
        elif self.masks is not None:
            self.masks.add(self.total, arrays)
        else:
            for name, total in self.total.items():
                total += arrays[name]

    def _check_header(self, header: Header, name: str) -> None:
        """Raise the error that a site reports; refuse an answer to a different question."""
        raise_error_in(header)
        for key, value in (("site", name), *self._echo):
            if header.get(key) != value:
                shown = printable(repr(header.get(key)))
                raise MessageError(f"the answer's {key} is {shown}, not {value!r}")


def raise_error_in(header: Header) -> None:
    """Raise the error that a site reports in a message's header, if there is one."""
    check_header(header, ANSWER)
    if "error" in header:
        kind = REPORTED_BY_SITES.get(header["error"], MessageError)
        raise kind(header.get("text", "the site gave no reason"))


def reported(reply: RawAnswer, where: str) -> Message:
    """Return a site's reply, or raise the error in it, with ``where`` at the start of the text."""
    try:
        if isinstance(reply, SiteError):
            raise reply
        message = decode(reply) if isinstance(reply, bytes) else reply
        raise_error_in(message.header)
        return message
    except FedpcaError as error:
        raise type(error)(printable(f"{where}: {error}", MAX_REASON_CHARS)) from None


def collect(
    replies: Iterable[tuple[str, T]],
    accept: Callable[[str, T], None],
    failed: dict[str, str],
) -> dict[str, FedpcaError]:
    """Accept the replies of sites, and return the refusals by site.

    Sites that answer or refuse are removed from ``failed``. If a site's reply is an error, ``failed``
    maps the site to the error's text.
    """
    refused: dict[str, FedpcaError] = {}
    for name, reply in replies:
        try:
            accept(name, reply)
        except (MessageError, SiteError) as error:
            failed[name] = str(error)
            continue
        except (InputError, PolicyRefused) as error:
            refused[name] = error
        failed.pop(name, None)
    return refused


def joined(
    refused: Mapping[str, FedpcaError],
    sites: Sequence[str],
    kind: type[FedpcaError] | None = None,
) -> FedpcaError:
    """Return the refusals of several sites as one error, in the order of the sites.

    Sites refuse because of their rows or because of their policies. The error includes only refusals
    of one type; by default, that of the first site.
    """
    errors = [refused[name] for name in sites if name in refused]
    kind = kind or type(errors[0])
    return kind("; ".join(str(error) for error in errors if isinstance(error, kind)))


def reasons_of(refused: Mapping[str, FedpcaError]) -> dict[str, str]:
    """Return the text of each site's refusal."""
    return {name: str(error) for name, error in refused.items()}
