"""Check the guarantees that every engine must provide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedpca.arrays import Arrays
from fedpca.coordinator.federation import Federation
from fedpca.engines.base import ENGINE_FEATURES, Engine, Summand
from fedpca.errors import SiteError, SitesBusy
from fedpca.estimators import FederatedPCA
from fedpca.protocol.message import Message, compose, decode
from fedpca.protocol.proof import check_proofs
from fedpca.solvers.common_features import column_names
from fedpca.solvers.standardize import count_and_sum

WAIT_S = 600.0  # generous, because a check must not depend on machine speed


def check_engine(engine: Engine, rows: Mapping[str, Any] | None = None) -> None:
    """Check an engine, and raise an AssertionError that describes the first guarantee it breaks.

    Parameters
    ----------
    engine : Engine
        An engine with at least two sites.
    rows : dict, optional
        The rows of each site, by site name. If you pass them, a fit over the engine must match a fit
        within this process bit for bit. Its ledger must be the same too, apart from entries for sums
        that the engine computes on the way.
    """
    _require(
        isinstance(engine, Engine),
        f"{type(engine).__name__} must be derived from fedpca.engines.base.Engine",
    )
    names = list(engine.names)
    _require(len(names) >= 2, f"check_engine needs at least two sites, but got {names}")
    _require(len(set(names)) == len(names), f"site names must be unique, but got {names}")
    _check_members(engine)
    whole = _ask(engine, names, "check.0", 1)
    _require(
        sorted(whole) == sorted(names),
        f"asked {names}, but got answers from {list(whole)}; every site must answer once",
    )
    for name, answer in whole.items():
        _check_answer(name, answer, "check.0", 1)
    again = _ask(engine, names, "check.0", 1)
    _require(
        all(_contents(again[name]) == _contents(whole[name]) for name in names),
        "repeating a round gave a different answer",
    )
    _check_proofs(engine)
    part = _ask(engine, names[1:], "check.0", 2)
    _require(
        sorted(part) == sorted(names[1:]), f"asked {names[1:]}, but got answers from {list(part)}"
    )
    strange = _ask(engine, names[:1], "check.0", 3, question="no_such_question")
    refusal = strange.get(names[0])
    _require(
        isinstance(refusal, Message) and "error" in refusal.header,
        "a site's error must be returned as its answer, not raised or dropped",
    )
    for run in ("check.1", "check.2"):
        try:
            with engine.hold(run):
                held = _ask(engine, names, run, 1)
        except SitesBusy as error:
            raise AssertionError("hold() must leave the sites to the next run") from error
        _require(sorted(held) == sorted(names), "the engine must work while hold() reserves sites")
    _check_total(engine)
    engine.close()
    engine.close()
    reopened = _ask(engine, names, "check.3", 1)
    _require(sorted(reopened) == sorted(names), "the engine must work again if asked after close()")
    if rows is not None:
        _check_fit(engine, rows)


def _check_members(engine: Engine) -> None:
    """Check the members that most engines leave as they are."""
    named = {
        "fingerprints()": engine.fingerprints(),
        "sites": engine.sites,
        "keys": engine.keys,
        "proofs": engine.proofs,
    }
    for member, each in named.items():
        unknown = set(each) - set(engine.names)
        _require(not unknown, f"{member} includes unknown sites: {sorted(unknown)}")
    both = set(engine.absent) & set(engine.names)
    _require(not both, f"sites are named and absent at the same time: {sorted(both)}")
    unknown = set(engine.lacks) - set(ENGINE_FEATURES)
    _require(
        not unknown, f"lacks has {sorted(unknown)}, but may only have {', '.join(ENGINE_FEATURES)}"
    )
    for member, reasons in {"lacks": engine.lacks, "absent": engine.absent}.items():
        silent = [name for name, text in reasons.items() if not isinstance(text, str) or not text]
        _require(not silent, f"{member} must give a reason for each of {silent}")
    _require(isinstance(engine.declares, bool), f"declares={engine.declares!r} must be a bool")
    signature = engine.sign(b"a plan")
    _require(signature is None or isinstance(signature, bytes), "sign() must return bytes or None")


def _check_proofs(engine: Engine) -> None:
    """Check that an engine that keeps proofs has one of each site that has just answered."""
    proofs = dict(engine.proofs)
    missing = set(engine.names) - set(proofs) if proofs else set()
    _require(not missing, f"proofs has none of {sorted(missing)}, which answered")
    try:
        check_proofs(proofs)
    except ValueError as error:
        raise AssertionError(f"proofs: {error}") from error


def _check_total(engine: Engine) -> None:
    """Check that answers that are added up on the way have the sum of the answers themselves."""
    names = list(engine.names)
    arrays = {"features": np.empty(0, np.uint8), "missing": np.asarray(0)}
    request = _request(engine, "check.4", 1, count_and_sum.name, "sum", arrays)
    if engine.ask_total is None:
        return
    total = engine.ask_total(names, request, WAIT_S)
    _require(
        sorted(total.replies) == sorted(names),
        f"asked {names} for a total, but got replies of {list(total.replies)}",
    )
    answers = [
        answer.arrays
        for answer in _answers(engine, names, request).values()
        if isinstance(answer, Message) and "error" not in answer.header
    ]
    for field in count_and_sum.answers if answers else ():
        expected = np.sum([each[field] for each in answers], axis=0)
        _require(
            field in total.arrays and np.allclose(total.arrays[field], expected, rtol=1e-12),
            f"ask_total() returned a {field!r} other than the sum of the answers",
        )
    n_summed = sum(isinstance(each, Summand) for each in total.replies.values())
    _require(
        n_summed == len(answers),
        f"ask_total() returned {n_summed} summands of {len(answers)} sites that answer",
    )


def _ask(
    engine: Engine, names: Sequence[str], run: str, number: int, question: str = column_names.name
) -> dict[str, Message | SiteError]:
    """Ask sites a question without arrays, and return their checked answers."""
    return _answers(engine, names, _request(engine, run, number, question, "gather", {}))


def _request(
    engine: Engine, run: str, number: int, question: str, verb: str, arrays: Arrays
) -> Message:
    header = {
        "run": run,
        "round": number,
        "question": question,
        "verb": verb,
        "n_sites": len(engine.names),
        "memory": 0,
    }
    return compose(header, arrays)


def _answers(
    engine: Engine, names: Sequence[str], request: Message
) -> dict[str, Message | SiteError]:
    answers: dict[str, Message | SiteError] = {}
    for name, reply in engine.ask(names, request, WAIT_S):
        _require(name not in answers, f"site {name!r} answered twice")
        is_answer = isinstance(reply, Message | bytes | SiteError)
        _require(is_answer, f"site {name!r} answered with a {type(reply).__name__}")
        answers[name] = decode(reply) if isinstance(reply, bytes) else reply
    return answers


def _check_answer(name: str, answer: Message | SiteError, run: str, number: int) -> None:
    if isinstance(answer, SiteError):
        raise AssertionError(f"site {name!r} did not answer: {answer}")
    found = {key: answer.header.get(key) for key in ("site", "run", "round", "question")}
    due = {"site": name, "run": run, "round": number, "question": column_names.name}
    _require(found == due, f"the answer from site {name!r} has {found} instead of {due}")


def _contents(answer: Message | SiteError) -> Any:
    if isinstance(answer, SiteError):
        return str(answer)
    return answer.header, {name: array.tobytes() for name, array in answer.arrays.items()}


def _check_fit(engine: Engine, rows: Mapping[str, Any]) -> None:
    for solver in ("covariance", "lanczos"):
        over_engine, within = (
            FederatedPCA(2, solver=solver, random_state=0).fit(federation)
            for federation in (
                Federation(engine, timeout=WAIT_S),
                Federation.local({name: rows[name] for name in engine.names}),
            )
        )
        _require(
            np.array_equal(over_engine.components_, within.components_),
            f"the components from solver {solver!r} differ from those computed within one process",
        )
        # an engine may add up answers on the way; the ledger then lists these sums as well
        entries = [entry for entry in over_engine.run_.ledger if entry.site in engine.names]
        _require(
            entries == list(within.run_.ledger),
            f"the ledger for solver {solver!r} differs from the ledger within one process",
        )


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise AssertionError(text)
