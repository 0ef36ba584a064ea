"""A fit of genotypes at several sites equals that of the pooled genotypes, as plink2 computes it."""

from __future__ import annotations

import json
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest

from cohorts import COMPLEMENT, three_cohorts, write_fileset
from command_line import run
from fedpca import (
    FederatedPCA,
    Federation,
    Genotypes,
    PersonalizedPCA,
    Policy,
    Privacy,
    RobustPCA,
    Site,
    StreamingPCA,
    Summary,
    diagnose,
    load,
    verify,
)
from fedpca.errors import FedpcaError, InputError, QuorumLost
from fedpca.report.plink import write_model
from fedpca.solvers import SOLVERS
from fedpca.solvers.common_features import column_names, names_to_bytes, use_variants
from fedpca.testing import ScriptedEngine, spoil
from support import assert_same_bits, fitted_quietly

K = 3
LIKE_PLINK = {"n_components": K, "scale": "binomial", "missing": "mean", "random_state": 0}
EXACT = [name for name, solver in SOLVERS.items() if solver.guarantee == "exact"]


@pytest.fixture(scope="module")
def cohorts(tmp_path_factory):
    return three_cohorts(tmp_path_factory.mktemp("cohorts"))


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    return three_cohorts(tmp_path_factory.mktemp("complete"), missing=0)


def standardized(X):
    """Pooled genotypes as plink2 standardizes them, with missing ones at the mean."""
    mean = np.nanmean(X, axis=0)
    return np.where(np.isnan(X), 0, X - mean) / np.sqrt(mean * (2 - mean) / 2)


def pooled_pca(X):
    U, s, _ = np.linalg.svd(standardized(X), full_matrices=False)
    return U[:, :K], s[:K]


def named(beds):
    return {name: str(bed) for name, bed in zip("abc", beds, strict=True)}


def framed(rows, fit):
    """Rows with the names of a model's features."""
    return pd.DataFrame(rows, columns=fit.feature_names_in_)


def angle(U, V):
    """The sine of the largest angle between two subspaces."""
    return np.linalg.norm(V - U @ (U.T @ V), 2)


@pytest.mark.parametrize("solver", EXACT)
def test_every_exact_solver_finds_what_pooled_genotypes_give(cohorts, solver):
    beds, X, _ = cohorts
    fit = FederatedPCA(**LIKE_PLINK, solver=solver).fit(named(beds))
    U, s = pooled_pca(X)
    np.testing.assert_allclose(fit.singular_values_, s, rtol=1e-5 if solver == "faps" else 1e-9)
    assert fit.n_features_in_ == X.shape[1]
    scores = np.vstack([fit.transform(str(bed)) for bed in beds]) / fit.singular_values_
    assert angle(U, scores) < (1e-4 if solver == "faps" else 1e-6)


def test_variants_that_differ_are_left_out_by_name(cohorts):
    beds, X, _ = cohorts
    fit = FederatedPCA(**LIKE_PLINK).fit(named(beds))
    d = X.shape[1]
    reasons = {name.split(":")[2]: reason for name, reason in fit.left_out_.items()}
    assert reasons == {
        f"rs{d}": "alleles differ",
        f"rs{d + 1}": "positions differ",
        f"rs{d + 2}": "not at every site",
        f"rs{d + 3}": "strand-ambiguous alleles",
    }


@pytest.mark.parametrize("solver", ["merge", "average"])
def test_solvers_with_bounds_leave_out_the_same_variants(cohorts, solver):
    beds, X, _ = cohorts
    fit = fitted_quietly(FederatedPCA(**LIKE_PLINK, solver=solver), named(beds))
    assert len(fit.left_out_) == 6
    assert angle(np.linalg.svd(standardized(X))[2][:K].T, fit.components_.T) < fit.run_.angle_bound


@pytest.mark.parametrize("maf", [None, 0.25])
def test_variants_are_rare_or_monomorphic_over_all_sites(tmp_path, maf):
    beds, X, parts = three_cohorts(tmp_path, missing=0.1)
    for bed, part in zip(beds, parts, strict=True):  # the first variant has one allele everywhere
        lines = bed.with_suffix(".bim").read_text().splitlines()
        j = next(i for i, line in enumerate(lines) if "\trs0\t" in line)
        data = bytearray(bed.read_bytes())
        width = -(-len(part) // 4)
        letters = lines[j].split("\t")[4:]
        fill = 0x00 if letters[0] in "AT" else 0xFF
        data[3 + j * width : 3 + (j + 1) * width] = bytes([*[fill] * (width - 1), fill & 0x0F])
        bed.write_bytes(bytes(data))
    fit = FederatedPCA(**LIKE_PLINK, maf=maf).fit(named(beds))
    frequency = np.nanmean(X, axis=0) / 2
    is_kept = np.minimum(frequency, 1 - frequency) >= (maf or 0)
    is_kept[0] = False
    np.testing.assert_allclose(fit.singular_values_, pooled_pca(X[:, is_kept])[1], rtol=1e-9)
    reasons = list(fit.left_out_.values())
    assert reasons.count("monomorphic") == 1
    assert reasons.count("below maf") == X.shape[1] - 1 - is_kept.sum()
    X[:, 1] = np.nan
    empty = FederatedPCA(**LIKE_PLINK).fit(str(write_fileset(tmp_path / "a", X, ["AG"] * 60)))
    assert empty.left_out_ == {"1:2:rs1:A:G": "monomorphic"}
    same = write_fileset(tmp_path / "same", np.ones((5, 2)) * [0, 2], ["AG", "AC"])
    with pytest.raises(InputError, match="no variant is left"):
        FederatedPCA(**LIKE_PLINK, maf=maf).fit(str(same))


def test_binomial_scale_of_rows_in_memory_is_that_of_files(cohorts):
    beds, X, parts = cohorts
    fits = [FederatedPCA(**LIKE_PLINK).fit(rows) for rows in ([X[p] for p in parts], named(beds))]
    np.testing.assert_allclose(fits[0].scale_, fits[1].scale_, rtol=1e-12)
    np.testing.assert_allclose(fits[0].singular_values_, fits[1].singular_values_, rtol=1e-9)
    assert fits[0].left_out_ is None
    constant = FederatedPCA(scale="binomial").fit(np.c_[np.zeros(9), np.arange(9) % 3])
    assert constant.scale_[0] == 1
    with pytest.raises(InputError, match="from 0 to 2"):
        FederatedPCA(scale="binomial").fit(np.full((9, 2), 3.0) + np.eye(9, 2))
    with pytest.raises(InputError, match=r"maf=0\.1 applies only to genotypes"):
        FederatedPCA(maf=0.1).fit(np.eye(9))
    with pytest.raises(InputError, match="maf has no differentially private"):
        FederatedPCA(maf=0.1, privacy=Privacy(epsilon=1, delta=1e-6, row_bound=8)).fit(np.eye(9))


@pytest.mark.parametrize("lost", [0, 1, 2])
@pytest.mark.parametrize("maf", [None, 0.1])
@pytest.mark.parametrize("solver", ["lanczos", "subspace-iteration"])
def test_a_fit_goes_on_with_the_variants_of_the_cohorts_that_are_left(cohorts, lost, maf, solver):
    """Without a cohort, the others have more variants in common, maybe in another order."""
    beds, *_ = cohorts
    named_beds = named(beds)
    name = list(named_beds)[lost]
    script = spoil(lambda answer: None, sites=[name], question="explained_energy")
    settings = {**LIKE_PLINK, "maf": maf, "solver": solver, "max_rounds": 5000}
    fit = FederatedPCA(**settings).fit(Federation(ScriptedEngine(named_beds, script), quorum=2))
    left = FederatedPCA(**settings).fit({n: bed for n, bed in named_beds.items() if n != name})
    assert [loss["site"] for loss in fit.run_.lost] == [name]
    assert list(fit.feature_names_in_) == list(left.feature_names_in_)
    np.testing.assert_allclose(fit.singular_values_, left.singular_values_, rtol=1e-7)


@pytest.mark.parametrize("secure", [False, True])
def test_closed_sites_take_part_without_variants_that_few_samples_have(cohorts, secure):
    beds, X, parts = cohorts
    policy = Policy(min_count=4)
    sites = [Site(bed, name=name, policy=policy) for name, bed in named(beds).items()]
    fit = FederatedPCA(**LIKE_PLINK, maf=0.05).fit(Federation.local(sites, secure=secure))
    kept = [int(name.split(":")[2][2:]) for name in fit.feature_names_in_]
    assert 2 < len(kept) < X.shape[1]
    np.testing.assert_allclose(fit.singular_values_, pooled_pca(X[:, kept])[1], rtol=1e-9)
    for part in parts:
        gaps = np.isnan(X[part][:, kept]).sum(axis=0)
        assert not ((gaps > 0) & (gaps < 4)).any()


def ask_twice(site, first, second):
    """Ask a closed site to use variants, and then to use others."""

    def program(fed, start):
        fed.gather(column_names)
        for names in (first, second):
            fed.gather(use_variants, features=names_to_bytes(names))

    identity = {"program": "FederatedPCA", "parameters": {"n_components": 2}}
    Federation.local([site]).run(program, identity=identity, seed=0)


@pytest.mark.parametrize("asked", [["1:1:x:A:G"], ["again"], [], None])
def test_a_closed_site_is_asked_about_its_own_variants_only_and_once(cohorts, asked):
    beds, *_ = cohorts
    site = Site(beds[0], name="a", policy=Policy(min_count=1))
    names = site.rows.features
    wrong = [names[0], names[0]] if asked == ["again"] else asked
    with pytest.raises(QuorumLost, match="must list variants of the site, each once"):
        ask_twice(site, wrong, names)
    with pytest.raises(FedpcaError, match="out of turn"):
        ask_twice(site, names[:2], names[:1])
    assert site.rows.features == names[:2]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda names: ["1:7:rs1:G:A", *names[1:]], "variant names that are not of the form"),
        (lambda names: ["1:7:rs\x1b[2J:A:G", *names[1:]], "variant names that are not of the form"),
        (lambda names: [names[1], *names[1:]], "same name for two columns"),
    ],
)
def test_a_site_that_lies_about_names_is_refused(cohorts, change, said, monkeypatch):
    beds, *_ = cohorts
    honest = column_names.function

    def lie(site):
        answer = dict(honest(site))
        if site.name == "b":
            names = json.loads(answer["features"].tobytes())
            answer["features"] = names_to_bytes(change(names))
        return answer

    monkeypatch.setitem(column_names.__dict__, "function", lie)
    with pytest.raises(QuorumLost, match=said):
        FederatedPCA(**LIKE_PLINK).fit(named(beds))


def test_a_site_that_does_not_use_the_variants_agreed_on_is_refused(cohorts, monkeypatch):
    beds, *_ = cohorts
    honest = use_variants.function

    def lie(site, features):
        return {"n_features": honest(site, features)["n_features"] - (site.name == "b")}

    monkeypatch.setitem(use_variants.__dict__, "function", lie)
    with pytest.raises(QuorumLost, match="uses 59 variants instead of 60"):
        FederatedPCA(**LIKE_PLINK).fit(named(beds))


def test_a_site_with_other_rows_or_no_common_variant_is_refused(cohorts, tmp_path):
    beds, X, _ = cohorts
    far = write_fileset(tmp_path / "far", X[:30], ["AG"] * X.shape[1], chromosomes=[9] * X.shape[1])
    with pytest.raises(InputError, match="no variant in common"):
        FederatedPCA(**LIKE_PLINK).fit({"a": str(beds[0]), "b": str(far)})
    with pytest.raises(InputError, match="one has column names"):
        FederatedPCA(**LIKE_PLINK).fit({"a": str(beds[0]), "b": X})
    few = Policy(min_count=25)
    with pytest.raises(InputError, match="no variants to offer"):
        FederatedPCA(**LIKE_PLINK).fit([Site(beds[0], name="a", policy=few)])


def test_new_cohorts_are_projected_with_flips_and_without_some_variants(cohorts, tmp_path):
    beds, X, parts = cohorts
    fit = FederatedPCA(**LIKE_PLINK).fit(named(beds))
    fit.save(tmp_path / "model.fedpca")
    model = load(tmp_path / "model.fedpca")
    assert model.left_out_ is None
    own = X[parts[0]].copy()
    scores = fit.transform(str(beds[0]))
    np.testing.assert_allclose(model.transform(str(beds[0])), scores)
    one = model.transform(Genotypes(beds[0], keep=["i3"]))
    np.testing.assert_allclose(one, scores[3:4])
    letters = [name.split(":")[3:] for name in fit.feature_names_in_]
    turned = [COMPLEMENT[b] + COMPLEMENT[a] for a, b in letters]
    ids = [name.split(":")[2] for name in fit.feature_names_in_]
    places = [int(name.split(":")[1]) for name in fit.feature_names_in_]
    columns = [int(id[2:]) for id in ids]
    new = write_fileset(
        tmp_path / "new", 2 - own[:, columns[5:]], turned[5:], ids=ids[5:], positions=places[5:]
    )
    own[:, columns[:5]] = np.nan
    with pytest.warns(UserWarning, match="lacks 5 of the model's"):
        projected = model.transform(str(new))
    np.testing.assert_allclose(projected, fit.transform(framed(own[:, columns], fit)), atol=1e-12)
    done = run("transform", tmp_path / "model.fedpca", new, "-o", tmp_path / "new.eigenvec")
    assert "lacks 5 of the model's 60 variants" in " ".join(done.output.split())
    parts_of = np.loadtxt(tmp_path / "new.eigenvec", usecols=(2, 3, 4), skiprows=1)
    np.testing.assert_allclose(parts_of, projected / fit.singular_values_, rtol=1e-6, atol=1e-9)


def test_a_resumed_fit_uses_the_same_variants_and_gives_the_same_bits(cohorts, tmp_path):
    beds, *_ = cohorts
    fits = []
    for _ in range(2):  # the second replays the rounds of the first
        fed = Federation.local(named(beds), journal=tmp_path / "run.journal")
        fits.append(FederatedPCA(**LIKE_PLINK, maf=0.3, solver="lanczos").fit(fed))
    assert_same_bits(*fits, "mean_", "scale_")
    assert fits[0].left_out_ == fits[1].left_out_
    assert "below maf" in fits[0].left_out_.values()


def test_the_command_line_writes_the_files_of_plink(cohorts, tmp_path, monkeypatch):
    beds, X, _ = cohorts
    monkeypatch.chdir(tmp_path)
    files = [f"{name}={path}" for name, path in named(beds).items()]
    options = ["--binomial", "--missing", "mean", "-k", "3", "--plink", "pc", "-o", "m.fedpca"]
    done = run("fit", *files, *options)
    assert done.exit_code == 0, done.output
    assert ":A:G" in done.output  # and no emoji
    U, s = pooled_pca(X)
    values = np.loadtxt("pc.eigenval")
    np.testing.assert_allclose(values, s**2 / X.shape[1], rtol=1e-5)
    parts_of = []
    for name, path in named(beds).items():
        done = run("transform", "m.fedpca", path, "-o", f"{name}.eigenvec")
        assert done.exit_code == 0, done.output
        parts_of.append(np.loadtxt(f"{name}.eigenvec", usecols=(2, 3, 4), skiprows=1))
    assert angle(U, np.vstack(parts_of)) < 1e-6
    assert (tmp_path / "a.eigenvec").read_text().startswith("#FID\tIID\tPC1\tPC2\tPC3\nf\ti0\t")
    assert (tmp_path / "pc.left_out.tsv").read_text().count("\n") == 7
    done = run("transform", "m.fedpca", str(beds[0]), "-o", "a.csv")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "a.csv").read_text().startswith('"FID","IID","pc1"')
    assert "already exists" in run("fit", *files, *options, "-o", "n.fedpca").output
    whole = [f"--keep={tmp_path / 'whole'}", "-k", "2", "-o", "drop.fedpca"]
    (tmp_path / "whole").write_text("".join(f"i{i}\n" for i in np.flatnonzero(~np.isnan(X).any(1))))
    assert run("fit", str(beds[0]), *whole).exit_code == 0
    done = run("transform", "drop.fedpca", str(beds[0]), *whole[:1], "-o", "drop.csv")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "drop.csv").read_text().startswith('"FID","IID","pc1"')
    done = run("check", *files, "--allow-missing")
    assert done.exit_code == 0, done.output
    assert "60 variants are common" in " ".join(done.output.split())


def test_the_command_line_chooses_samples_and_variants(cohorts, tmp_path, monkeypatch):
    beds, X, _ = cohorts
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keep").write_text("".join(f"i{i}\n" for i in range(20)))
    (tmp_path / "extract").write_text("".join(f"rs{j}\n" for j in range(30)))
    chosen = ["--keep", "keep", "--extract", "extract"]
    options = ["--binomial", "--missing", "mean", "-k", "3", "-o", "m.fedpca"]
    done = run("fit", str(beds[0]), *chosen, *options)
    assert done.exit_code == 0, done.output
    np.testing.assert_allclose(
        load("m.fedpca").singular_values_, pooled_pca(X[:20, :30])[1], rtol=1e-9
    )
    done = run("transform", "m.fedpca", str(beds[0]), "--keep", "keep", "-o", "a.eigenvec")
    assert "Wrote 20 rows" in done.output
    np.save(tmp_path / "rows.npy", X[:, :2])
    done = run("fit", "rows.npy", *chosen, "-o", "n.fedpca")
    assert "require one .bed file" in " ".join(done.output.split())
    done = run("fit", "--federation", "localhost", *chosen, "-o", "n.fedpca")
    assert "fedpca join" in done.output
    plink = ["--missing", "mean", "-k", "2", "--plink", "pc", "--force", "-o", "n.fedpca"]
    done = run("fit", "rows.npy", "--binomial", *plink)
    assert "not variants" in done.output
    done = run("fit", str(beds[0]), *plink)
    assert "requires --binomial" in " ".join(done.output.split())
    done = run("transform", "m.fedpca", str(tmp_path / "rows.npy"), "-o", "b.eigenvec")
    assert done.exit_code == 2


@pytest.mark.process
@pytest.mark.skipif(shutil.which("plink2") is None, reason="needs plink2: apt-get install plink2")
def test_eigenvalues_and_eigenvectors_are_those_of_plink2_and_scores_go_on(cohorts, tmp_path):
    beds, X, parts = cohorts
    ours = FederatedPCA(**LIKE_PLINK).fit(named(beds))
    letters = ["".join(name.split(":")[3:]) for name in ours.feature_names_in_]
    write_fileset(tmp_path / "pooled", X, letters)

    def plink2(*words):
        command = ["plink2", "--threads", "1", "--memory", "640", "--bfile", "pooled", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    pca = ("--pca", str(K), "meanimpute", "allele-wts")
    plink2("--freq", "counts", *pca, "--out", "theirs")
    values = (tmp_path / "theirs.eigenval").read_text().split()
    assert [f"{value:.6g}" for value in ours.singular_values_**2 / len(letters)] == values
    U = np.vstack([ours.transform(str(bed)) for bed in beds]) / ours.singular_values_
    theirs = np.loadtxt(tmp_path / "theirs.eigenvec", usecols=(2, 3, 4))
    signs = np.sign(np.sum(U * theirs, axis=0))
    np.testing.assert_allclose(U, signs * theirs, atol=1e-5)
    # plink2 --score takes our weights and frequencies as its own, for a part of the samples too
    keep = "".join(f"f i{i}\n" for i in parts[1])
    (tmp_path / "keep").write_text(keep)
    write_model(tmp_path / "ours", ours.model_, ours.feature_names_in_, ours.n_samples_, {})
    scores = []
    for who, counts in (("ours", "ours.afreq"), ("theirs", "theirs.acount")):
        options = ("header-read", "no-mean-imputation", "variance-standardize")
        columns = ("--score-col-nums", f"6-{5 + K}", "--keep", "keep", "--out", who)
        plink2(
            "--read-freq", counts, "--score", f"{who}.eigenvec.allele", "2", "5", *options, *columns
        )
        scores.append(np.genfromtxt(tmp_path / f"{who}.sscore", skip_header=1)[:, -K:])
    assert len(scores[0]) == len(parts[1])
    np.testing.assert_allclose(scores[0], signs * scores[1], atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "method",
    [
        PersonalizedPCA(2, n_local=1, random_state=0),
        RobustPCA(2, random_state=0),
        FederatedPCA(2, privacy=Privacy(epsilon=9, delta=1e-5, row_bound=20), random_state=0),
    ],
    ids=lambda method: type(method).__name__,
)
def test_every_program_matches_alleles(complete, method):
    beds, X, parts = complete
    private = getattr(method, "privacy", None) is not None
    allow = ("federated", "personalized", "robust")
    policy = (
        Policy(run_epsilon=9, delta=1e-5)
        if private
        else Policy(allow, min_count=1, min_rows_per_direction=0)
    )
    sites = [Site(bed, name=name, policy=policy) for name, bed in named(beds).items()]
    fit = method.fit(Federation.local(sites, secure=private))
    assert [name.split(":")[2] for name in fit.feature_names_in_] == [f"rs{j}" for j in range(60)]
    assert len(fit.left_out_) == 6
    if private:  # noise hides the rest
        return
    components = fit.components_
    rows = {name: X[part] for name, part in zip("abc", parts, strict=True)}
    np.testing.assert_allclose(components, method.fit(rows).components_, atol=1e-4)
    assert method.left_out_ is None


def test_a_model_is_verified_and_diagnosed_at_cohorts_with_other_variants(complete, tmp_path):
    beds, X, _ = complete
    fit = FederatedPCA(2, scale="binomial").fit(named(beds))
    closed = [
        Site(
            bed,
            name=name,
            policy=Policy(("federated", "auto"), min_count=1, min_rows_per_direction=0),
        )
        for name, bed in named(beds).items()
    ]
    assert verify(fit, closed).is_certified
    assert diagnose(fit, closed, site_map=False).ranks.consensus
    far = write_fileset(tmp_path / "far", X[:30, 1:], ["AG"] * (X.shape[1] - 1))
    with pytest.raises(InputError, match="of the model's 60 variants, such as"):
        verify(fit, {"a": str(beds[0]), "b": str(far)})


def test_summaries_hold_variants_that_can_be_matched(complete, tmp_path, monkeypatch):
    beds, X, _ = complete
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list").write_text("".join(f"rs{j}\n" for j in [*range(60), 63]))
    for name, bed in named(beds).items():
        done = run("summarize", bed, "--extract", "list", "-k", "2", "-o", name)
        assert "Left out 1 variants" in " ".join(done.output.split())
    assert run("merge", "a", "b", "c", "-o", "m.fedpca").exit_code == 0
    model = load("m.fedpca")
    assert model.n_features_in_ == 60
    np.testing.assert_allclose(model.mean_, X.mean(axis=0))
    whole = Summary.of(beds[0], 2)
    assert whole.n_features == 62
    assert whole.update(str(beds[0])).n == 60
    with pytest.raises(InputError, match="choose them with --extract"):
        whole.merge(Summary.of(beds[1], 2))
    streams = [
        StreamingPCA(2, exact=exact).fit(str(beds[0])) for exact in (True, True, False, False)
    ]
    for one, other in (streams[:2], streams[2:]):
        with pytest.raises(InputError, match="1:64:rs63:A:T, have strand-ambiguous"):
            one.merge(other)


def test_what_could_not_match_alleles_is_refused(complete, tmp_path):
    beds, X, parts = complete
    paths = [str(bed) for bed in beds]
    for fit in (lambda: StreamingPCA(2).fit(paths), lambda: Site(paths, name="a")):
        with pytest.raises(InputError, match="in one fileset"):
            fit()
    for options in ({"weight": np.ones(len(parts[0]))}, {"device": "cpu"}):
        with pytest.raises(InputError, match=f"take no {next(iter(options))}"):
            Site(paths[0], name="a", **options)
    write_fileset(tmp_path / "alone", X[:9], ["AG"] * X.shape[1])
    assert Site(tmp_path, name="a").rows.are_variants
    with pytest.raises(InputError, match="cannot be matched"):
        Summary.of(write_fileset(tmp_path / "at", X[:9, :2], ["AT", "CG"]), 1)


@pytest.mark.process
@pytest.mark.skipif(shutil.which("plink2") is None, reason="needs plink2: apt-get install plink2")
@pytest.mark.parametrize("at_fit", [True, False])
def test_plink2_scores_a_cohort_with_weights_in_its_own_letters(
    complete, at_fit, tmp_path, monkeypatch
):
    beds, *_ = complete
    monkeypatch.chdir(tmp_path)
    cohort = beds[1]  # with alleles from the other strand
    options = ["--binomial", "-k", "2", "-o", "m.fedpca", "--plink", "fit"]
    done = run("fit", *[str(bed) for bed in (cohort, beds[0], beds[2])], *options)
    assert done.exit_code == 0, done.output
    done = run("transform", "m.fedpca", cohort, "-o", "own.eigenvec", "--plink", "own")
    assert done.exit_code == 0, done.output
    who = "fit" if at_fit else "own"
    score = ("--score", f"{who}.eigenvec.allele", "2", "5", "header-read", "variance-standardize")
    options = ("--read-freq", f"{who}.afreq", *score, "--score-col-nums", "6-7", "--out", "theirs")
    command = ["plink2", "--threads", "1", "--memory", "640", "--bfile", cohort.with_suffix("")]
    done = subprocess.run([*command, *options], capture_output=True, text=True)
    assert "mismatching" not in done.stdout + done.stderr
    theirs = np.genfromtxt("theirs.sscore", skip_header=1)[:, -2:]
    ours = np.loadtxt("own.eigenvec", skiprows=1, usecols=(2, 3))
    unit = [scores / np.linalg.norm(scores, axis=0) for scores in (ours, -theirs)]
    np.testing.assert_allclose(*unit, atol=1e-5)


def test_weights_of_alleles_need_genotypes_scaled_as_plink2_scales_them(complete, tmp_path):
    beds, *_ = complete
    FederatedPCA(2).fit(str(beds[0])).save(tmp_path / "plain.fedpca")
    words = ("-o", tmp_path / "own.csv", "--plink", tmp_path / "own", "--force")
    PersonalizedPCA(1, n_local=1).fit(named(beds)).save(tmp_path / "local.fedpca")
    for model in ("plain.fedpca", "local.fedpca"):
        done = run("transform", tmp_path / model, beds[0], *words)
        assert "requires a model fitted with --binomial" in " ".join(done.output.split())
        assert not (tmp_path / "own.csv").exists()
    fit = FederatedPCA(2, scale="binomial").fit(str(beds[0]))
    fit.save(tmp_path / "m.fedpca")
    framed(np.ones((3, fit.n_features_in_)), fit).to_csv(tmp_path / "rows.csv", index=False)
    done = run("transform", tmp_path / "m.fedpca", tmp_path / "rows.csv", *words)
    assert "--plink requires a .bed file" in " ".join(done.output.split())
