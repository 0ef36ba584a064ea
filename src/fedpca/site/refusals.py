"""Say why a rule of a site's policy refuses a plan, in words that name the rule and the way out.

Each function is the ``refuses`` of a row in `fedpca.site.policy.Policy`. It returns None if the rule
does not refuse the plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpca.privacy.gaussian import Privacy, epsilon_of
from fedpca.protocol.plan import NO_KEY, SECURE
from fedpca.protocol.printable import printable
from fedpca.site.rules import PRIVATE_RUNS, Asked

if TYPE_CHECKING:
    from fedpca.site.policy import Policy


def word(policy: Policy, asked: Asked) -> str | None:
    """Return why a plan is refused that needs a word which the policy does not allow."""
    for word, use in asked.script.words.items():
        if word not in policy.allow:
            needed = "" if use == word else f", which this run needs for {use}"
            return (
                f"the policy does not allow {word!r}{needed}, only {', '.join(policy.allow)}; to take "
                f"part, the site must add {word!r} to its policy's allow"
            )
    return None


def seen(policy: Policy, asked: Asked) -> str | None:
    """Return why a plan is refused that shows the coordinator the answers of single sites."""
    if policy.gather or not asked.script.sees:
        return None
    return (
        f"{asked.plan.program} with solver {asked.plan.solver!r} shows the coordinator this site's own "
        f"answers to {', '.join(asked.script.sees)}, but the policy has gather=false"
    )


def strangers(policy: Policy, asked: Asked) -> str | None:
    """Return why a plan is refused whose sites the policy does not know."""
    sites, known = asked.plan.sites, (asked.own_key, *policy.peers)
    if asked.plan.is_private and asked.plan.is_secure and not policy.peers:
        if asked.own_key == NO_KEY:  # within the coordinator's own process
            return None
        return (
            "the sites of the plan would share the noise, but the policy lists no peers, so the "
            "coordinator could have invented sites that add no noise; list the fingerprints of the "
            "other sites' keys in the policy's peers, or fit without secure sums, so that each "
            "site adds all of the noise"
        )
    unknown = [printable(name) for name, key in sorted(sites.items()) if key not in known]
    if not policy.peers or not unknown:
        return None
    return (
        f"the plan has sites whose keys are not in the policy's peers: {', '.join(unknown)}; the "
        "site must add the fingerprints of these keys, or the run must leave these sites out"
    )


def lacking(policy: Policy, asked: Asked) -> str | None:
    """Return why a plan is refused that has no secure sums, or no noise."""
    if SECURE in policy.require and not asked.plan.is_secure:
        return (
            "the policy requires secure sums, but the plan has none; use Federation(secure=True) or "
            "`fedpca fit --secure`"
        )
    return _exact(policy, asked) if policy.must_be_private else None


def _exact(policy: Policy, asked: Asked) -> str | None:
    """Return why a plan that asks for answers without noise is refused."""
    limit = policy.max_epsilon
    by = f"require={PRIVATE_RUNS!r}" if limit is None else f"max_epsilon={limit:g}"
    only = f"the policy has {by}, so the site takes part only in differentially private runs"
    run = f"{asked.plan.program} with solver {asked.plan.solver!r}"
    if not asked.plan.is_private:
        return (
            f"{only}, but this {run} is not private; use FederatedPCA(privacy=Privacy(...)) or "
            "`fedpca fit --epsilon`"
        )
    questions = asked.script.order.questions()
    exact = dict.fromkeys(q.name for q in questions if q.reads_rows and q.spends is None)
    return f"{only}, but {run} asks for {', '.join(exact)} without noise" if exact else None


def little_noise(policy: Policy, asked: Asked) -> str | None:
    """Return why a plan is refused whose noise cannot take the place of the rules about few rows."""
    if not asked.plan.is_private:
        return None
    privacy, delta = Privacy.of(asked.plan), policy.delta
    if not policy.noise_hides_rows(asked.plan):
        return (
            f"the policy has run_epsilon={policy.run_epsilon:g}, but the plan asks for epsilon "
            f"{epsilon_of(privacy.mu, delta):.4g} at the policy's delta={delta:g}, so its noise would "
            f"not hide single rows; use at most epsilon={policy.run_epsilon:g} with delta={delta:g}, "
            "or ask the site to raise run_epsilon"
        )
    # the coordinator's own organization often has one of the other sites
    if asked.plan.is_secure and privacy.n_silent < 1:
        return (
            "the sites of the plan share the noise with n_silent=0, so a single site that reveals its "
            "noise would leave less than run_epsilon needs; use n_silent=1 or more"
        )
    return None
