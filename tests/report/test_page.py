"""The page about a model says what the model holds, loads nothing, and works in a browser."""

from __future__ import annotations

import html
import re
import shutil
import subprocess

import numpy as np
import pyarrow as pa
import pytest

from command_line import ROWS, run
from fedpca import FederatedPCA, Federation, PersonalizedPCA, RobustPCA, StreamingPCA, Summary
from fedpca.privacy.gaussian import Privacy
from fedpca.report import page

HANG_S = 600.0
CHROMIUM = shutil.which("chromium")
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
    assert not {a for a in addresses if not a.startswith("#")}


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
    assert ("differential privacy: epsilon" in text.lower()) == (kind == "private")
    assert ("Sums were secure" in text) == (kind == "private")
    assert ("<h2>What crossed</h2>" in text) == (kind not in ("stream", "summary"))


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
    assert "The 2 of 5 features" in text
    assert text.count('<td class="text">') == 2 + 5 * len(model.run_.ledger.totals(None)) + 2


def test_a_page_needs_a_name_that_browsers_open(written, tmp_path):
    done = run("report", written.with_suffix(".fedpca"), "-o", tmp_path / "m.txt")
    assert done.exit_code == 2
    assert "must end in .html" in done.stderr


@pytest.mark.process
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here; apt install chromium")
def test_a_browser_sorts_filters_and_prints_the_page(written, tmp_path):
    clicked = """<script>
    const heads = document.querySelectorAll("#loadings th button");
    heads[2].click();
    document.body.dataset.sorted = [...document.querySelectorAll("#loadings tbody td:first-child")]
        .map(cell => cell.textContent).join(",");
    heads[0].click();
    document.body.dataset.names = [...document.querySelectorAll("#loadings tbody td:first-child")]
        .map(cell => cell.textContent).join(",");
    const box = document.querySelector("input[data-filters]");
    box.value = "B>A"; box.dispatchEvent(new Event("input"));
    document.body.dataset.shown = [...document.querySelectorAll("#loadings tbody tr")]
        .filter(row => !row.hidden).length;
    </script></body>"""
    driven = tmp_path / "driven.html"
    driven.write_text(written.read_text().replace("</body>", clicked))
    words = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    words += [f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [*words, "--dump-dom", driven.as_uri()], capture_output=True, text=True, timeout=HANG_S
    )
    model = FederatedPCA.load(written.with_suffix(".fedpca"))
    names = np.array(model.feature_names_in_)
    by_size = names[np.argsort(-np.abs(model.components_[1]))]
    assert f'data-sorted="{",".join(by_size)}"' in html.unescape(done.stdout)
    assert 'data-shown="1"' in done.stdout
    assert "CONSOLE" not in done.stderr
    pdf = tmp_path / "page.pdf"
    subprocess.run(
        [*words, "--no-pdf-header-footer", f"--print-to-pdf={pdf}", written.as_uri()],
        capture_output=True,
        timeout=HANG_S,
        check=True,
    )
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", pdf.read_bytes())) <= 2
