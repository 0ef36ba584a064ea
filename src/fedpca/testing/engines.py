"""Check the guarantees that every engine must provide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedpca.coordinator.federation import Federation
from fedpca.engines.base import Engine
from fedpca.errors import SiteError
from fedpca.estimators import FederatedPCA
from fedpca.protocol.message import Message, compose, decode
from fedpca.solvers.common_features import column_names

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
    names = list(engine.names)
    _require(len(names) >= 2, f"check_engine needs at least two sites, but got {names}")
    _require(len(set(names)) == len(names), f"site names must be unique, but got {names}")
    unknown = set(engine.fingerprints()) - set(names)
    _require(not unknown, f"fingerprints() includes unknown sites: {sorted(unknown)}")
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
    engine.close()
    engine.close()
    reopened = _ask(engine, names, "check.1", 1)
    _require(sorted(reopened) == sorted(names), "the engine must work again if asked after close()")
    if rows is not None:
        _check_fit(engine, rows)


def _ask(
    engine: Engine,
    names: Sequence[str],
    run: str,
    number: int,
    question: str = column_names.name,
) -> dict[str, Message | SiteError]:
    header = {
        "run": run,
        "round": number,
        "question": question,
        "verb": "gather",
        "n_sites": len(engine.names),
        "memory": 0,
    }
    answers: dict[str, Message | SiteError] = {}
    for name, reply in engine.ask(names, compose(header, {}), WAIT_S):
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
