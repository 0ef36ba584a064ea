"""A site answers what its plan provides for: every honest run passes, and nothing else is answered."""

from __future__ import annotations

import json
import math
from copy import copy
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpca import Federation, Policy, Site
from fedpca.errors import PolicyRefused
from fedpca.protocol.plan import DECLARE, RunPlan
from fedpca.protocol.script import find_script
from fedpca.solvers import SOLVERS
from fedpca.testing import ScriptedEngine, spoil
from support import draws, first_of, gapped_rows
from transcripts import (
    COLUMNS,
    FREE,
    MAX_ROUNDS,
    MOVING,
    NAMES,
    D,
    Oracle,
    changed,
    contents,
    family_of,
    fit,
    installed,
    record,
    sites_of,
    some_arrays,
    strictest,
    tables,
)

RUNS = ["auto", *SOLVERS]
SHARES = ("explained_energy", "explained_in_summary")
every_solver = pytest.mark.parametrize("solver", RUNS)


def assert_same_run(solver, rows, k=2, policy=None, options=None, **parameters):
    free, guarded = (
        fit(solver, Federation.local(sites_of(rows, each, **(options or {}))), k, **parameters)
        for each in (None, policy or strictest(solver))
    )
    assert guarded.components_.tobytes() == free.components_.tobytes()
    assert guarded.explained_variance_.tobytes() == free.explained_variance_.tobytes()
    ledgers = [
        [entry for entry in each.run_.ledger if entry.question not in SHARES]
        for each in (free, guarded)
    ]
    assert ledgers[0] == ledgers[1]


@every_solver
@pytest.mark.parametrize("k", [2, 0.9, "auto", "mp", "gap", None])
@pytest.mark.parametrize("wide", [False, True])
def test_honest_runs_pass_under_the_strictest_policy(solver, k, wide):
    if wide and k is None and solver in ("faps", "local-power", "subspace-iteration"):
        pytest.skip("takes thousands of rounds")
    assert_same_run(solver, tables(wide=wide), k)


@pytest.mark.slow
@pytest.mark.parametrize("solver", first_of(["lanczos", "covariance", "subspace-iteration"]))
def test_a_second_look_at_flipped_rows_passes(solver):
    rng = np.random.default_rng(0)
    X = gapped_rows(rng, 90, 700, 15, scale=10.0)  # products are cheaper than triangles
    rows = dict(zip(NAMES, np.array_split(X, 3), strict=True))
    asked = []
    engine = ScriptedEngine(
        sites_of(rows, strictest(solver)), lambda r: asked.append(r.question) or r.answer
    )
    fit(solver, Federation(engine), "auto", max_rounds=60)
    assert asked.count("draw_signs") == 2 * len(NAMES)
    # with so many features, a site that follows plans would multiply by A'A, which rounds differently
    assert_same_run(solver, rows, "auto", options={"memory_limit": 0}, max_rounds=60)


@every_solver
@pytest.mark.parametrize(
    "parameters",
    [{"scale": True}, {"center": False}, {"center": False, "scale": True}, {"missing": "mean"}],
    ids=str,
)
def test_honest_runs_with_other_moments_pass(solver, parameters):
    rows = tables(gaps="missing" in parameters)
    assert_same_run(solver, rows, **parameters)
    if "missing" in parameters:
        assert_same_run(solver, rows, missing="drop", scale=True)


@every_solver
def test_honest_runs_with_weights_and_reordered_columns_pass(solver):
    rows = tables()
    rows["b"] = rows["b"][COLUMNS[::-1]]
    assert_same_run(solver, rows)
    fits = []
    for policy in (None, strictest(solver)):
        weighted = [
            Site(part, name=name, policy=policy, weight=np.arange(len(part)) % 3)
            for name, part in rows.items()
        ]
        fits.append(fit(solver, Federation.local(weighted)))
    assert fits[0].components_.tobytes() == fits[1].components_.tobytes()


OPTIONS = {
    "lanczos": {"block": 4, "max_krylov_bytes": 400},
    "local-power": {"local_steps": 5, "halve_every": 2},
    "faps": {"local_steps": "decrease", "stop": "objective", "start_apart": False, "penalty": 0.3},
    "merge": {"site_components": "mp", "fan_in": 2, "own_means": False},
    "average": {"site_components": 3, "weights": "unweighted"},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("k", [2, 0.9])
def test_honest_runs_with_options_pass(name, k):
    given = type(SOLVERS[name])(**OPTIONS[name])
    assert_same_run(given, tables(), k, policy=strictest(name))


@every_solver
def test_a_lost_site_a_retry_and_a_new_attempt_pass(solver):
    models = []
    for policy in (None, replace(strictest(solver), min_sites=2)):
        lost_once = []

        def lose(reply, lost_once=lost_once):
            if reply.site == "b" and not lost_once and reply.round == 2:
                lost_once.append(reply.question)
                return None  # the answer is lost once, and asked for again
            return None if reply.site == "c" and reply.round >= 3 else reply.answer

        engine = ScriptedEngine(sites_of(tables(), policy), lose)
        models.append(fit(solver, Federation(engine, quorum=2)))
        assert lost_once
    assert models[0].run_.sites == models[1].run_.sites == ("a", "b")
    assert models[0].components_.tobytes() == models[1].components_.tobytes()


class Crash(BaseException):
    """A killed process, which nothing catches."""


@pytest.mark.slow
@every_solver
@pytest.mark.parametrize("k", [2, "auto"])
def test_a_run_resumed_after_a_crash_passes(solver, k, tmp_path):
    whole = fit(solver, Federation.local(sites_of(tables())), k)
    for at in range(1, whole.run_.rounds + 1, max(1, whole.run_.rounds // 2)):

        def crash(reply, at=at):
            if reply.round == at and reply.site == "b":
                raise Crash
            return reply.answer

        journal = tmp_path / f"journal-{at}"
        policy = strictest(solver)
        engine = ScriptedEngine(sites_of(tables(), policy), crash, journal=journal)
        with pytest.raises(Crash):
            fit(solver, Federation(engine, journal=journal), k)
        resumed = fit(solver, Federation.local(sites_of(tables(), policy), journal=journal), k)
        assert resumed.components_.tobytes() == whole.components_.tobytes()


@pytest.mark.parametrize("solver", sorted(set(RUNS) - {"auto"}))
def test_a_plan_needs_its_family_and_sees_nothing_by_default(solver):
    family, gather = family_of(solver)
    with pytest.raises(PolicyRefused, match=f"does not allow '{family}'"):
        fit(solver, Federation.local(sites_of(tables(), Policy(allow=("other",), gather=True))))
    if gather:
        with pytest.raises(PolicyRefused, match="gather=false"):
            fit(solver, Federation.local(sites_of(tables(), Policy(allow=(family,)))))


# what else could be asked ---------------------------------------------------------------------------


def oracle_of(solver, k, parameters):
    """What an honest run of a plan may ask, where the few rows of the tests do not show it."""
    runs = [record(solver, k, seed, **parameters) for seed in range(3)]
    looks = 1 + math.ceil(math.log2(D))  # each with twice as many directions, up to all of them
    certifies = solver in ("subspace-iteration", "local-power")
    columns = 3 if certifies else 2  # three look for a larger eigenvalue outside the block
    most = {"draw_signs": looks, "flipped_triangles": looks, "flipped_product": 20 * looks}
    if certifies:
        most["covariance_product"] = 41 * MAX_ROUNDS
    oracle = Oracle(runs, columns if isinstance(k, int) else D, most)
    follows = oracle.follows
    if solver == "auto":  # the rows of all sites decide which solver it is
        for name, others in oracle_of("lanczos", k, parameters).follows.items():
            follows.setdefault(name, set()).update(others)
        oracle.constant |= oracle_of("lanczos", k, parameters).constant
    if "covariance_product" in follows:  # it may take any number of rounds
        follows["covariance_product"] |= {"covariance_product", "explained_energy"}
    if solver == "merge":  # rows with weights are summarized about the common mean
        follows["column_names"] |= {"count_and_sum"}
    if k == "auto":  # with many features, flipped products are cheaper than triangles
        begin = {"covariance_product"} & set(follows) or {"covariance_triangle"}
        for name in begin:
            follows[name] |= {"column_squares", "explained_energy"}
        if "covariance_product" in begin:  # a further look may need flips again
            follows["covariance_product"].add("draw_signs")
        oracle.needs["draw_signs"] = "column_squares"
        after = {"draw_signs", "explained_energy"} | (begin - {"covariance_triangle"})
        follows["column_squares"] = follows["flipped_triangles"] = after
        follows["draw_signs"] = {"flipped_triangles", "flipped_product"}
        follows["flipped_product"] = after | {"flipped_product"}
    return oracle


PLANS = [
    *[(solver, 2, {}) for solver in RUNS],
    ("covariance", "auto", {"scale": True}),
    ("lanczos", "auto", {}),
    ("faps", 2, {"scale": True}),
]


def assert_refused(site, request, *words):
    """The request is refused with a text that has one of the words, and leaves no trace."""
    memory, run = site.memory, site.conversation.run
    reply = site.answer(request)
    assert reply.header.get("error") in ("PolicyRefused", "MessageError", "InputError"), (
        request.header,
        reply.header,
    )
    assert any(word in reply.header["text"] for word in words), reply.header["text"]
    assert site.memory is memory
    assert site.conversation.run is run


def mutations(transcript, at, k, has_scale):
    """Yield changes of one thing each to a request, with words that the refusal may have."""
    request = transcript.requests[at]
    name, header = request.header["question"], request.header
    other = {"sum": "gather", "gather": "sum"}[header["verb"]]
    yield changed(request, verb=other), ["verb="]
    yield changed(request, n_sites=1000), ["claims 1000 sites"]
    yield changed(request, n_sites=1), ["claims 1 sites", "min_sites"]
    for run in ("other.0", "other.1", header["run"] + ".0", header["run"][:-1] + "1"):
        for memory in (0, header["memory"]):
            yield changed(request, run=run, memory=memory), ["no plan was declared", "needs the"]
    for field, array in request.arrays.items():
        arrays = {**request.arrays}
        del arrays[field]
        yield changed(request, arrays), [field]
        if field in ("Z", "V", "removed") and array.size:
            wide = np.linalg.qr(np.random.default_rng(0).standard_normal((D, D)))[0]
            odd = 2 * array
            lists = [odd, np.roll(array, 1, axis=0) + array]
            if "flips" not in request.arrays and k == 2:
                lists.append(wide)
            for value in lists:
                yield changed(request, {**request.arrays, field: value}), [f"field '{field}'"]
        elif field == "flips":
            yield changed(request, {**request.arrays, field: array + 20}), [f"field '{field}'"]
        elif field == "scale" and has_scale and name != "summarize_about":
            yield changed(request, {**request.arrays, field: 0 * array}), [f"field '{field}'"]
        elif field not in FREE | MOVING and array.size:
            # the first two are also limited by the number of features
            steps = (2**40,) if field in ("n_components", "n_spare") else (1, 2**40)
            for value in (array + step for step in steps):
                yield (
                    changed(request, {**request.arrays, field: value}),
                    [f"field '{field}'", field],
                )
    if "features" in request.arrays:
        for text in (["p"] * D, COLUMNS[:-1], [*COLUMNS, "p"], {"p": 1}, [[1]], 3):
            value = np.frombuffer(json.dumps(text).encode(), np.uint8)
            yield changed(request, {**request.arrays, "features": value}), ["features"]
    if name == "standardize" and "squares" in transcript.names:
        mean = request.arrays["mean"] + 1
        yield changed(request, {**request.arrays, "mean": mean}), ["field 'mean'"]


def out_of_turn(transcript, at, follows):
    """Yield all questions that do not follow in honest runs, with arrays of the right shapes."""
    rng = np.random.default_rng(0)
    before = transcript.requests[at - 1].header["question"]
    honest = {r.header["question"]: r.arrays for r in transcript.requests[1:]}
    for name, asked in installed().items():
        if name not in follows.get(before, ()):
            header = {**transcript.requests[at].header, "question": name, "verb": asked.verb}
            arrays = honest.get(name) or some_arrays(rng, asked)
            yield changed(replace(transcript.requests[at], header=header), arrays)


def plans_instead(declared):
    """Yield declarations of other plans under the same run."""
    plan = json.loads(declared.arrays["plan"].tobytes())
    for change in (
        {"purpose": "another"},
        {"sites": {"a": "", "b": ""}},
        {"parameters": {**plan["parameters"], "max_rounds": 10**6}},
        {"parameters": {**plan["parameters"], "solver": "covariance", "scale": True}},
    ):
        text = RunPlan(**{**plan, **change}).to_bytes()
        yield changed(declared, {"plan": np.frombuffer(text, np.uint8)})


@pytest.mark.parametrize(("solver", "k", "parameters"), PLANS, ids=str)
def test_nothing_but_the_honest_question_is_answered_at_any_point(solver, k, parameters):
    transcript = record(solver, k, **parameters)
    follows = oracle_of(solver, k, parameters).follows
    site, seen = transcript.site(), set()
    for at, request in enumerate(transcript.requests):
        name = request.header["question"]
        if name != DECLARE and (name not in seen or at == len(transcript.requests) - 1):
            for wrong, words in mutations(transcript, at, k, "scale" in parameters):
                assert_refused(site, wrong, *words)
            for wrong in out_of_turn(transcript, at, follows):
                assert_refused(site, wrong, wrong.header["question"], "needs the")
            for wrong in plans_instead(transcript.requests[0]):
                words = ("a different plan was declared", "min_sites", "does not allow", "quorum")
                assert_refused(site, wrong, *words)
        seen.add(name)
        assert contents(site.answer(request)) == contents(transcript.replies[at]), name
    last = transcript.requests[-1]
    for request in transcript.requests[1:]:
        again = changed(request, round=last.header["round"] + 1)
        assert_refused(site, again, "out of turn", "as often as the plan allows")


@pytest.mark.parametrize("solver", ["lanczos", "subspace-iteration", "faps", "local-power"])
def test_a_loop_ends_when_the_plan_says_so(solver):
    transcript = record(solver, 2)
    name = max(set(transcript.names), key=transcript.names.count)
    script = find_script(RunPlan.from_bytes(transcript.requests[0].arrays["plan"].tobytes()))
    at = transcript.names.index(name) + 1
    site = transcript.site()
    for request in transcript.requests[:at]:
        site.answer(request)
    request, times = transcript.requests[at], 0
    while "error" not in (reply := site.answer(changed(request, round=at + times))).header:
        times += 1
    with_certificate = 41 * MAX_ROUNDS  # 40 rounds look for a larger eigenvalue outside the block
    certifies = solver in ("subspace-iteration", "local-power")
    assert times == script.most[name] == (with_certificate if certifies else MAX_ROUNDS)
    assert f"has been asked {times} times" in reply.header["text"]


def test_local_steps_follow_the_declared_halving():
    solver = type(SOLVERS["local-power"])(local_steps=8, halve_every=1)
    transcript = record(solver, 2, policy=strictest("local-power"), max_rounds=50)
    steps = [int(r.arrays["steps"]) for r in transcript.requests if "steps" in r.arrays]
    assert steps == [8, 4, 2]
    site = transcript.site()
    first = transcript.names.index("local_power_steps") + 1
    for request in transcript.requests[:first]:
        site.answer(request)
    for due in steps:
        number = site.conversation.run.round + 1
        for wrong in {16, 8, 4, 2, 1} - {due}:
            arrays = {**transcript.requests[first].arrays, "steps": np.int64(wrong)}
            assert_refused(
                site, changed(transcript.requests[first], arrays, round=number), "as the plan says"
            )
        arrays = {**transcript.requests[first].arrays, "steps": np.int64(due)}
        reply = site.answer(changed(transcript.requests[first], arrays, round=number))
        assert "error" not in reply.header
    over = changed(transcript.requests[first], arrays, round=site.conversation.run.round + 1)
    assert_refused(site, over, "out of turn")


def test_an_undeclared_run_does_not_end_the_present_one_but_a_declared_one_does():
    transcript = record("lanczos", 2)
    declared, first, second, *_ = transcript.requests
    site = transcript.site()
    for request in (declared, first):
        site.answer(request)
    assert_refused(site, changed(first, run="other.0"), "no plan was declared")
    refused = RunPlan("other", "RobustPCA", {}, dict.fromkeys(NAMES, ""))
    refused = {"plan": np.frombuffer(refused.to_bytes(), np.uint8)}
    assert_refused(site, changed(declared, refused, run="other.0"), "RobustPCA", "robust")
    assert contents(site.answer(second)) == contents(transcript.replies[2])
    plan = json.loads(declared.arrays["plan"].tobytes()) | {"run": "other"}
    other = {"plan": np.frombuffer(RunPlan(**plan).to_bytes(), np.uint8)}
    assert "error" not in site.answer(changed(declared, other, run="other.0")).header
    assert_refused(site, second, "this run is over")


def test_a_repeated_round_is_answered_with_the_same_numbers_whatever_it_asks():
    transcript = record("lanczos", 2)
    site = transcript.site()
    for request in transcript.requests[:5]:
        reply = site.answer(request, keep=False)
    arrays = {"Z": np.eye(D)[:, :2]}
    assert contents(site.answer(changed(request, arrays), keep=False)) == contents(reply)


def test_counts_outlive_the_process(tmp_path):
    transcript = record("lanczos", 2)
    for n_asked in range(1, len(transcript.requests)):
        site = transcript.site()
        site.store = tmp_path / str(n_asked)
        for request in transcript.requests[:n_asked]:
            site.answer(request)
        again = transcript.site()
        again.store = site.store
        reply = again.answer(transcript.requests[n_asked])
        assert contents(reply) == contents(transcript.replies[n_asked])
        assert again.memory["Agreement.asked"].tobytes().split() == [
            name.encode() for name in transcript.names[:n_asked]
        ]


# random sequences -----------------------------------------------------------------------------------

USUAL = Policy(allow=("federated", "auto"))
GUARDED = [plan for plan in PLANS if not family_of(plan[0])[1]]  # that it admits


def honest_runs():
    """Yield for each plan a transcript and what several say about honest runs."""
    for solver, k, parameters in GUARDED:
        yield record(solver, k, **parameters), oracle_of(solver, k, parameters)


def random_request(rng, transcript, number):
    """A question with random or honest numbers, or the honest one with something changed."""
    questions = installed()
    kind = rng.random()
    pool = transcript.requests[1:]
    if kind < 0.6:
        request = pool[min(number - 1, len(pool) - 1)] if kind < 0.3 else rng.choice(len(pool))
        request = pool[request] if isinstance(request, int | np.integer) else request
        name, arrays = request.header["question"], dict(request.arrays)
        if arrays and rng.random() < 0.5:
            field = list(arrays)[rng.integers(len(arrays))]
            arrays[field] = some_arrays(rng, questions[name])[field]
    else:
        name = list(questions)[rng.integers(len(questions))]
        arrays = some_arrays(rng, questions[name])
    verb = questions[name].verb if rng.random() < 0.95 else "sum"
    n_sites = len(NAMES) if rng.random() < 0.95 else int(rng.integers(0, 2000))
    header = {"question": name, "verb": verb, "n_sites": n_sites, "round": number}
    return changed(transcript.requests[0], arrays, **header)


def honest_sites():
    """Yield sites under a usual policy at every point of honest runs, and what was asked."""
    for transcript, oracle in honest_runs():
        site = replace(transcript, policy=USUAL).site()
        asked = None  # not even a plan
        for request in transcript.requests[:9]:
            yield transcript, oracle, forked(site), asked
            is_answered = "error" not in site.answer(request).header
            if asked is not None and is_answered:
                asked = [*asked, request]
            asked = [] if asked is None else asked
        yield transcript, oracle, forked(site), asked


def forked(site):
    """A site in the same state, which goes on by itself; its memory is never changed in place."""
    fork = copy(site)
    fork.conversation = talk = copy(site.conversation)
    talk._site, talk._ended = fork, talk._ended.copy()
    talk.run, talk.gate = copy(talk.run), copy(talk.gate)
    talk.gate.guard = copy(talk.gate.guard)
    return fork


def ask_random_sequences(n_sequences, seed):
    """Ask sites in the midst of honest runs; return how much they answered, and what was wrong."""
    rng = np.random.default_rng(seed)
    points = list(honest_sites())
    answered, wrong = 0, []
    for sequence in range(n_sequences):
        transcript, oracle, site, asked = points[sequence % len(points)]
        site = forked(site)
        for _ in range(3):
            request = random_request(rng, transcript, len(asked or ()) + 1)
            if "error" in site.answer(request).header:
                continue
            answered += 1
            objection = "undeclared" if asked is None else oracle.objection(asked, request)
            if objection is not None:
                names = None if asked is None else [r.header["question"] for r in asked]
                wrong.append((names, request.header["question"], objection))
            asked = [*(asked or ()), request]
    return answered, wrong


def assert_only_honest_answers(n_sequences, seed):
    answered, wrong = ask_random_sequences(n_sequences, seed)
    assert answered > n_sequences / 20  # the sequences go where answers are
    assert not wrong, wrong[:5]


@pytest.mark.slow
def test_no_random_question_is_answered_that_an_honest_run_could_not_ask():
    assert_only_honest_answers(1000, seed=0)


@pytest.mark.long
def test_no_question_in_100000_random_sequences_is_answered_that_is_not_honest():
    assert_only_honest_answers(100_000, seed=1)


# hostile plans --------------------------------------------------------------------------------------

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["auto", "lanczos", "faps", "merge", "mean", "a", "name", "block"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "block", "local_steps", "site_components", "x"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
FIELDS = ("n_components", "solver", "center", "scale", "missing", "max_rounds", "tol", "x")


def declare(site, data, run="r.0"):
    header = {"run": run, "round": 0, "question": DECLARE, "verb": "gather", "n_sites": 1}
    request = record("lanczos", 2).requests[0]
    arrays = {"plan": np.frombuffer(data, np.uint8)}
    return site.answer(changed(request, arrays, **header))


def assert_clear(reply):
    """A plan is admitted, or refused in a text that is no crash."""
    if "error" in reply.header:
        assert reply.header["error"] in ("PolicyRefused", "MessageError")
        assert "see the site's log" not in reply.header["text"]
        assert 10 < len(reply.header["text"]) < 2000


@pytest.mark.slow
@draws(60)
@given(st.dictionaries(st.sampled_from(FIELDS), values), values, values)
def test_hostile_parameters_are_admitted_or_refused_in_clear_words(parameters, sites, program):
    site = record("lanczos", 2).site()
    plan = {"run": "r", "program": "FederatedPCA", "parameters": parameters, "sites": {"a": ""}}
    for change in ({}, {"sites": sites}, {"program": program}, {"purpose": program}):
        assert_clear(declare(site, json.dumps({**plan, **change}).encode()))


@given(st.binary(max_size=200) | values.map(lambda v: json.dumps(v).encode()))
def test_hostile_plan_bytes_are_refused_in_clear_words(data):
    site = record("lanczos", 2).site()
    reply = declare(site, data)
    assert_clear(reply)
    assert "error" in reply.header
    assert site.conversation.run.name is None


def test_a_declaration_without_a_plan_and_a_huge_plan_are_refused():
    site = record("lanczos", 2).site()
    request = record("lanczos", 2).requests[0]
    assert_clear(reply := site.answer(changed(request, {}, run="r.0")))
    assert "error" in reply.header
    for data in (b"[" * 10**6, b"1" * 10**5, b'{"run": ' + b'"r' * 10**6):
        assert_clear(reply := declare(site, data))
        assert "error" in reply.header


def plan_of(**parameters):
    return RunPlan("r", "FederatedPCA", parameters, {"a": ""})


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (replace(plan_of(), program="OtherPCA"), "'OtherPCA' declares no script"),
        (plan_of(solver="magic"), "unknown solver 'magic'"),
        (plan_of(solver={"name": "lanczos", "blocks": 3}), "unexpected keyword"),
        (plan_of(solver={"name": "faps", "penalty": -1.0}), "penalty=-1.0 must be"),
        (plan_of(solver={"block": 3}), "the plan's solver cannot be used here"),
        (plan_of(solver=3), "the plan's solver cannot be used here"),
        (plan_of(n_components=-1), "n_components=-1 is not valid"),
        (plan_of(missing="guess"), "missing='guess' must be one of"),
        (plan_of(center="no"), "center='no' must be one of"),
        (plan_of(whiten=True), "a parameter that FederatedPCA does not have"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_plan_that_the_site_cannot_follow_is_refused_by_name(plan, text):
    site = Site(tables()["a"], name="a", policy=Policy())
    reply = declare(site, plan.to_bytes())
    assert reply.header["error"] == "PolicyRefused"
    assert text in reply.header["text"]


def test_a_solver_without_a_script_is_refused(monkeypatch):
    class Plain:
        name, guarantee, seen = "plain", "exact", ()

        def solve(self, fed, problem):
            raise AssertionError

    monkeypatch.setitem(SOLVERS, "plain", Plain())
    site = Site(tables()["a"], name="a", policy=Policy(allow=("plain",)))
    reply = declare(site, plan_of(solver="plain").to_bytes())
    assert "solver 'plain' declares no script" in reply.header["text"]


def test_the_plan_itself_says_all_that_a_script_needs():
    for solver, k, parameters in PLANS:
        data = record(solver, k, **parameters).requests[0].arrays["plan"].tobytes()
        plan = RunPlan.from_bytes(data)
        assert RunPlan(**asdict(plan)).to_bytes() == data
        names = {asked.name for asked in find_script(plan).order.questions()}
        assert set(record(solver, k, **parameters).names) <= names


def test_a_lost_answer_is_spoiled_only_on_its_way():
    engine = ScriptedEngine(sites_of(tables(), Policy()), spoil(lambda answer: answer))
    assert fit("lanczos", Federation(engine)).run_.sites == NAMES
