"""Build the documentation site from the same Markdown that the repository shows; see `make docs`.

Two things keep the pages plain. The list of links on a contents page is also the site's menu. A link to
a file outside this folder becomes its name, or leads to the gallery if the gallery shows the file.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "src"))  # the gallery runs this checkout

from fedpca import __version__  # noqa: E402

project = "fedpca"
author = "The fedpca developers"
copyright = "the fedpca developers"
version = release = __version__

extensions = ["myst_parser", "sphinx_gallery.gen_gallery"]
exclude_patterns = ["_build"]
root_doc = "index"
myst_heading_anchors = 4  # as in the repository, where every heading has an anchor

html_theme = "pydata_sphinx_theme"
html_title = "fedpca"
html_static_path = ["_static"]
html_css_files = ["fedpca.css"]
html_context = {"default_mode": "auto"}  # light or dark, as the reader's system
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "fedpca"},
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_toc_level": 2,
}

# What a user would copy first. The other examples are listed on the page examples.md.
GALLERY = [
    "four_clinics",
    "summaries_in_a_tree",
    "follow_a_stream",
    "video_background",
    "outliers_in_a_table",
    "private_fit",
]
GALLERY_SOURCE = DOCS / "_build" / "examples"  # of all examples, those of the gallery alone
shutil.rmtree(GALLERY_SOURCE, ignore_errors=True)
GALLERY_SOURCE.mkdir(parents=True)
for file in ("GALLERY_HEADER.rst", *(f"{script}.py" for script in GALLERY)):
    shutil.copy2(DOCS.parent / "examples" / file, GALLERY_SOURCE)

sphinx_gallery_conf = {
    "examples_dirs": str(GALLERY_SOURCE),
    "gallery_dirs": "gallery",
    "filename_pattern": ".*",
    "write_computation_times": False,
    "show_signature": False,
    "download_all_examples": False,
    "abort_on_example_error": True,
    "image_srcset": ["2x"],
}

CONTENTS = {"index", "examples", "explanation/README", "tutorials/README", "how-to/README"}
CONTENTS |= {"papers/README", "reference/README", "decisions/README"}
ITEM = re.compile(r"^- (?:\*\*)?\[[^]]*\]\(([^)#]+)\.(?:md|rst)\)", re.MULTILINE)
LINK = re.compile(r"\[([^]]+)\]\(([^)#:]+)\)")


def prepare(app: Any, name: str, source: list[str]) -> None:
    """Turn links out of this folder into text, and a contents page's list into the site's menu."""
    if name.startswith("gallery/"):
        return
    folder = (DOCS / name).parent

    def within(link: re.Match[str]) -> str:
        text, target = link.groups()
        path = (folder / target).resolve()
        if path.is_relative_to(DOCS):
            return link[0]
        if path.parent == DOCS.parent / "examples" and path.stem in GALLERY:
            return f"[{text}]({'../' * name.count('/')}gallery/{path.stem}.rst)"
        return text

    text = LINK.sub(within, source[0])
    if name in CONTENTS:
        entries = list(dict.fromkeys(ITEM.findall(text)))
        entries += ["gallery/index"] if name == "examples" else []
        text += "\n\n```{toctree}\n:hidden:\n:maxdepth: 1\n\n" + "\n".join(entries) + "\n```\n"
    source[0] = text


def setup(app: Any) -> None:
    """Prepare every page when it is read."""
    app.connect("source-read", prepare)
