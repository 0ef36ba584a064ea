"""Faults of runs with secure sums: crashes, losses, and coordinators that lie."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key

from fedpca import FederatedPCA, Federation, Policy, Site
from fedpca.engines import credentials
from fedpca.engines.base import Engine
from fedpca.errors import InputError, MessageError, PolicyRefused, QuorumLost
from fedpca.privacy.masks import new_private_key, public_key_of
from fedpca.privacy.offers import Offer, pack_offers, unpack_offers
from fedpca.privacy.secure_sum import ZERO
from fedpca.protocol.message import compose, decode, encode
from fedpca.protocol.plan import AGREE, DECLARE, RunPlan
from fedpca.site.guard import Keys
from fedpca.solvers.standardize import count_and_sum
from fedpca.testing import ScriptedEngine
from support import asks_for_size, gapped_rows

NAMES = ("a", "b", "c")
STRICT = Policy(require=("secure",))
POLICIES = {"open": None, "strict": STRICT}
MODEL = partial(FederatedPCA, 2, solver="lanczos", random_state=0)
X = gapped_rows(np.random.default_rng(0), 90, 6, 2, offset=1.0)
PARTS = dict(zip(NAMES, np.split(X, [20, 50]), strict=True))


def sites_of(policy=None, **options):
    return {name: Site(rows, name=name, policy=policy, **options) for name, rows in PARTS.items()}


def same_bits(one, other):
    return (
        one.components_.tobytes() == other.components_.tobytes()
        and one.explained_variance_.tobytes() == other.explained_variance_.tobytes()
    )


@pytest.fixture(scope="module")
def whole():
    """The fit without any fault."""
    return MODEL().fit(Federation.local(sites_of(), secure=True))


class Crash(BaseException):
    """An end as by a signal, which nothing catches."""


def moments():
    """Every message of the fit: its round, and whether it asks for sizes."""
    found = []

    def keep(reply):
        moment = (reply.round, asks_for_size(reply.request))
        if moment not in found and reply.round:
            found.append(moment)
        return reply.answer

    MODEL().fit(Federation(ScriptedEngine(sites_of(), keep), secure=True))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("site", ["a", "c"])
def test_a_run_that_crashed_at_any_message_goes_on_with_the_same_bits(
    whole, policy, site, tmp_path
):
    places = moments()
    assert sum(is_size for _, is_size in places) == 2  # of the first sums and the first squares
    for number, place in enumerate(places):
        journal, single = tmp_path / f"{number}", []

        def crash(reply, place=place, single=single):
            mask = reply.request.header.get("mask")
            if mask is not None:
                single.extend(a.tobytes() for a in decode(reply.answer).arrays.values())
            if (reply.round, asks_for_size(reply.request)) == place and reply.site == site:
                raise Crash
            return reply.answer

        engine = ScriptedEngine(sites_of(POLICIES[policy]), crash, journal=journal)
        with pytest.raises(Crash):
            MODEL().fit(Federation(engine, journal=journal, secure=True))
        sites = sites_of(POLICIES[policy])  # as new processes
        resumed = MODEL().fit(Federation.local(sites, journal=journal, secure=True))
        assert same_bits(resumed, whole)
        assert list(resumed.run_.ledger) == list(whole.run_.ledger)
        assert resumed.run_.bytes_up == resumed.run_.ledger.bytes_up
        written = journal.read_bytes()
        assert not [data for data in single if data and data in written]


@pytest.mark.parametrize("policy", POLICIES)
def test_sites_serve_a_new_run_after_one_that_ended_between_size_and_answer(whole, policy):
    sites = sites_of(POLICIES[policy])

    def crash(reply):
        if asks_for_size(reply.request) and reply.site == "c":
            raise Crash
        return reply.answer

    with pytest.raises(Crash):
        MODEL().fit(Federation(ScriptedEngine(sites, crash), secure=True))
    assert same_bits(MODEL().fit(Federation.local(sites, secure=True)), whole)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("number", range(1, 7))
def test_a_site_that_restarts_in_mid_run_has_its_keys_again(whole, policy, number, tmp_path):
    sites = sites_of(POLICIES[policy], store=tmp_path)
    engine = ScriptedEngine(sites)

    def restart(entry):
        if entry["round"] == number:
            again = Site(PARTS["b"], name="b", policy=POLICIES[policy], store=tmp_path)
            again.is_in_process, again.reserved_by = True, engine.engine
            engine.engine.sites["b"] = again

    model = MODEL().fit(Federation(engine, secure=True, on_round=restart))
    assert same_bits(model, whole)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("does_answer", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("place", [(2, True), (2, False), (5, False)], ids=str)
def test_a_lost_site_restarts_the_run_with_new_keys(policy, place, does_answer):
    offers, lost = [], []

    def is_lost(name, request):
        moment = (request.header["round"], asks_for_size(request))
        if name == "c" and moment == place:
            lost.append(moment)
        return name == "c" and bool(lost)

    def tell(name, request):
        if is_lost(name, request) and not does_answer:
            raise Silence
        return request

    def hear(name, request, reply):
        if request.header["question"] == DECLARE:
            offers.append(reply.arrays["offer"].tobytes())
        if is_lost(name, request):
            raise Silence

    engine = Lying(sites_of(POLICIES[policy]), tell, hear=hear)
    model = MODEL().fit(Federation(engine, quorum=2, secure=True))
    assert model.run_.sites == ("a", "b")
    assert len(set(offers)) == len(offers) == 5  # three, and two new ones
    remaining = MODEL().fit(Federation.local({n: PARTS[n] for n in "ab"}, secure=True))
    np.testing.assert_allclose(model.components_, remaining.components_, atol=1e-8)
    kinds = {entry.how for entry in model.run_.ledger}
    assert kinds == {"sent", "masked", "seen", "discarded"}


# coordinators that lie


class Silence(Exception):
    """A message or an answer that is lost on the way."""


class Lying(Engine):
    """An engine that tells some sites something else, or loses a message or an answer."""

    declares = True

    def __init__(self, sites, tell, keys=None, hear=lambda site, request, reply: None):
        self.sites, self.tell, self.hear, self.names = sites, tell, hear, list(sites)
        self.keys = keys or {}

    def ask(self, names, request, timeout):
        for name in names:
            try:
                told = decode(encode(self.tell(name, request)))
                reply = self.sites[name].answer(told)
                self.hear(name, request, reply)
            except Silence:
                continue
            yield name, reply


def key_pairs():
    return {name: generate_private_key(SECP384R1()) for name in (*NAMES, "stranger")}


PRIVATE = key_pairs()
PRINTS = {name: credentials.fingerprint(key.public_key()) for name, key in PRIVATE.items()}


def keys_of(name):
    return Keys(
        PRINTS[name],
        credentials.signer_of,
        identity=credentials.to_der(PRIVATE[name].public_key()),
        sign=partial(credentials.sign, PRIVATE[name]),
        verify=credentials.verify_der,
    )


def signing_sites(policy=STRICT):
    return {
        name: Site(rows, name=name, policy=policy, keys=keys_of(name))
        for name, rows in PARTS.items()
    }


def fit_lying(tell, policy=STRICT):
    keys = {name: PRINTS[name] for name in NAMES}
    engine = Lying(signing_sites(policy), tell, keys)
    return MODEL().fit(Federation(engine, secure=True))


def with_offer(request, site, change):
    """Return the message of all offers, with another one for a site."""
    offers = unpack_offers(NAMES, request.arrays)
    return compose(request.header, pack_offers({**offers, site: change(offers[site])}))


def test_sites_with_keys_fit_as_those_without(whole):
    assert same_bits(fit_lying(lambda site, request: request), whole)


def signed_by_a_stranger(offer):
    keys, public = keys_of("stranger"), public_key_of(new_private_key())
    return Offer(public, keys.identity, keys.sign(public))


def altered(part):
    def change(offer):
        data = bytearray(getattr(offer, part))
        data[-1] ^= 1
        return replace(offer, **{part: bytes(data)})

    return change


def of_another_run(offer):
    """An offer that the site once signed, for another run with the same roster."""
    plan = RunPlan(
        "other",
        "FederatedPCA",
        {"solver": "lanczos"},
        {name: PRINTS[name] for name in NAMES},
        privacy={"secure": True},
    )
    header = {"run": "other.0", "round": 0, "question": DECLARE, "verb": "gather"}
    arrays = {"plan": np.frombuffer(plan.to_bytes(), np.uint8)}
    reply = signing_sites()["b"].answer(compose({**header, "n_sites": 3, "memory": 0}, arrays))
    return Offer.from_bytes(reply.arrays["offer"].tobytes())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            signed_by_a_stranger,
            "the key offered for site 'b' is not signed with the key in the plan",
        ),
        (of_another_run, "the key offered for site 'b' is not signed by that site"),
        (altered("public"), "the key offered for site 'b' is not signed by that site"),
        (altered("signature"), "the key offered for site 'b' is not signed by that site"),
        (
            altered("identity"),
            "the key offered for site 'b' is not signed with the key in the plan",
        ),
        (
            lambda offer: Offer(offer.public),
            "the key offered for site 'b' is not signed with the key",
        ),
    ],
    ids=[
        "stranger",
        "replayed",
        "altered key",
        "altered signature",
        "altered identity",
        "unsigned",
    ],
)
def test_an_offer_that_the_site_did_not_sign_is_refused(change, text):
    def tell(site, request):
        is_due = request.header["question"] == AGREE and site == "a"
        return with_offer(request, "b", change) if is_due else request

    with pytest.raises(PolicyRefused, match=f"site 'a', .*{text}"):
        fit_lying(tell)


LOW_ORDER = [  # the points of small order on the curve and its twist, in all their encodings
    "00" * 32,
    "01" + "00" * 31,
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ec" + "ff" * 30 + "7f",
    "ed" + "ff" * 30 + "7f",
    "ee" + "ff" * 30 + "7f",
]
KEYS_OF = {"with keys": keys_of, "in one process": lambda name: None}


def low_ordered(point):
    return lambda offer: replace(offer, public=bytes.fromhex(point))


@pytest.mark.parametrize("point", LOW_ORDER)
def test_a_site_that_offers_a_key_of_low_order_is_lost_and_no_other(point):
    def hear(reply):
        if reply.site != "b" or reply.question != DECLARE:
            return reply.answer
        offer = low_ordered(point)(Offer.from_bytes(decode(reply.answer).arrays["offer"].tobytes()))
        data = np.frombuffer(offer.to_bytes(), np.uint8)
        return compose(decode(reply.answer).header, {"offer": data})

    fed = Federation(ScriptedEngine(sites_of(), hear), quorum=2, secure=True)
    run = MODEL().fit(fed).run_
    assert run.sites == ("a", "c")
    (loss,) = run.lost
    assert loss["site"] == "b"
    assert "the key offered for site 'b' has a low order" in loss["reason"]


@pytest.mark.parametrize("point", LOW_ORDER)
@pytest.mark.parametrize("keys", KEYS_OF)
def test_sites_refuse_a_key_of_low_order_and_name_whose_it_is(point, keys, caplog):
    plan = RunPlan("r", "FederatedPCA", {"solver": "lanczos"}, privacy={"secure": True})
    prints = {name: PRINTS[name] if KEYS_OF[keys]("a") else "" for name in NAMES}
    plan = replace(plan, sites=prints)
    header = {"run": "r.0", "round": 0, "verb": "gather", "n_sites": 3, "memory": 0}
    sites = {
        name: Site(PARTS[name], name=name, policy=STRICT, keys=KEYS_OF[keys](name))
        for name in NAMES
    }
    declared = {"plan": np.frombuffer(plan.to_bytes(), np.uint8)}
    offers = {
        name: Offer.from_bytes(
            site.answer(compose({**header, "question": DECLARE}, declared))
            .arrays["offer"]
            .tobytes()
        )
        for name, site in sites.items()
    }
    offers["b"] = low_ordered(point)(offers["b"])
    answer = sites["a"].answer(compose({**header, "question": AGREE}, pack_offers(offers)))
    assert answer.header["error"] == "PolicyRefused"
    assert "the key offered for site 'b' has a low order" in answer.header["text"]
    assert not caplog.records


def test_an_offer_of_another_site_is_blamed_on_the_site_that_sent_it():
    first = {}

    def hear(site, request, reply):
        if request.header["question"] == DECLARE:
            first.setdefault("offer", reply.arrays["offer"])

    class Copying(Lying):
        def ask(self, names, request, timeout):
            for name, reply in super().ask(names, request, timeout):
                is_due = request.header["question"] == DECLARE and name == "b"
                yield name, compose(reply.header, first) if is_due else reply

    keys = {name: PRINTS[name] for name in NAMES}
    engine = Copying(signing_sites(), lambda site, request: request, keys, hear)
    run = MODEL().fit(Federation(engine, quorum=2, secure=True)).run_
    (loss,) = run.lost
    assert loss["site"] == "b"
    assert "the key offered for site 'b' is not signed with the key in the plan" in loss["reason"]


@pytest.mark.parametrize("cut", [0, 1, 40, -1, -40])
def test_offers_that_are_cut_off_or_too_many_are_refused(cut):
    def tell(site, request):
        if request.header["question"] != AGREE or site != "a":
            return request
        data = request.arrays["offers"].tobytes()
        return compose(
            request.header, {"offers": np.frombuffer((data[:cut] if cut else b""), np.uint8)}
        )

    with pytest.raises((PolicyRefused, QuorumLost), match="offer"):
        fit_lying(tell)

    def add(site, request):
        if request.header["question"] != AGREE:
            return request
        data = request.arrays["offers"].tobytes()
        return compose(request.header, {"offers": np.frombuffer(data + data, np.uint8)})

    with pytest.raises(PolicyRefused, match="there must be 3 offered keys"):
        fit_lying(add)


def test_a_site_whose_own_offer_was_replaced_notices_it():
    def tell(site, request):
        is_due = request.header["question"] == AGREE and site == "b"
        return with_offer(request, "b", altered("public")) if is_due else request

    with pytest.raises(PolicyRefused, match="do not include the key of this site, 'b'"):
        fit_lying(tell)


def test_other_offers_in_the_same_run_are_refused():
    def tell(site, request):
        if request.header["round"] == 1 and not again:
            again.append(fed.engine.sites["a"].answer(changed[0]))
        if request.header["question"] == AGREE and site == "a":
            changed.append(with_offer(request, "b", altered("public")))
        return request

    again, changed = [], []
    fed = Federation(Lying(sites_of(), tell), secure=True)
    MODEL().fit(fed)
    assert again[0].header["error"] == "PolicyRefused"
    assert "other keys were offered for this run before" in again[0].header["text"]


def declared(request, change):
    plan = RunPlan.from_bytes(request.arrays["plan"].tobytes())
    data = np.frombuffer(change(plan).to_bytes(), np.uint8)
    return compose(request.header, {**request.arrays, "plan": data})


def test_a_site_that_does_not_exist_is_refused_by_sites_that_know_their_peers():
    def tell(site, request):
        if request.header["question"] != DECLARE:
            return request
        invented = {"ghost": PRINTS["stranger"]}
        return declared(request, lambda plan: replace(plan, sites={**plan.sites, **invented}))

    policy = replace(STRICT, min_sites=3, peers={name: PRINTS[name] for name in NAMES})
    assert fit_lying(lambda site, request: request, policy).run_.sites == NAMES
    with pytest.raises(PolicyRefused, match="not in the policy's peers: ghost"):
        fit_lying(tell, policy)


def test_sites_that_were_told_different_rosters_share_no_keys():
    def tell(site, request):
        if site != "a" or request.header["question"] != DECLARE:
            return request
        roster = {**{name: PRINTS[name] for name in NAMES}, "c": PRINTS["stranger"]}
        return declared(request, lambda plan: replace(plan, sites=roster))

    with pytest.raises(QuorumLost, match="offered for site 'a' is not signed by that site"):
        fit_lying(tell)


def test_masks_of_sites_that_were_shown_different_offers_do_not_cancel():
    other = Offer(public_key_of(new_private_key()))

    def tell(site, request):
        is_due = request.header["question"] == AGREE and site == "a"
        return with_offer(request, "b", lambda offer: other) if is_due else request

    for solver in ("lanczos", "covariance"):
        federation = Federation(Lying(sites_of(), tell), secure=True)
        with pytest.raises(MessageError, match="the masks of the sites do not cancel"):
            FederatedPCA(2, solver=solver).fit(federation)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_secure_sum_needs_two_sites_or_as_many_as_the_policy_says(policy):
    rule = POLICIES[policy]
    one = {"a": Site(PARTS["a"], name="a", policy=rule)}
    with pytest.raises(InputError, match=r"over one site .* at least two sites"):
        MODEL().fit(Federation.local(one, secure=True))
    two = {n: Site(PARTS[n], name=n, policy=rule) for n in "ab"}
    MODEL().fit(Federation.local(two, secure=True))
    three = Policy(require=("secure",), min_sites=3)
    strict = {n: Site(PARTS[n], name=n, policy=three) for n in "ab"}
    with pytest.raises(PolicyRefused, match="min_sites=3"):
        MODEL().fit(Federation.local(strict, secure=True))


def test_a_plan_with_one_site_is_refused_by_the_site_itself():
    site = Site(PARTS["a"], name="a", policy=STRICT)
    plan = RunPlan("r", "FederatedPCA", {"solver": "lanczos"}, {"a": ""}, privacy={"secure": True})
    header = {"run": "r.0", "round": 0, "question": DECLARE, "verb": "gather"}
    arrays = {"plan": np.frombuffer(plan.to_bytes(), np.uint8)}
    reply = site.answer(compose({**header, "n_sites": 1, "memory": 0}, arrays))
    assert reply.header["error"] == "PolicyRefused"
    assert "at least two sites" in reply.header["text"]


def test_no_sum_is_secure_without_a_run():
    federation = Federation.local(sites_of(), secure=True)
    with pytest.raises(InputError, match="secure sums need a run"):
        federation.sum(count_and_sum, features=np.empty(0, np.uint8), missing=0)


def in_mid_run(policy, place, ask, secure=True):
    """Return what ``ask(site, request)`` returns at a message of a fit, with the request there."""
    found, sites = [], sites_of(policy)

    def tell(site, request):
        is_size = asks_for_size(request)
        if site == "a" and (request.header["round"], is_size) == place and not found:
            found.append(None)
            found.append(ask(sites["a"], request))
        return request

    try:
        MODEL().fit(Federation(Lying(sites, tell), secure=secure))
    except (PolicyRefused, QuorumLost, MessageError) as error:
        found.append(str(error))
    return found[1:]


def of(request, **header):
    return compose({**request.header, **header}, request.arrays)


def contents(reply):
    return {name: array.tobytes() for name, array in reply.arrays.items()}


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_question_gets_the_same_bytes(policy):
    for place in ((2, True), (2, False), (5, False)):
        ((one, other),) = in_mid_run(
            POLICIES[policy],
            place,
            lambda site, request: (site.answer(request), site.answer(request)),
        )
        assert contents(one) == contents(other)
        assert one.arrays


@pytest.mark.parametrize("policy", POLICIES)
def test_a_changed_question_in_the_same_round_gets_no_second_answer_under_the_same_masks(policy):
    def ask(site, request):
        changed = {k: v * (1 + 1e-9) if v.ndim == 2 else v for k, v in request.arrays.items()}
        other = compose(request.header, changed)
        return site.answer(request, keep=False), site.answer(other, keep=False)

    ((one, other), *_) = in_mid_run(POLICIES[policy], (5, False), ask)
    if policy == "strict":
        assert contents(one) == contents(other)
    for name, array in one.arrays.items():
        difference = (array - other.arrays[name]).ravel()
        is_small = np.abs(difference) < 2**50
        assert policy == "strict" or not is_small.any()


@pytest.mark.parametrize("policy", POLICIES)
def test_an_older_round_is_not_answered_again(policy):
    sites, kept, found = sites_of(POLICIES[policy]), [], []

    def tell(site, request):
        if site == "a" and request.header["round"] == 2 and "mask" in request.header:
            kept.append(request)
        if site == "a" and request.header["round"] == 5 and not found:
            found.append(sites["a"].answer(kept[-1]).header["text"])
        return request

    MODEL().fit(Federation(Lying(sites, tell), secure=True))
    assert found == ["round 2 was requested after round 4"]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_secure_run_gets_no_answer_without_masks_and_a_plain_run_none_with(policy):
    def unmasked(site, request):
        header = {key: value for key, value in request.header.items() if key != "mask"}
        return site.answer(compose(header, request.arrays)).header["text"]

    (text,) = in_mid_run(POLICIES[policy], (5, False), unmasked)
    assert "the declared plan has secure sums, but question" in text
    rule = None if policy == "open" else Policy()
    (text,) = in_mid_run(
        rule, (5, False), lambda s, r: s.answer(of(r, mask={})).header["text"], secure=False
    )
    assert "the declared plan has no secure sums" in text


@pytest.mark.parametrize("policy", POLICIES)
def test_no_ring_makes_a_site_refuse_and_each_message_has_masks_of_its_own(policy):
    def ask(site, request):
        found = [site.answer(request, keep=False)]
        for fraction in (-1100, -40, 0, 62, 70, 1200):
            bits = 64 if fraction else 63  # without fractions, the ring is that of whole numbers
            mask = {**request.header["mask"], "Y": [64, fraction if bits == 64 else -1]}
            found.append(site.answer(of(request, mask=mask), keep=False))
        return [reply.header for reply in found], [contents(reply) for reply in found]

    ((headers, answers),) = in_mid_run(POLICIES[policy], (5, False), ask)
    assert all(header == headers[0] for header in headers)
    # under a policy, an answer that needs no size is given once
    n_due = 1 if policy == "strict" else len(answers)
    assert len({answer["Y"] for answer in answers}) == n_due


@pytest.mark.parametrize(
    "mask",
    [{}, 7, "none", [], {"Y": [64]}, {"Y": [64, 60]}, {"Y": "ab"}, {"Y": [64, None]},
     {"Y": [64, float("nan")]}, {ZERO: [64, 0]},
     *({ZERO: [64, 0], "Y": ring} for ring in ([32, 0], [128, 60], [64, 10**9], [64, 0])),
     {ZERO: [64, 1], "Y": [64, 60]}, {ZERO: [64, 0], "Y": [64, 60], "narrow size": [64, 60]},
     {ZERO: [64, 0], "Y": [64, 60], "wide size": [2176, 1074]}],
    ids=str,
)  # fmt: skip
def test_masks_that_no_coordinator_would_ask_for_are_refused(mask):
    (text,) = in_mid_run(STRICT, (5, False), lambda s, r: s.answer(of(r, mask=mask)).header["text"])
    assert "mask" in text
    assert "site's log" not in text


@pytest.mark.parametrize("policy", POLICIES)
def test_sizes_are_told_only_of_answers_that_are_given(policy):
    def ask(site, request):
        site.answer(request)
        later = site.answer(of(request, round=request.header["round"] + 1))
        moved = {**request.arrays, "mean": request.arrays["mean"] + 1.0}
        other = site.answer(compose(request.header, moved))
        return [later.header["text"], other.header["text"]]

    (texts,) = in_mid_run(POLICIES[policy], (3, True), ask)
    for text in texts:
        assert "round 3 asked for the size of a different answer before" in text


WITHOUT = """
import sys
sys.modules["cryptography"] = None
import numpy as np
from fedpca.audit.leakage import audit
from fedpca import FederatedPCA, Federation, Site, Policy
from fedpca.errors import InputError
from fedpca.privacy.secure_sum import ZERO
from fedpca.protocol.message import compose
from fedpca.protocol.plan import DECLARE, RunPlan
rows = dict(zip("ab", np.random.default_rng(0).normal(size=(2, 20, 3))))
FederatedPCA(2).fit(Federation.local(rows))  # which needs no extra, as the next line does not
audit(rows, 1, solvers="lanczos", refits=0)
try:
    FederatedPCA(2).fit(Federation.local(rows, secure=True))
except InputError as error:
    print(error)
site = Site(rows["a"], name="a", policy=Policy())
plan = RunPlan("r", "FederatedPCA", {"solver": "lanczos"}, {"a": "", "b": ""},
               privacy={"secure": True})
header = {"run": "r.0", "round": 0, "question": DECLARE, "verb": "gather", "n_sites": 2, "memory": 0}
reply = site.answer(compose(header, {"plan": np.frombuffer(plan.to_bytes(), np.uint8)}))
print(reply.header["error"], reply.header["text"])
"""


def test_a_site_or_coordinator_without_cryptography_names_the_extra():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    here, there = done.stdout.splitlines()
    wanted = "secure sums require an extra; install it with: pip install 'fedpca[privacy]'"
    assert here == wanted
    assert there == f"InputError {wanted}"
