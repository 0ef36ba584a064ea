"""Run `fedpca merge`: merge several sites' summaries into a model or a new summary."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpca.cli.console import exit_codes, out, refuse_overwriting
from fedpca.cli.methods import Method
from fedpca.cli.option_groups import option_of
from fedpca.cli.options import FanIn, Force, Json, Quiet, components_of
from fedpca.cli.progress import OnDone, counting
from fedpca.cli.terminal import show
from fedpca.errors import InputError
from fedpca.estimators import StreamingPCA
from fedpca.rows.columns import some_of
from fedpca.summary.summary import Summary, merge_in_tree


def merge(
    files: Annotated[list[Path], typer.Argument(help="Summaries written by `fedpca summarize`.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="Write the model to this file, or a merged summary if the name ends in .summary.",
        ),
    ],
    n_components: Annotated[
        str | None,
        typer.Option(
            "-k",
            "--components",
            help="Number of components, share of variance, auto, mp, or gap; by default, the number in "
            "the summaries.",
        ),
    ] = None,
    scale: Annotated[bool, option_of(Method, "scale")] = False,
    fan_in: FanIn = None,
    json: Json = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Merge several sites' summaries into a model or a new summary.

    FILES are summaries written by `fedpca summarize`.
    """
    with exit_codes(json=json):
        refuse_overwriting(output, force)
        if scale and output.suffix == ".summary":
            raise InputError(
                f"--scale applies to a model, but {output} is a summary, which keeps the units of the "
                "features; omit --scale now, and use it when you merge into a model"
            )
        with counting(quiet, "summaries", lambda: len(files)) as on_file:
            merged = merge_in_tree(_checked_summaries(files, on_file), fan_in)
        if not merged.n:
            raise InputError(
                "the summaries contain no rows, so there is nothing to merge; pass a summary with rows"
            )
        wanted = None if n_components is None else components_of(n_components)
        model = StreamingPCA.from_summary(merged, wanted, scale=scale)
        result = model.summary_ if output.suffix == ".summary" else model
        result.save(output)
        show(result.facts(), json=json, quiet=quiet)
        if not quiet and not json:
            out.print(f"Wrote {output}")


def _checked_summaries(files: list[Path], on_file: OnDone | None) -> list[Summary]:
    """Load summaries, check each against the first, and refuse duplicates."""
    summaries = []
    for path in files:
        summaries.append(Summary.load(path))
        if on_file is not None:
            on_file(len(summaries), "reading summaries")
    for path, summary in zip(files[1:], summaries[1:], strict=True):
        summaries[0].check_alike(summary, f"{path}, compared with {files[0]}")
    contents = [path.read_bytes() for path in files]
    duplicates = [
        str(path)
        for path, bytes_ in zip(files, contents, strict=True)
        if contents.count(bytes_) > 1
    ]
    if duplicates:
        raise InputError(
            f"these files contain the same summary; use each only once: {some_of(duplicates)}"
        )
    return summaries
