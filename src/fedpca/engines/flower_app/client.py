"""Answer questions in Flower's ClientApp, at a SuperNode or at a node of Flower's simulation.

Flower starts a process for each message. So the app opens the rows anew each time, and everything that
the site must remember between questions is in files in its folder.

The SuperNode's configuration says where the rows are and what may be asked about them. The run's
configuration, which comes from the coordinator, says nothing about either, except in a simulation,
where all rows belong to one person.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from fedpca.engines.default_locations import home
from fedpca.engines.flower_app.envelope import (
    ANSWER_ACTION,
    NAME_ACTION,
    unwrap,
    wrap,
    wrap_name,
)
from fedpca.errors import InputError
from fedpca.site.answer_log import AnswerLog
from fedpca.site.policy import JOINING, Policy
from fedpca.site.site import Site
from fedpca.site.store import LEDGER

log = logging.getLogger("fedpca.site")

PREFIX = "fedpca."  # of this app's settings in a node's configuration, which other apps share
SIMULATED = "simulated-"  # of the same settings in the run's configuration of a simulation
UNKNOWN_ERROR = 0  # Flower's code for an unspecified error


def client_app() -> ClientApp:
    """Return the app that answers questions about a node's rows.

    A SuperNode needs the settings ``fedpca.rows`` and ``fedpca.name`` in its ``--node-config``; see
    `NodeSettings` for the others. The nodes of a simulation are named site-1, site-2, and so on, with
    leading zeros if there are ten or more. They read their settings from the run's configuration, where
    ``{site}`` stands for a node's name.
    """
    app = ClientApp()

    @app.query(NAME_ACTION)
    def tell_name(message: Message, context: Context) -> Message:
        return Message(wrap_name(settings_of(context).name), reply_to=message)

    @app.query(ANSWER_ACTION)
    def answer(message: Message, context: Context) -> Message:
        # Flower would send the text of an exception, which may quote a path or a value from a row
        try:
            data = settings_of(context).answer_log().answer(unwrap(message))
        except Exception as error:
            log.exception("this node could not answer")
            reason = f"{type(error).__name__}; see the log of the SuperNode for details"
            return Message(Error(UNKNOWN_ERROR, reason), reply_to=message)
        return Message(wrap(data), reply_to=message)

    return app


@dataclass(frozen=True)
class NodeSettings:
    """What a node's configuration says about its site.

    ``rows`` is a file or folder. ``folder`` is where the site keeps its memory and its ledger.
    ``policy`` is a policy file; without one, the site takes part only in plain PCA with summed answers.
    ``drop``, ``columns``, and ``id`` are column names separated by commas, and ``weight`` is the name
    of a column; see `fedpca.Site`.
    """

    rows: str
    name: str
    policy: str = ""
    folder: str = ""
    drop: str = ""
    columns: str = ""
    id: str = ""
    weight: str = ""

    def answer_log(self) -> AnswerLog:
        """Open the rows, and return the log that answers questions about them."""
        policy = Policy.load(self.policy) if self.policy else JOINING
        policy.refuse_unknown_sites()
        folder = Path(self.folder) if self.folder else home() / "sites" / self.name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        site = Site(
            self.rows,
            name=self.name,
            policy=policy,
            store=folder,
            drop=_names(self.drop),
            columns=_names(self.columns),
            id=_names(self.id),
            weight=self.weight or None,
        )
        site.keeps_process = False
        return AnswerLog(site, LEDGER.path(folder, self.name), log.info)


def settings_of(context: Context) -> NodeSettings:
    """Return a node's settings; refuse a configuration with a missing or an unknown setting."""
    node, prefix = dict(context.node_config), PREFIX
    given = {key: value for key, value in node.items() if key.startswith(prefix)}
    if not given and set(node) == {"partition-id", "num-partitions"}:  # a node of a simulation
        prefix = SIMULATED
        given = _simulated(node, context.run_config)
    known = {f"{prefix}{field.name}" for field in fields(NodeSettings)}
    unknown = sorted(set(given) - known)
    if unknown:
        raise InputError(f"{', '.join(unknown)} is unknown; use only the settings {sorted(known)}")
    missing = [key for key in (f"{prefix}rows", f"{prefix}name") if not given.get(key)]
    if missing:
        raise InputError(
            f"{', '.join(missing)} is missing; start the SuperNode with --node-config "
            f'\'{PREFIX}rows="FILE" {PREFIX}name="NAME"\''
        )
    return NodeSettings(**{key.removeprefix(prefix): str(value) for key, value in given.items()})


def _simulated(node: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of one node of a simulation, from the run's configuration."""
    n_sites = int(node["num-partitions"])
    name = f"site-{int(node['partition-id']) + 1:0{len(str(n_sites))}d}"
    given = {
        key: str(value).replace("{site}", name)
        for key, value in run.items()
        if key.startswith(SIMULATED)
    }
    return {**given, f"{SIMULATED}name": name}


def _names(text: str) -> list[str] | None:
    return [name.strip() for name in text.split(",")] if text else None
