"""Declare a run before it begins: who asks whom, for what, and by which method.

The plan is the first message of a run. A site whose policy does not allow the plan answers nothing.
Once a site has admitted a plan, it answers the questions that the plan's method asks, and no others
(`fedpca.protocol.script`).

A plan is encoded as JSON with sorted keys, so that the same plan always has the same bytes. The
coordinator signs these bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedpca.errors import MessageError

PLAN_DOMAIN = b"fedpca declared plan, version 1\0"
DECLARE = "declare_run"  # takes the place of a question's name
# also in place of a name, before the first question of a run with secure sums
AGREE = "agree_on_keys"
SECURE = "secure"  # the privacy setting that asks for secure sums
PRIVATE = "differential"  # the privacy settings of a differentially private run
MAX_PLAN_BYTES = 1 << 20  # a plan lists sites, and perhaps numbers of components by site
MAX_PURPOSE = 500  # characters
MAX_RUN_NAME_CHARS = 100  # characters in the name of a run or a program
MAX_PLAN_ROUNDS = 10**6  # more rounds than any program takes
NO_KEY = ""  # the fingerprint of a site in the coordinator's own process


@dataclass(frozen=True)
class RunPlan:
    """What a coordinator declares before it asks the first question.

    Parameters
    ----------
    run : str
        The name of the run, without the number of the attempt.
    program : str
        The estimator, as in "FederatedPCA".
    parameters : dict
        The estimator's parameters as plain values; ``solver`` is a name or a table of options.
    sites : dict
        The names of the sites that take part, and the fingerprints of their keys.
    purpose : str
        Why the run takes place, in one line.
    privacy : dict
        The privacy settings: "secure" is True if every sum is a secure sum, and "differential" has the
        settings of `fedpca.Privacy` if every answer about rows gets noise.
    quorum : int, optional
        The smallest number of these sites with which the run may go on; by default, all of them.
    """

    run: str
    program: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    sites: Mapping[str, str] = field(default_factory=dict)
    purpose: str = ""
    privacy: Mapping[str, Any] = field(default_factory=dict)
    quorum: int | None = None

    @property
    def fewest_sites(self) -> int:
        """Return the smallest number of sites with which the run may go on."""
        return len(self.sites) if self.quorum is None else self.quorum

    @property
    def is_secure(self) -> bool:
        """Return whether the plan asks for secure sums."""
        return self.privacy.get(SECURE) is True

    @property
    def is_private(self) -> bool:
        """Return whether the plan promises differential privacy."""
        return PRIVATE in self.privacy

    @property
    def solver(self) -> str:
        """Return the name of the solver, or "auto"."""
        given = self.parameters.get("solver")
        if isinstance(given, Mapping):
            given = given.get("name")
        return "auto" if given is None else str(given)

    @property
    def max_rounds(self) -> int:
        """Return the maximum number of rounds that the solver may take."""
        return int(self.parameters.get("max_rounds", MAX_PLAN_ROUNDS))

    @property
    def digest(self) -> str:
        """Return a hash that identifies the plan."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @property
    def statement(self) -> bytes:
        """Return the bytes that the coordinator signs."""
        return PLAN_DOMAIN + self.to_bytes()

    def to_bytes(self) -> bytes:
        """Encode the plan; the same plan always has the same bytes."""
        return json.dumps(vars(self), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> RunPlan:
        """Decode a plan, or raise an error that says what is wrong with it."""
        if len(data) > MAX_PLAN_BYTES:
            raise MessageError(
                f"the plan has {len(data):,} bytes, which exceeds the limit of {MAX_PLAN_BYTES:,}"
            )
        try:
            given = json.loads(data)
            plan = cls(**given)
        except (ValueError, TypeError, RecursionError) as error:
            raise MessageError(f"the plan cannot be read: {type(error).__name__}") from None
        plan._check()
        return plan

    def _check(self) -> None:
        texts = (self.run, self.program, self.purpose)
        if not all(isinstance(text, str) for text in texts) or not self.run or not self.program:
            raise MessageError("the plan must name its run and its program")
        if max(len(self.run), len(self.program)) > MAX_RUN_NAME_CHARS:
            raise MessageError(
                f"the plan has a name of more than {MAX_RUN_NAME_CHARS} characters; shorten it"
            )
        tables = (self.parameters, self.sites, self.privacy)
        if not all(isinstance(table, dict) for table in tables):
            raise MessageError("the plan's parameters, sites, and privacy settings must be tables")
        known = {SECURE: True, PRIVATE: self.privacy.get(PRIVATE)}
        is_known = all(
            name in known and value == known[name] for name, value in self.privacy.items()
        )
        if not is_known or not isinstance(self.privacy.get(PRIVATE, {}), dict):
            raise MessageError(
                "the plan has unknown privacy settings; install the same version of fedpca everywhere"
            )
        if not self.sites or not all(isinstance(key, str) for key in self.sites.values()):
            raise MessageError("the plan must list its sites with the fingerprints of their keys")
        if type(self.fewest_sites) is not int or not 1 <= self.fewest_sites <= len(self.sites):
            raise MessageError(
                "the plan's quorum must be a whole number from 1 to the number of its sites"
            )
        keys = [key for key in self.sites.values() if key != NO_KEY]
        if len(set(keys)) < len(keys):
            raise MessageError(
                "the plan lists two sites with the same key; each site needs its own key"
            )
        if len(self.purpose) > MAX_PURPOSE:
            raise MessageError(
                f"the plan's purpose has more than {MAX_PURPOSE} characters; shorten it"
            )
        rounds = self.parameters.get("max_rounds", 1)
        if not isinstance(rounds, int) or not 1 <= rounds <= MAX_PLAN_ROUNDS:
            raise MessageError(
                f"the plan's max_rounds must be a whole number from 1 to {MAX_PLAN_ROUNDS:,}"
            )
