"""The promises that every engine keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedpca.coordinator.federation import Federation
from fedpca.engines.base import Engine
from fedpca.errors import SiteError
from fedpca.estimators import FederatedPCA
from fedpca.protocol.message import Message, compose, decode
from fedpca.solvers.standardize import column_names

WAIT_S = 600.0  # generous: a check must not depend on the speed of the machine


def check_engine(engine: Engine, rows: Mapping[str, Any] | None = None) -> None:
    """Raise an AssertionError that names the first promise of an engine that is not kept.

    Parameters
    ----------
    engine : Engine
        With at least two sites.
    rows : dict, optional
        The rows of its sites, by name. Where they are given, a fit over the engine must have the same
        bits and the same ledger as one within this process.
    """
    names = list(engine.names)
    _require(len(names) >= 2, f"give check_engine at least two sites, not {names}")
    _require(len(set(names)) == len(names), f"names of sites must differ: {names}")
    unknown = set(engine.fingerprints()) - set(names)
    _require(not unknown, f"fingerprints of sites that are not its own: {sorted(unknown)}")
    whole = _ask(engine, names, "check.0", 1)
    _require(
        sorted(whole) == sorted(names),
        f"asked {names}, and got answers of {list(whole)}: every site answers once",
    )
    for name, answer in whole.items():
        _check_answer(name, answer, "check.0", 1)
    again = _ask(engine, names, "check.0", 1)
    _require(
        all(_contents(again[name]) == _contents(whole[name]) for name in names),
        "a round that was asked again got another answer",
    )
    part = _ask(engine, names[1:], "check.0", 2)
    _require(
        sorted(part) == sorted(names[1:]), f"asked {names[1:]}, and got answers of {list(part)}"
    )
    strange = _ask(engine, names[:1], "check.0", 3, question="no_such_question")
    refusal = strange.get(names[0])
    text = str(refusal.header.get("text")) if isinstance(refusal, Message) else ""
    _require(
        "no_such_question" in text,
        "an error at a site must come back as its answer, and not as an exception or as nothing",
    )
    engine.close()
    engine.close()
    reopened = _ask(engine, names, "check.1", 1)
    _require(sorted(reopened) == sorted(names), "after close, asking must take up the work again")
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
    _require(found == due, f"the answer of site {name!r} says {found} instead of {due}")


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
            f"components of solver {solver!r} differ from those within one process",
        )
        _require(
            list(over_engine.run_.ledger) == list(within.run_.ledger),
            f"the ledger of solver {solver!r} differs from that within one process",
        )


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise AssertionError(text)
