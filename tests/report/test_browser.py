"""Reports and the live page work in a real browser: shown, sorted, filtered, printed, and silent."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest

import browser
from command_line import ROWS
from fedpca import FederatedPCA, PersonalizedPCA, RobustPCA, StreamingPCA, Summary, diagnose
from fedpca.report.boards import RunBoard, ServerBoard
from fedpca.report.live import LivePage
from fedpca.report.page import report_page

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(browser.PROGRAM is None, reason=browser.MISSING),
]
EVIL = "<script>document.title = 'taken'</script>"
NAMES = [EVIL, "b", "c", "d", "e" * 300]
TABLE = pa.table(dict(zip(NAMES, ROWS.T, strict=True)))
PARTS = {EVIL: TABLE[:30], "south": TABLE[30:]}
CELLS = '[...document.querySelectorAll("#loadings tbody tr")]'
COLORS = """(() => {
    const style = getComputedStyle(document.body), text = document.querySelector("figure svg text");
    return [style.color, style.backgroundColor, text ? getComputedStyle(text).fill : style.color];
})()"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    started = browser.Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def models():
    few = {"random_state": 0}
    with pytest.warns(UserWarning, match="misalignment_"):  # of two sites with one local component
        personalized = PersonalizedPCA(1, 1, gather=True, **few).fit(PARTS)
    return {
        "federated": FederatedPCA(3, solver="lanczos", **few).fit(PARTS),
        "personalized": personalized,
        "robust": RobustPCA(2, **few).fit(PARTS),
        "stream": StreamingPCA(2).fit(ROWS),
        "summary": Summary.of(TABLE, 2),
    }


@pytest.fixture(scope="module")
def found(models):
    return diagnose(models["federated"], PARTS)


@pytest.fixture
def written(models, tmp_path):
    def write(kind, found=None):
        path = tmp_path / f"{kind}.html"
        path.write_text(report_page(models[kind], f"{kind}.fedpca", diagnosis=found), "utf-8")
        return path.as_uri()

    return write


def brightness(color):
    return sum(map(float, re.findall(r"[\d.]+", color)[:3])) / 3


def is_readable(page, *, dark):
    """Whether text stands out from what is behind it, as it does in the given color scheme."""
    text, back, drawn = map(brightness, page.run(COLORS))
    return (back < 60 if dark else back > 220) and min(abs(text - back), abs(drawn - back)) > 120


def fits(page):
    return page.run("document.documentElement.scrollWidth <= window.innerWidth")


def is_silent(page, address):
    return page.complaints == [] and set(page.requests) == {address}


def test_a_report_sorts_and_filters(chromium, written, models):
    address, model = written("federated"), models["federated"]
    with chromium.page(address) as page:
        order = f"{CELLS}.map(row => row.cells[0].textContent)"
        page.run('document.querySelectorAll("#loadings th button")[2].click()')
        by_size = np.argsort(-np.abs(model.components_[1]))
        shown = [name if len(name) < 80 else name[:77] + "..." for name in NAMES]
        assert page.run(order) == [shown[j] for j in by_size]
        page.run('document.querySelectorAll("#loadings th button")[2].click()')
        assert page.run(order) == [shown[j] for j in by_size[::-1]]
        page.run('document.querySelectorAll("#loadings th button")[0].click()')
        assert page.run(order) == sorted(shown)
        search = 'document.querySelector("input[data-filters]")'
        page.run(f"{search}.focus()")
        page.call("Input.insertText", text="SCRIPT")
        assert page.run(f"{CELLS}.filter(row => !row.hidden).length") == 1
        assert page.run('document.querySelector("[data-counts]").textContent') == "1 found"
        page.run(f"{search}.value = ''; {search}.dispatchEvent(new Event('input'))")
        assert page.run(f"{CELLS}.filter(row => !row.hidden).length") == 5
        assert page.run("document.title") == "federated.fedpca"
        assert is_silent(page, address)


@pytest.mark.parametrize(
    "kind", ["federated", "diagnosed", "personalized", "robust", "stream", "summary"]
)
def test_a_report_is_readable_anywhere_and_prints_on_two_pages(kind, chromium, written, found):
    address = written("federated", found) if kind == "diagnosed" else written(kind)
    with chromium.page(address) as page:
        assert page.run('document.querySelectorAll("figure svg").length') >= 3
        for dark in (False, True):
            for width in (1200, 380):
                page.look(dark=dark, width=width, height=800)
                assert is_readable(page, dark=dark)
                assert fits(page)
        printed = page.printed()  # also from a dark page
        assert len(re.findall(rb"/Type\s*/Page\b(?!s)", printed)) <= 2
        assert is_silent(page, address)


def test_a_live_page_follows_a_run_to_its_end(chromium):
    board = RunBoard(f"{EVIL}.fedpca", "FederatedPCA, lanczos", 1e-10, 500)
    board.show_online(["north", EVIL, "west"], ["north", EVIL])
    served = LivePage(board.feed, "0")
    with chromium.page(served.url) as page:
        page.wait_for('document.querySelectorAll("#sites tr").length == 3', "the sites")
        words = (
            '[...document.querySelectorAll("#sites tr")].map(row => row.innerText.split("\\t")[1])'
        )
        assert page.run(words) == ["offline", "online", "online"]
        board.show_waiting("abc", ("north",))
        page.wait_for(f"{words}.includes('must approve')", "who must approve")
        for number, residual in enumerate([None, 1e-1, 1e-2, 1e-3, 1e-4], start=1):
            crossed = {"bytes_up": 2000, "bytes_down": 1000, "seconds": 2.0, "residual": residual}
            entry = {"round": number, "question": "covariance_product", **crossed}
            board.show_round(entry, [{"site": "west", "round": 1, "reason": EVIL}])
        page.wait_for('document.querySelector("#curve .expected") !== null', "the expected end")
        assert page.run(words)[0] == "lost"
        assert "about 6 rounds" in page.run('document.getElementById("facts").textContent')
        assert page.run('document.querySelectorAll("#bytes rect").length') == 10
        for dark in (False, True):
            for width in (1200, 380):
                page.look(dark=dark, width=width, height=800)
                assert is_readable(page, dark=dark)
                assert fits(page)
        board.end("Done: the model is written", is_good=True)
        served.close()
        page.wait_for('document.getElementById("state").className == "good"', "the end")
        assert page.run('document.getElementById("gone").hidden')
        assert page.run("document.title") == f"{EVIL}.fedpca · fedpca"
        assert page.complaints == []
        assert set(page.requests) == {served.url, f"{served.url}events"}


def test_a_live_page_shows_a_server_and_says_when_it_is_gone(chromium):
    board = ServerBoard("here", ["north", EVIL])
    board.show_sites({"north"}, {"north": "ann"})
    board.tell("north joined")
    served = LivePage(board.feed, "0")
    with chromium.page(served.url) as page:
        page.wait_for('document.querySelectorAll("#sites tr").length == 2', "the sites")
        assert "in a run" in page.run('document.getElementById("sites").innerText')
        assert "north joined" in page.run('document.getElementById("lines").innerText')
        board.feed.is_over = True  # as if the process had ended
        board.tell("north went offline")
        served.close()
        page.wait_for('!document.getElementById("gone").hidden', "the lost connection")
