"""The page about a model says what the model holds, loads nothing, and works in a browser."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest

from command_line import ROWS, run
from fedpca import (
    FederatedPCA,
    Federation,
    PersonalizedPCA,
    RobustPCA,
    StreamingPCA,
    Summary,
    diagnose,
)
from fedpca.coordinator.record import STOPPED, StopReason
from fedpca.errors import InputError
from fedpca.privacy.gaussian import Privacy
from fedpca.report import page, page_diagnosis

TABLE = pa.table(dict(zip(["<b>a", "b", "c", "d", "e"], ROWS.T, strict=True)))
PARTS = {"north": TABLE[:30], "south": TABLE[30:]}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    FederatedPCA(3, solver="lanczos", random_state=0).fit(PARTS).save(folder / "m.fedpca")
    done = run("report", folder / "m.fedpca", "-o", folder / "m.html")
    assert done.exit_code == 0, done.stderr
    return folder / "m.html"


def test_a_page_has_the_numbers_of_its_model(written):
    text = written.read_text()
    model = FederatedPCA.load(written.with_suffix(".fedpca"))
    for variance, share in zip(
        model.explained_variance_, model.explained_variance_ratio_, strict=True
    ):
        assert f"<td>{variance:.6g}</td><td>{share:.2%}</td>" in text
    values = re.findall(r'data-value="([^"]+)"', text)
    assert {float(v) for v in values} == set(model.components_.ravel().tolist())
    assert f"in {model.run_.rounds} rounds" in text
    assert "up to rounding" in text or "converged" in text
    assert "covariance_product" in text


def test_a_page_loads_nothing_and_quotes_names(written):
    text = written.read_text()
    assert "&lt;b&gt;a" in text
    assert "<b>a" not in text
    assert "default-src 'none'" in text
    addresses = set(re.findall(r"""(?:src|href)=["']?([^"'> ]+)""", text))
    assert not {a for a in addresses if not a.startswith(("#", "data:"))}


@pytest.mark.filterwarnings("ignore:misalignment_")
@pytest.mark.parametrize("kind", ["personalized", "robust", "stream", "summary", "private"])
def test_every_kind_of_model_has_a_page(kind, tmp_path):
    if kind == "summary":
        fitted = Summary.of(ROWS, 2)
    elif kind == "private":
        settings = Privacy(epsilon=1e6, delta=1e-6, row_bound=100.0)
        federation = Federation.local([ROWS[:40], ROWS[40:]], secure=True)
        fitted = FederatedPCA(2, privacy=settings).fit(federation)
    else:
        fitted = {
            "personalized": PersonalizedPCA(1, 1, random_state=0),
            "robust": RobustPCA(2, random_state=0),
            "stream": StreamingPCA(2),
        }[kind].fit(ROWS if kind == "stream" else PARTS)
    text = page.report_page(fitted, "m.fedpca")
    assert "<h2>Loadings</h2>" in text
    assert ("Epsilon promised for each row" in text) == (kind == "private")
    assert ("Secure sums" in text) == (kind == "private")
    assert ("<h2>What crossed</h2>" in text) == (kind not in ("stream", "summary"))
    assert ("<h2>Outliers</h2>" in text) == (kind == "robust")
    assert ("Misalignment" in text) == (kind == "personalized")
    certain = text[text.index("<h2>How certain this is</h2>") :]
    assert ("exactly those of the pooled rows" in certain) == (kind in ("stream", "summary"))
    for of in ("Variance explained", "Features with the largest loadings on component"):
        assert f'aria-label="{of}' in text


def test_every_stop_reason_has_words_on_a_page():
    assert set(STOPPED) == set(get_args(StopReason))
    settings = Privacy(epsilon=1e6, delta=1e-6, row_bound=100.0)
    model = FederatedPCA(2, privacy=settings).fit(PARTS["north"])
    assert model.run_.stop_reason == "private"
    for reason in get_args(StopReason):
        model.run_.stop_reason = reason
        certain = page.report_page(model, "m.fedpca").split("<h2>How certain this is</h2>")[1]
        assert escape(STOPPED[reason][""]) in certain


def test_what_went_wrong_is_at_the_top():
    model = FederatedPCA(2, solver="lanczos", random_state=0).fit(PARTS)
    model.run_.lost.append({"site": "west", "round": 3, "reason": "site 'west' <failed>"})
    model.run_.stop_reason = "max_rounds"
    text = page.report_page(model, "m.fedpca")
    top = text[: text.index("<h2>")]
    assert "Lost in round 3: site &#x27;west&#x27; &lt;failed&gt;" in top
    assert "ran out of rounds" in top


def test_a_page_of_many_features_shows_the_largest(monkeypatch):
    monkeypatch.setattr(page, "MAX_LOADINGS", 2)
    model = FederatedPCA(2, random_state=0).fit(PARTS)
    text = page.report_page(model, "m.fedpca")
    assert "the 2 of 5 features" in text
    assert len(re.findall("data-value", text)) == 2 * 2


def test_a_page_needs_a_name_that_browsers_open(written, tmp_path):
    done = run("report", written.with_suffix(".fedpca"), "-o", tmp_path / "m.txt")
    assert done.exit_code == 2
    assert "must end in .html" in done.stderr


def test_a_page_says_what_was_asked_and_of_how_many(written):
    text = written.read_text()
    run_ = FederatedPCA.load(written.with_suffix(".fedpca")).run_
    asked = text[text.index("<h2>What was asked") : text.index("<h2>What crossed")]
    assert "2 sites are behind the result." in asked
    for question in {entry["question"] for entry in run_.history}:
        n = sum(entry["question"] == question for entry in run_.history)
        assert re.search(rf">{question}</td><td[^>]*>\w+</td><td>{n}</td><td>2</td>", asked)


def test_counts_below_the_minimum_are_not_shown(written, tmp_path):
    to = ["-o", tmp_path / "m.html", "--min-count", 81]
    assert run("report", written.with_suffix(".fedpca"), *to).exit_code == 0
    assert "<dt>rows</dt><dd>fewer than 81</dd>" in (tmp_path / "m.html").read_text()
    assert "<dt>rows</dt><dd>80</dd>" in written.read_text()
    model = RobustPCA(2, random_state=0).fit(PARTS)
    for n, shown in ((4, "fewer than 5"), (5, "5"), (0, "0")):
        model.n_left_out_ = n
        text = page.report_page(model, "m.fedpca", 5)
        assert f"<p>Rows left out: {shown}." in text
    with pytest.raises(InputError, match="min_count=0"):
        page.report_page(model, "m.fedpca", 0)


def test_a_diagnosis_on_a_page_does_not_tell_how_many_rows_a_site_has():
    """The same diagnosis of sites of other sizes makes the same page."""
    model = FederatedPCA(2, random_state=0).fit(PARTS)
    found = diagnose(model, PARTS)
    text = "".join(page_diagnosis.diagnosis_part(model, found))
    drawn = page_diagnosis.site_plots(found)[0][1]
    sizes = dict(zip(found.sites.sites, (0.1, 0.9), strict=True))
    resized = {
        name: replace(
            site,
            rows=sizes[name],
            within=site.within * sizes[name] / site.rows,
            between=site.between * sizes[name] / site.rows,
        )
        for name, site in found.sites.sites.items()
    }
    other = replace(found, sites=replace(found.sites, sites=resized))
    assert "".join(page_diagnosis.diagnosis_part(model, other)) == text
    np.testing.assert_array_equal(page_diagnosis.site_plots(other)[0][1].rows, drawn.rows)


def test_lengths_that_only_rows_determine_are_letters():
    few = {"north": TABLE[:3], "south": TABLE[3:]}  # whose factor has as many rows as the site
    model = FederatedPCA(2, solver="tsqr").fit(few)
    text = page.report_page(model, "m.fedpca")
    assert {(12,), (15,)} <= {total.shape for total in model.run_.ledger.totals()}
    assert '<td class="text">entries</td><td class="text">entries</td>' in text
    assert '<td class="text">12</td>' not in text


def test_a_page_of_a_question_that_is_not_installed_can_be_read(written):
    model = FederatedPCA.load(written.with_suffix(".fedpca"))
    text = written.read_text().replace("covariance_product", "somebody_elses")
    model.run_.history = [
        {**entry, "question": entry["question"].replace("covariance_product", "somebody_elses")}
        for entry in model.run_.history
    ]
    assert page.report_page(model, "m.fedpca").count("somebody_elses") == 2
    assert text.count("somebody_elses") > 2


@pytest.mark.filterwarnings("ignore:misalignment_")
def test_a_site_that_lies_about_names_writes_no_markup():
    evil = "</title></svg><script>alert(1)</script><img src=x onerror='alert(2)'>\x1b[2J\u202e"
    names = [evil, "$\\frac$", "_c", "d\"'&", "e" * 3000]
    sites = {
        f"{evil}{i}": pa.table(dict(zip(names, rows.T, strict=True)))
        for i, rows in enumerate((ROWS[:30], ROWS[30:]))
    }
    model = PersonalizedPCA(1, 1, random_state=0).fit(sites)  # whose components have sites' names
    model.run_.lost.append({"site": evil, "round": 3, "reason": evil})
    text = page.report_page(model, f"{evil}.fedpca")
    found = Found()
    found.feed(text)
    assert found.tags["script"] == 1  # the page's own
    assert found.tags["title"] == 1
    assert not found.tags["img"]
    assert not found.handlers
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", text.replace("\r", ""))
    assert "e" * 200 not in text


class Found(HTMLParser):
    """What a browser would find in a page."""

    def __init__(self):
        super().__init__()
        self.tags, self.handlers = Counter(), []

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


def test_a_page_runs_its_own_script_and_no_other(written):
    text = written.read_text()
    script = re.search("<script>(.*?)</script>", text, re.DOTALL)[1]
    hashed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src &#x27;sha256-{hashed}&#x27;" in text or f"'sha256-{hashed}'" in text
    assert "script-src 'unsafe-inline'" not in text
