"""Genotypes in .bed files equal the same rows in memory, and damaged files are refused by name."""

from __future__ import annotations

import numpy as np
import pytest

from cohorts import counted, simulated, write_fileset
from fedpca import FederatedPCA, Site
from fedpca.errors import InputError, SiteFailed
from fedpca.linalg import blas_threads
from fedpca.rows import in_memory, rare
from fedpca.rows.check import examine, few_findings, findings_between
from fedpca.rows.gaps import ERROR, MEAN, column_totals
from fedpca.rows.genotypes import genotype_rows, products
from fedpca.rows.genotypes.plink_files import Genotypes
from fedpca.rows.genotypes.variants import (
    common_variants,
    misnamed_variant,
    split_name,
    variant_name,
)
from fedpca.rows.open import file_states, open_rows
from fedpca.rows.rare import look_for_few
from fedpca.rows.standardized import Frame, StandardizedRows

N, D = 37, 24
G, ALLELES = simulated(N, D)
X = counted(G, ALLELES)


@pytest.fixture
def bed(tmp_path):
    return write_fileset(tmp_path / "cohort", G, ALLELES)


def everything(rows):
    return np.vstack(list(rows.blocks()))


@pytest.mark.parametrize("rows_in_block", [1, 5, 1000])
def test_genotypes_have_the_blocks_of_rows_in_memory(bed, rows_in_block, monkeypatch):
    monkeypatch.setattr(in_memory, "BLOCK_BYTES", rows_in_block * 8 * D)
    monkeypatch.setattr(genotype_rows, "PACKED_BYTES", 10 * D)
    rows = open_rows(bed)
    assert (rows.n_rows, rows.n_features, len(rows.dtypes)) == (N, D, D)
    for block, same in zip(rows.blocks(), open_rows(X).blocks(), strict=True):
        np.testing.assert_array_equal(block, same)


def test_genotypes_are_counted_without_decoding(bed, monkeypatch):
    monkeypatch.setattr(genotype_rows, "PACKED_BYTES", 100)
    expected = np.stack([*((g == X).sum(axis=0) for g in range(3)), np.isnan(X).sum(axis=0)], 1)
    np.testing.assert_array_equal(open_rows(bed).counts, expected)
    totals, same = column_totals(open_rows(bed), MEAN), column_totals(open_rows(X), MEAN)
    for got, wanted in zip(totals, same, strict=True):
        np.testing.assert_array_equal(got, wanted)
    with pytest.raises(InputError, match="NaN in columns 1:"):
        column_totals(open_rows(bed), ERROR)


@pytest.mark.parametrize("tile", [1, 1 << 18])
@pytest.mark.parametrize("samples", [8, 1 << 14])
@pytest.mark.parametrize("keep", [None, [f"i{i}" for i in range(3, N, 2)], ["i8", "i9"]])
def test_products_by_variants_equal_those_by_rows(bed, tile, samples, keep, monkeypatch):
    monkeypatch.setattr(products, "TILE_ENTRIES", tile)
    monkeypatch.setattr(products, "MAX_SAMPLES", samples)
    monkeypatch.setattr(products, "GRAM_SAMPLES", samples)
    rng = np.random.default_rng(1)
    order = rng.permutation(D)
    own = X if keep is None else X[[int(name[1:]) for name in keep]]
    mean, scale, fill = rng.random((3, D)) + 0.5
    frame = Frame(mean, scale, order, missing=MEAN, fill=fill)
    Z = rng.normal(size=(D, 3))
    for cache in (0, 1 << 20):  # by passes over the rows, and by A'A
        both = [
            StandardizedRows(open_rows(source), frame, max_cache_bytes=cache)
            for source in (Genotypes(bed, keep), own)
        ]
        for method, given in (("gram_times", (Z,)), ("squares", ()), ("energy_along", (Z, 1.0))):
            ours, expected = (getattr(rows, method)(*given) for rows in both)
            np.testing.assert_allclose(ours, expected, rtol=1e-12)
    np.testing.assert_allclose(both[0].gram(), both[1].gram(), rtol=1e-12)


def test_the_number_of_threads_changes_no_bit(bed, monkeypatch):
    rng = np.random.default_rng(2)
    rows = products.VariantProducts(open_rows(bed), *rng.random((2, D)))
    Z = rng.normal(size=(D, 3))
    one = rows.gram_times(Z)
    monkeypatch.setattr(blas_threads, "n_threads", lambda: 3)
    assert rows.gram_times(Z).tobytes() == one.tobytes()


@pytest.mark.parametrize("missing", ["mean", "drop"])
@pytest.mark.parametrize("solver", ["covariance", "lanczos", "merge", "tsqr"])
def test_a_fit_of_a_file_equals_that_of_rows_in_memory(solver, missing, tmp_path):
    some, alleles = simulated(N, 8, missing=0.01)
    bed = write_fileset(tmp_path / "few", some, alleles)
    parts = [list(range(15)), list(range(15, N))]
    options = {"n_components": 2, "missing": missing, "solver": solver, "random_state": 0}
    fits = [
        FederatedPCA(**options).fit(sites)
        for sites in (
            {str(i): Genotypes(bed, [f"i{k}" for k in part]) for i, part in enumerate(parts)},
            {str(i): counted(some, alleles)[part] for i, part in enumerate(parts)},
        )
    ]
    np.testing.assert_allclose(fits[0].components_, fits[1].components_, atol=1e-8)
    np.testing.assert_allclose(fits[0].explained_variance_, fits[1].explained_variance_)


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ("i1\ni4\nabsent\n", [1, 4]),
        ("f i1\nf i2\nother i3\n", [1, 2]),
        ("#FID IID SEX\nf i5 1\n", [5]),
        ("#IID SEX\ni6 2\n", [6]),
    ],
)
def test_keep_takes_the_files_of_plink(bed, tmp_path, listed, expected):
    (tmp_path / "keep.txt").write_text(listed)
    rows = open_rows(Genotypes(bed, keep=tmp_path / "keep.txt"))
    assert [id for _, id in rows.sample_ids] == [f"i{i}" for i in expected]
    np.testing.assert_array_equal(everything(rows), X[expected])


def test_extract_takes_the_files_of_plink_and_lists(bed, tmp_path):
    (tmp_path / "prune.in").write_text("rs3 rs1\nrs20\nabsent\n")
    for wanted in (tmp_path / "prune.in", ["rs3", "rs1", "rs20"]):
        rows = open_rows(Genotypes(bed, extract=wanted))
        assert [split_name(name)[2] for name in rows.features] == ["rs1", "rs3", "rs20"]
        np.testing.assert_array_equal(everything(rows), X[:, [1, 3, 20]])
    assert tmp_path / "prune.in" in file_states(Genotypes(bed, extract=tmp_path / "prune.in"))
    first, second = (
        Site(Genotypes(bed, extract=[id]), name="a").fingerprint for id in ("rs1", "rs2")
    )
    assert first != second


def test_columns_are_chosen_by_the_names_of_variants(bed):
    names = open_rows(bed).features
    site = Site(bed, name="a", drop=names[0])
    assert site.rows.features == names[1:]
    with pytest.raises(InputError, match=r"the \.fam file"):
        Site(bed, name="a", id=names[0])


def test_only_autosomes_are_used(tmp_path):
    chromosomes = ["chr1", "22", "X", "23", "MT", "0", *["2"] * (D - 6)]
    bed = write_fileset(tmp_path / "a", G, ALLELES, chromosomes=chromosomes)
    found = [split_name(name)[0] for name in open_rows(bed).features]
    assert found == ["1", "22", "0", *["2"] * (D - 6)]
    assert open_rows(Genotypes(bed, n_autosomes=29)).n_features == D - 2


def damage(bed, how):
    if how == "magic":
        bed.write_bytes(b"chr1\t10\t20\n")
    elif how == "by sample":
        bed.write_bytes(b"\x6c\x1b\x00" + bed.read_bytes()[3:])
    elif how == "truncated":
        bed.write_bytes(bed.read_bytes()[:-1])
    elif how == "no bim":
        bed.with_suffix(".bim").unlink()
    elif how == "not text":
        bed.with_suffix(".fam").write_bytes(b"\xff\xfe\x00")
    else:
        file = bed.with_suffix(".fam" if "sample" in how else ".bim")
        lines = file.read_text().splitlines()
        lines[2] = {
            "duplicate variant": lines[1],
            "duplicate sample": lines[1],
            "short line": "1 rs",
            "empty line": "",
            "position": lines[2].replace("\t3\t", "\t1_0\t"),
            "one allele": lines[2][:-3] + "A\tA",
            "colon": lines[2][:-1] + "G]1:7]",
            "escape": lines[2].replace("rs2", "rs\x1b[2J"),
        }[how]
        file.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("magic", "not a PLINK 1 .bed file"),
        ("by sample", "sample by sample"),
        ("truncated", "bytes instead of"),
        ("no bim", "does not exist"),
        ("not text", "not text"),
        ("duplicate variant", "duplicate columns: 1:2:rs1:"),
        ("duplicate sample", "lists a sample twice"),
        ("short line", "line 3 of cohort.bim has 2 words"),
        ("empty line", "line 3 of cohort.bim has 0 words"),
        ("position", "line 3 has a position"),
        ("one allele", "line 3 has the same allele twice"),
        ("colon", "line 3 has an allele with a colon"),
        ("escape", "cannot be printed"),
    ],
)
def test_damaged_filesets_are_refused_by_name(bed, how, said):
    damage(bed, how)
    with pytest.raises(InputError, match=said) as raised:
        open_rows(bed)
    assert "cohort" in str(raised.value)


@pytest.mark.parametrize(("n", "said"), [(5, "more samples than the 5"), (7, "last of the 7")])
def test_a_sample_too_few_or_too_many_within_a_byte_is_noticed(tmp_path, n, said):
    bed = write_fileset(tmp_path / "cohort", *simulated(6, 120))
    assert open_rows(bed).n_rows == 6
    lines = [f"f\ti{i}\t0\t0\t0\t-9\n" for i in range(n)]
    bed.with_suffix(".fam").write_text("".join(lines))
    with pytest.raises(InputError, match=said):
        open_rows(bed)


def test_lists_that_choose_nothing_are_refused(bed, tmp_path):
    (tmp_path / "none").write_text("")
    for options, said in (({"keep": []}, "samples to keep"), ({"extract": []}, "no variants")):
        with pytest.raises(InputError, match=said):
            open_rows(Genotypes(bed, **options))
    with pytest.raises(InputError, match="samples to keep"):
        open_rows(Genotypes(bed, keep=tmp_path / "none"))
    with pytest.raises(InputError, match="does not exist"):
        open_rows(Genotypes(bed, keep=tmp_path / "absent"))


def test_a_file_that_shrinks_or_goes_fails_the_question_alone(bed):
    rows = open_rows(bed)
    bed.write_bytes(bed.read_bytes()[:10])
    with pytest.raises(SiteFailed, match="shorter than it was"):
        everything(rows)
    bed.unlink()
    with pytest.raises(SiteFailed, match="no longer be read"):
        everything(rows)


def test_a_variant_has_the_same_name_on_both_strands_and_either_way_around():
    for letters in ("AG", "GA", "TC", "CT"):
        name, is_first = variant_name("1", 7, "rs:1", *letters)
        assert name == "1:7:rs:1:A:G"
        assert is_first == (letters[0] in "AT")
    assert variant_name("1", 7, "i", "ct", "c") == ("1:7:i:C:CT", False)
    assert split_name("1:7:rs:1:A:G") == ("1", "7", "rs:1", "A", "G")


@pytest.mark.parametrize(
    "name",
    [
        "age",
        "1:7:rs1:G:A",
        "1:x:rs1:A:G",
        "1:07:rs1:A:G",
        "1:7:r s:A:G",
        "1:7:r\x1b:A:G",
        f"1:7:r:A:{'G' * 999}",
        "1:7:A:G",
    ],
)
def test_names_that_no_honest_site_sends_are_recognized(name):
    assert misnamed_variant(["1:7:rs1:A:G", name])
    assert not misnamed_variant(["1:7:rs1:A:G"])


def test_variants_are_left_out_with_the_reason():
    both = ["1:1:a:A:G", "1:2:b:A:T", "1:3:c:0:A", "1:4:d:A:G", "1:5:e:A:G", "1:6:f:A:G"]
    other = ["1:1:a:A:G", "1:2:b:A:T", "1:3:c:A:G", "1:4:d:A:C", "2:5:e:A:G"]
    kept, left_out = common_variants({"x": both, "y": other})
    assert kept == ("1:1:a:A:G",)
    assert left_out == {
        "1:2:b:A:T": "strand-ambiguous alleles",
        "1:3:c:0:A": "an allele is missing",
        "1:3:c:A:G": "alleles differ",
        "1:4:d:A:G": "alleles differ",
        "1:4:d:A:C": "alleles differ",
        "1:5:e:A:G": "positions differ",
        "2:5:e:A:G": "positions differ",
        "1:6:f:A:G": "not at every site",
    }
    assert common_variants({"x": both}) == (tuple(both), {})
    with pytest.raises(InputError, match="no variant in common"):
        common_variants({"x": both[5:], "y": other})


def test_a_check_of_cohorts_counts_instead_of_reading(bed, tmp_path):
    at, same = examine(open_rows(bed)), examine(open_rows(X))
    for field in ("n_nan", "smallest", "largest", "counts_up", "n_infinite"):
        np.testing.assert_array_equal(getattr(at, field), getattr(same, field))
    ids, positions = [f"rs{j}" for j in range(1, D)], range(2, D + 1)
    other = write_fileset(tmp_path / "o", G[:, 1:], ALLELES[1:], ids=ids, positions=positions)
    (finding,) = findings_between({"a": at, "b": examine(open_rows(other))})
    assert finding.text == f"{D - 1} variants are common; a fit leaves out 1 not at every site"
    assert not finding.stops_fit
    assert not findings_between({"a": at, "b": at})
    far = write_fileset(tmp_path / "far", G, ALLELES, ids=[f"x{j}" for j in range(D)])
    (finding,) = findings_between({"a": at, "b": examine(open_rows(far))})
    assert finding.stops_fit


@pytest.mark.parametrize("limit", [0, 1e9])
def test_rare_genotypes_and_few_gaps_are_found_as_in_other_rows(tmp_path, limit, monkeypatch):
    some = G.copy()
    some[:, 0], some[0, 0] = 1, 2
    some[:, 1] = 0
    bed = write_fileset(tmp_path / "a", some, ALLELES)
    names = np.array(open_rows(bed).features)
    for missing in (ERROR, MEAN):
        few = look_for_few(open_rows(bed), 3, missing)
        same = look_for_few(open_rows(counted(some, ALLELES)), 3, missing)
        assert few.rare == [names[int(i)] for i in same.rare] == [names[0]]
        n_apart = [
            np.sum(np.isnan(some[:, [i]]) & ~np.isnan(some), axis=0) for i in range(some.shape[1])
        ]
        has_few = [((n > 0) & (n < 3)).any() for n in n_apart]
        if limit:
            assert list(few.gapped) == list(names[has_few] if missing == MEAN else [])
    monkeypatch.setattr(rare, "MAX_PAIRS", limit)
    few = look_for_few(open_rows(bed), 3, MEAN)
    if not limit:  # too many to compare, so all that have gaps
        assert list(few.gapped) == list(names[np.isnan(some).any(axis=0)])
    (finding,) = few_findings("a", open_rows(bed), 3)
    assert "in 1 variants" in finding.text
