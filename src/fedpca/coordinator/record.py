"""Record a run: its rounds, its residuals, the data exchanged, and the sites lost."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import inf
from typing import Any, Literal

from fedpca.coordinator.ledger import Ledger
from fedpca.errors import InputError
from fedpca.facts import (
    BOUND,
    BYTES,
    COUNT,
    DATA,
    EPSILON,
    NUMBER,
    SHARE,
    SINE,
    Column,
    Fact,
    Records,
    Section,
    Sections,
    ValueKind,
)
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.proof import check_proofs

DOMINANT_SITE_SHARE = 0.9  # of the variance
MAX_DOMINANT_WEIGHT = 0.5  # share of the rows; a site with more never counts as dominant
NEARLY_ALL = 0.9999  # of the rows or their weight
DOMINANT_TIMES = 100.0  # times other sites' variance per row, as if values were 10 times too large
MAX_ROUNDING = 1e-6  # rounding may make a spent epsilon exceed the promised one by this share

StopReason = Literal[
    "exact",
    "approximate",
    "converged",
    "uncertain",
    "within-noise",
    "private",
    "max_rounds",
    "stalled",
    "inexact",
]
# what each reason means, and what it means for an estimator whose result is of another kind
STOPPED: dict[str, dict[str, str]] = {
    "exact": {
        "": "The components are exactly those of the pooled rows, up to rounding.",
        "RobustPCA": "The low-rank part is exact: apart from outliers, nothing is left of the rows.",
    },
    "approximate": {"": "The solver leaves something out in exchange for few rounds."},
    "converged": {
        "": "The solver converged to the components of the pooled rows.",
        "RobustPCA": "The solver converged; outliers and noise are outside the components.",
        "PersonalizedPCA": "The solver converged to a point where no small change is better.",
    },
    "uncertain": {"": "Rounding hides some components; only the certain ones can be trusted."},
    "within-noise": {
        "": "The certain components are those of the pooled rows; the variances of the others are "
        "within each other's sampling errors."
    },
    "private": {"": "The components are those of noisy totals; the noise protects each row."},
    "max_rounds": {"": "The solver ran out of rounds before it reached its tolerance."},
    "stalled": {"": "The solver stopped because it made no more progress."},
    "inexact": {"": "The solver stopped because the rows without outliers are not of low rank."},
}
NEEDING_ATTENTION = ("uncertain", "max_rounds", "stalled")  # reasons that need attention


def why_stopped(reason: str, estimator: str = "") -> str:
    """Return what a stop reason means for an estimator, or "" if a solver made the reason up."""
    words = STOPPED.get(reason, {})
    return words.get(estimator, words.get("", ""))


@dataclass(frozen=True)
class Outcome:
    """How a solver's run ended, as the solver's program reports it.

    ``stop_reason`` is one of the reasons in `STOPPED`, which says what each of them means. The sine of
    the angle between the components and those of the pooled rows is at most ``angle_bound``. The first
    ``n_certain`` components can be trusted, because the bound on their angle is small. Solvers with one
    round leave some variance out: the variance of each component is too small by at most ``left_out``,
    as a share of the total variance. ``advice`` is empty, names a solver that would have taken fewer
    rounds, or says what would be more accurate.
    """

    solver: str
    stop_reason: StopReason
    left_out: float = 0.0
    angle_bound: float = 0.0
    advice: str = ""
    n_certain: int = 0


@dataclass
class RunRecord:
    """The record of one run.

    ``history`` has an entry for each round: its number, question, number of sites, bytes up and down,
    seconds, and the residual if the solver reported one. ``lost`` lists each site that was dropped,
    with the round and the reason. ``sites`` are the sites whose rows contributed to the result.
    ``influence`` has what is known about each site's part in the result: its share of the ``rows``;
    its share of the ``weight`` if sites are not weighted by rows; its share of the ``variance`` about
    the common mean; the share of the variance that it ``caused``, that is, the share that would vanish
    without the site; and the ``angle``, the sine of the largest angle by which the components
    move without the site.

    For each site that signs its answers, ``proofs`` has the proof of the last answer: the ``head`` of
    the site's ledger, the ``digest_in`` of the question, a ``commitment`` to the answer, the site's
    ``signature`` of these three, and the fingerprint of its ``key``. `fedpca ledger verify` compares
    the proof with the site's ledger.

    In a run with secure sums, ``secure`` has the hash of the ``roster``, that is, of the names and keys
    of the sites that share masks. The entry of each masked round in ``history`` then has ``rings``: the
    bits of each field's ring, and the power of 2 by which the field's numbers were multiplied.

    In a differentially private run, ``privacy`` has the settings of `fedpca.Privacy`, and what the run
    spent: ``mu``, and the ``epsilon`` that follows from ``mu`` and ``delta``. This epsilon equals the
    ``promised`` one, unless the run started over and so spent more.

    ``log_normalized`` is the sum to which all sites normalized their cells, or zero if they did not.

    The other fields are those of `Outcome`. A model file keeps everything except the seconds and the
    influence. The influence would tell others how many rows a site has.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import FederatedPCA
    >>> rng = np.random.default_rng(0)
    >>> sites = {"north": rng.normal(size=(50, 4)), "south": rng.normal(size=(30, 4))}
    >>> run = FederatedPCA(2).fit(sites).run_
    >>> run.sites, run.rounds, run.stop_reason
    (('north', 'south'), 4, 'exact')
    """

    seed: int = 0
    sites: tuple[str, ...] = ()
    lost: list[dict[str, Any]] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    solver: str = ""
    stop_reason: str = ""
    left_out: float = 0.0
    angle_bound: float = 0.0
    advice: str = ""
    n_certain: int = 0
    influence: dict[str, dict[str, float]] = field(default_factory=dict)
    proofs: dict[str, dict[str, str]] = field(default_factory=dict)
    secure: dict[str, str] = field(default_factory=dict)
    privacy: dict[str, Any] = field(default_factory=dict)
    log_normalized: float = 0.0

    def add_round(self, messages: Sequence[Mapping[str, Any]], seconds: float) -> dict[str, Any]:
        """Add a round to the history, with the bytes of all its messages, and return its entry."""
        entry = {name: value for each in messages for name, value in each.items()}
        for name in ("bytes_up", "bytes_down"):
            entry[name] = sum(each[name] for each in messages)
        self.history.append({**entry, "seconds": seconds, "residual": None})
        return self.history[-1]

    def add_lost(self, reasons: Mapping[str, str]) -> None:
        """Add the sites that were lost in the last round, and why."""
        about = {name: self.history[-1][name] for name in ("round", "question")}
        self.lost += [{"site": name, **about, "reason": text} for name, text in reasons.items()]

    def add_spent(self, mu_squared: float, plan: RunPlan) -> None:
        """Add what a question spends to the privacy budget spent, even if only some sites answered."""
        from fedpca.privacy.gaussian import Privacy, epsilon_of

        settings = Privacy.of(plan)
        mu = math.hypot(self.privacy.get("mu", 0.0), math.sqrt(mu_squared))
        self.privacy = {
            **settings.to_plain(),
            "promised": settings.epsilon,
            "mu": mu,
            "epsilon": epsilon_of(mu, settings.delta),
        }

    def add_influence(self, kind: str, values: Mapping[str, float]) -> None:
        """Add one number about each site's part in the result."""
        for name, value in values.items():
            self.influence.setdefault(name, {})[kind] = value

    def with_outcome(self, outcome: Outcome) -> RunRecord:
        """Return the record with the outcome filled in."""
        return replace(self, **asdict(outcome))

    def to_header(self) -> dict[str, Any]:
        """Return the record as plain values for a file.

        Timings are replaced by None because they differ between runs that are otherwise the same. The
        influence is left out because it is for the coordinator only. Fields that only some runs have,
        such as proofs, are left out if they are empty.
        """
        optional = ("proofs", "secure", "privacy", "log_normalized")
        left_out = {"influence", *(name for name in optional if not getattr(self, name))}
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in left_out}
        history = [{**entry, "seconds": None} for entry in self.history]
        return {**values, "history": history, "ledger": self.ledger.to_header()}

    @classmethod
    def from_header(cls, header: dict[str, Any]) -> RunRecord:
        """Restore a record from the values that `to_header` returned."""
        ledger = Ledger.from_header(header["ledger"])
        proofs = check_proofs(header.get("proofs", {}))
        secure = check_secure(header.get("secure", {}), header["history"])
        known = {
            "sites": tuple(header["sites"]),
            "ledger": ledger,
            "proofs": proofs,
            "secure": secure,
            "privacy": check_privacy(header.get("privacy", {})),
            "log_normalized": check_log_normalized(header.get("log_normalized", 0.0)),
        }
        return cls(**{**header, **known})

    @property
    def dominant_site(self) -> str | None:
        """Return the one site that causes almost all variance with few of the rows, or None.

        Such a site causes more than `DOMINANT_SITE_SHARE` of the variance, and more than
        `DOMINANT_TIMES` as much per row as the other sites. A site does not count as dominant if it has
        most of the rows, or if it varies only a few times as much as the others. If the means of two
        sites are far apart, both sites cause the variance between the means, and neither stands out.
        """
        found = []
        for name, known in self.influence.items():
            weight = known.get("weight", known.get("rows", 1.0))
            caused = known.get("caused", known.get("variance", 0.0))
            is_dense = caused * (1 - weight) > DOMINANT_TIMES * weight * (1 - caused)
            if caused > DOMINANT_SITE_SHARE and is_dense:
                found.append((name, weight))
        if len(found) != 1 or found[0][1] > MAX_DOMINANT_WEIGHT:
            return None
        return found[0][0]

    @property
    def heavy_site(self) -> str | None:
        """Return the one of several sites that has nearly all of the weight, or None.

        Nobody can check how many rows a site has, so such a site can make the components its own.
        """
        shares = {name: known_share(known) for name, known in self.influence.items()}
        for name, share in shares.items():
            if share > NEARLY_ALL and any(shares[other] for other in shares if other != name):
                return name
        return None

    @property
    def rings(self) -> list[tuple[str, str, int, int]]:
        """Return each masked field's question and name, and its ring's bits and fraction bits."""
        found = {
            (entry["question"], name, bits, fraction_bits): None
            for entry in self.history
            for name, (bits, fraction_bits) in sorted(entry.get("rings", {}).items())
        }
        return list(found)

    @property
    def rounds(self) -> int:
        """Return the number of questions asked, including those for the mean and the final check."""
        return len(self.history)

    @property
    def solver_rounds(self) -> int:
        """Return the number of rounds after which the solver reported a residual."""
        return sum(entry["residual"] is not None for entry in self.history)

    @property
    def bytes_up(self) -> int:
        """Return the number of bytes sent from the sites to the coordinator."""
        return sum(entry["bytes_up"] for entry in self.history)

    @property
    def bytes_down(self) -> int:
        """Return the number of bytes sent from the coordinator to the sites."""
        return sum(entry["bytes_down"] for entry in self.history)

    def facts(self, estimator: str = "") -> Sections:
        """Return how the run ended, what it cost, and what it revealed, as sections of facts."""
        if not self.history:
            return ()
        bound, reason = self.angle_bound, self.stop_reason
        is_known = estimator == "FederatedPCA" and not self.privacy
        run = (
            Fact("solver", self.solver),
            Fact("stop_reason", reason, note=why_stopped(reason, estimator)),
            Fact("angle_bound", bound if is_known else None, BOUND, note=SINE),
            Fact(
                "left_out", self.left_out or None, NUMBER, "each variance is too small by at most"
            ),
            Fact("n_certain", self.n_certain or None, COUNT, "certain components"),
            Fact("n_sites", len(self.sites), COUNT, "sites"),
            Fact("rounds", self.rounds, COUNT),
            Fact("bytes_up", self.bytes_up, BYTES, "bytes from the sites"),
            Fact("bytes_down", self.bytes_down, BYTES, "bytes to the sites"),
            Fact("sites", self.sites, DATA),
            Fact("lost", self.lost, DATA),
            Fact("advice", self.advice, DATA),
        )
        roster = f"answers were masked, and reveal only totals over {len(self.sites)} sites"
        secure = [
            Fact(key, v, label=f"hash of the {key}", note=roster) for key, v in self.secure.items()
        ]
        proofs = [(site, *(each[c.key] for c in PROOF[1:])) for site, each in self.proofs.items()]
        return (
            Section("run", run),
            Section("run.secure", tuple(secure), "Secure sums"),
            Section("run.privacy", self._promise(), "Differential privacy"),
            Records("run.proofs", PROOF, proofs, "Signed answers", by_first=True),
            self._influences(),
        )

    def exchanged(self, site: str | None = None) -> Sections:
        """Return the data exchanged, with all sites or with one, and the rings of masked answers."""
        if not self.history:
            raise InputError("the run has no ledger; omit --ledger and --site")
        if site not in (None, *self.sites, *(loss["site"] for loss in self.lost)):
            raise InputError(f"no site {site!r} in this run; the sites are {', '.join(self.sites)}")
        return (
            self.ledger.facts(site),
            Records("rings", RING, self.rings, "Rings of masked answers"),
        )

    def cautions(self) -> list[str]:
        """Return what a person should know about the run before using its result."""
        failed = [why_stopped(self.stop_reason)] if self.stop_reason in NEEDING_ATTENTION else []
        lost = [f"Lost in round {loss['round']}: {loss['reason']}" for loss in self.lost]
        return [*failed, *lost, *([self.advice] if self.advice else [])]

    def _promise(self) -> tuple[Fact, ...]:
        """Return what a private run promised about each row, and what it spent."""
        if not self.privacy:
            return ()
        promised, spent = self.privacy["promised"], self.privacy["epsilon"]
        note = ""
        if promised == inf:
            note = "no differential privacy: epsilon was infinite, so no noise was added"
        elif spent > promised * (1 + MAX_ROUNDING):
            note = "the run started over: it spent more than promised"
        first = (
            Fact("promised", promised, EPSILON, "epsilon promised for each row"),
            Fact("epsilon", spent, EPSILON, "epsilon spent", note),
            Fact("delta", self.privacy["delta"], NUMBER),
            Fact("row_bound", self.privacy["row_bound"], NUMBER, "distance up to which rows count"),
        )
        known = {fact.key for fact in first}
        more = [Fact(key, value, DATA) for key, value in self.privacy.items() if key not in known]
        return (*first, *more)

    def _influences(self) -> Records:
        """Return each site's known influence, the largest first; a model file stores none."""
        sites = sorted(self.influence.items(), key=lambda item: -item[1].get("variance", 0.0))
        rows = [(name, *(each.get(c.key) for c in INFLUENCE[1:])) for name, each in sites]
        notes = [
            f"{key}: {words}" for key, words in CAUSES.items() if any(key in s for _, s in sites)
        ]
        return Records(
            "influence",
            INFLUENCE,
            rows if len(self.sites) > 1 else [],
            "Influence of each site",
            "; ".join(notes),
            by_first=True,
            n_shown=20,
        )


RING_STEP = ValueKind(lambda fraction_bits: f"2^{-fraction_bits}")
PROOF = (
    Column("site"),
    Column("key", label="fingerprint of its key"),
    Column("head", label="head of its ledger"),
    *(Column(key, DATA) for key in ("digest_in", "commitment", "signature")),
)
RING = (Column("question"), Column("field"), Column("bits", COUNT), Column("step", RING_STEP))
INFLUENCE = (
    Column("site"),
    Column("rows", SHARE),
    Column("weight", SHARE),
    Column("variance", SHARE),
    Column("caused", SHARE),
    Column("angle", NUMBER),
)

CAUSES = {
    "caused": "the share of the variance that would vanish without the site",
    "angle": "the sine of the angle by which the components would move without it",
}


def known_share(known: Mapping[str, float]) -> float:
    """Return a site's share of the weight, or of the rows if rows are what counts."""
    return known.get("weight", known.get("rows", 0.0))


def check_secure(secure: object, history: list[dict[str, Any]]) -> dict[str, str]:
    """Return what a run record says about secure sums, or raise a ValueError if it is malformed."""
    if not isinstance(secure, dict) or set(secure) - {"roster"}:
        raise ValueError("the run record's entry for secure sums is malformed")
    for roster in secure.values():
        if not isinstance(roster, str) or not re.fullmatch("[0-9a-f]{64}", roster):
            raise ValueError("the run record's hash of the roster is malformed")
    for entry in history:
        for bits, fraction_bits in dict(entry.get("rings", {})).values():
            if not isinstance(bits, int) or not isinstance(fraction_bits, int):
                raise ValueError("the run record's ring for a masked answer is malformed")
    return secure


def check_log_normalized(target: object) -> float:
    """Return the sum to which cells were normalized, or raise a ValueError if it is malformed."""
    if not isinstance(target, float) or not 0 <= target < inf:
        raise ValueError("the run record's entry for the normalization of cells is malformed")
    return target


def check_privacy(privacy: object) -> dict[str, Any]:
    """Return what a run record says about differential privacy, or raise a ValueError."""
    from fedpca.privacy.gaussian import Privacy

    if not isinstance(privacy, dict) or not privacy:
        if privacy != {}:
            raise ValueError("the run record's entry for differential privacy is malformed")
        return {}
    spent = {name: privacy.get(name) for name in ("epsilon", "mu")}
    if not all(type(value) is float and value >= 0 for value in spent.values()):
        raise ValueError("the run record's entry for the spent privacy budget is malformed")
    settings = {name: value for name, value in privacy.items() if name not in (*spent, "promised")}
    Privacy.from_plain({**settings, "epsilon": privacy.get("promised")})
    return privacy


def shares_of(amounts: Mapping[str, float]) -> dict[str, float]:
    """Return each site's share of the total; if the total is zero, so are the shares."""
    total = sum(amounts.values())
    return {name: amount / total if total > 0 else 0.0 for name, amount in amounts.items()}
