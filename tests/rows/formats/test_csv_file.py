"""CSV files as programs write them, and what is wrong with one by its line."""

from __future__ import annotations

import gzip

import numpy as np
import pandas as pd
import pytest

from fedpca.errors import InputError
from fedpca.rows.open import open_rows
from fedpca.rows.reading import Reading

X = np.random.default_rng(0).normal(size=(30, 3)).round(4)
FRAME = pd.DataFrame(X, columns=["a", "b", "c"])


def values(path, **options):
    return np.vstack(list(open_rows(path, Reading(**options)).blocks()))


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("kind", [".csv", ".csv.gz", ".CSV"])
def test_the_header_shows_what_separates_the_columns(separator, kind, tmp_path):
    path = tmp_path / f"x{kind}"
    FRAME.to_csv(path, sep=separator, index=False)
    np.testing.assert_array_equal(values(path), X)
    assert open_rows(path).n_rows == 30


def test_commas_in_a_quoted_name_separate_nothing(tmp_path):
    (tmp_path / "x.csv").write_text('"cells, live, total";"b";c\n1;2;3\n4;5;6\n')
    rows = open_rows(tmp_path / "x.csv")
    assert rows.features == ("cells, live, total", "b", "c")


@pytest.mark.parametrize("name", ["x.csv", "x.tsv"])
def test_a_decimal_comma_is_read_where_commas_do_not_separate(name, tmp_path):
    path = tmp_path / name
    FRAME.to_csv(path, sep="\t" if name == "x.tsv" else ";", decimal=",", index=False)
    np.testing.assert_array_equal(values(path), X)


def test_text_between_semicolons_does_not_turn_points_into_commas(tmp_path):
    FRAME.assign(ward="north").to_csv(tmp_path / "x.csv", sep=";", index=False)
    np.testing.assert_array_equal(values(tmp_path / "x.csv", drop="ward"), X)
    with pytest.raises(InputError, match=r"not numeric: ward \(string\)"):
        open_rows(tmp_path / "x.csv")


def test_the_mark_before_a_windows_file_is_no_part_of_the_first_name(tmp_path):
    FRAME.to_csv(tmp_path / "x.csv", index=False, encoding="utf-8-sig")
    assert open_rows(tmp_path / "x.csv").features == ("a", "b", "c")


def test_only_the_end_of_a_name_says_that_tabs_separate_the_fields(tmp_path):
    (tmp_path / "a.tsv.csv").write_text("a,b\n1,2\n3,4\n")
    assert open_rows(tmp_path / "a.tsv.csv").features == ("a", "b")
    (tmp_path / "a.csv.TSV").write_text("a,1\tb\n1\t2\n")
    assert open_rows(tmp_path / "a.csv.TSV").features == ("a,1", "b")


def bad(tmp_path, content, kind=".csv"):
    path = tmp_path / f"x{kind}"
    path.write_bytes(gzip.compress(content) if kind.endswith(".gz") else content)
    return path


@pytest.mark.parametrize("kind", [".csv", ".csv.gz"])
@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "the file is empty; it must start with a line of column names"),
        (b"\n\n", "the file is empty"),
        (b"a,b\n1,2\n\n3,4,5\n", "line 4 has 3 fields, but the header has 2"),
        (b"a,b\n1,2\n3\n", "line 3 has 1 fields, but the header has 2"),
        ("a,größe\n1,2\n".encode("latin-1"), "byte 5 of line 1 is not UTF-8.*Latin-1.*iconv"),
        ("a,b\n1,2\n3,café\n".encode("latin-1"), "byte 6 of line 3 is not UTF-8"),
    ],
)
def test_a_file_that_cannot_be_read_says_which_line(kind, content, text, tmp_path):
    with pytest.raises(InputError, match=text):
        open_rows(bad(tmp_path, content, kind))


def test_old_text_in_an_id_names_the_byte_and_a_dropped_column_is_not_read(tmp_path):
    path = bad(tmp_path, "a,name\n1,Anna\n2,René\n".encode("latin-1"))
    with pytest.raises(InputError, match="byte 6 of line 3 is not UTF-8"):
        open_rows(path, Reading(id="name"))
    assert values(path, drop="name").ravel().tolist() == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("separator", [b",", b";"])
def test_a_word_among_numbers_is_found_by_line_and_not_quoted(separator, tmp_path):
    lines = [b"a" + separator + b"b"] + [b"1" + separator + b"NA"] * 400_000
    path = bad(tmp_path, b"\n".join([*lines, b"3" + separator + b"secret"]))
    with pytest.raises(InputError, match="line 400002, column b contains a value") as error:
        list(open_rows(path).blocks())
    assert "secret" not in str(error.value)


def test_a_truncated_archive_is_not_read_in_part(tmp_path):
    content = gzip.compress(b"a,b\n" + b"1.25,2.5\n" * 500_000)
    path = tmp_path / "x.csv.gz"
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="the compressed data is damaged or cut off"):
        list(open_rows(path).blocks())


def test_the_same_rows_compressed_and_not_do_not_count_twice(tmp_path):
    FRAME.to_csv(tmp_path / "x.csv", index=False)
    FRAME.to_csv(tmp_path / "x.csv.gz", index=False)
    with pytest.raises(InputError, match="would count twice"):
        open_rows(tmp_path)
