"""Run the sections of a paper's script, with the options that all papers share, and check targets."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from threadpoolctl import threadpool_limits

Section = Callable[[argparse.Namespace], list[str]]  # returns the targets that were missed


def judge(target: str, met: bool, found: str) -> list[str]:
    """Print whether a target is met; return it for ``--check`` if it is missed."""
    print(f"target: {target}: {found}: {'met' if met else 'MISSED'}")
    return [] if met else [f"{target}, but found {found}"]


def has(folder: Path | None, file: str, content: str) -> bool:
    """Return whether a file is there; if not, print what it should hold."""
    if folder and (folder / file).exists():
        return True
    where = f"in {folder}" if folder else "as no folder is given: use --data or FEDPCA_DATA"
    print(f"Left out: {file} is missing {where}. It should hold {content}.")
    return False


def run_sections(
    about: str,
    sections: Mapping[str, Section],
    *,
    seeds: int,
    quick_seeds: int,
    on_all_threads: Collection[str] = (),
    switches: Mapping[str, str] | None = None,
) -> None:
    """Run the sections that the command line names, or all of them.

    Parameters
    ----------
    about : str
        The script's docstring; its first line is the help text.
    sections : dict of callable
        Each section by its name. It prints its tables and returns the targets that were missed.
    seeds, quick_seeds : int
        How many seeds a section uses by default, and with ``--quick``.
    on_all_threads : collection of str
        Sections that may use all threads of BLAS. The others have one: idle threads disturb small
        products, and sites that work at the same time.
    switches : dict of str, optional
        Options that only this script has, with their help texts.
    """
    folder = os.environ.get("FEDPCA_DATA")
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("sections", nargs="*", metavar="section", help=f"some of {[*sections]}")
    parser.add_argument("--data", type=Path, default=Path(folder) if folder else None)
    parser.add_argument("--figures", type=Path, help="folder for PNG files")
    parser.add_argument("--seeds", type=int, help=f"{seeds}, or {quick_seeds} with --quick")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    for name, effect in (switches or {}).items():
        parser.add_argument(f"--{name}", action="store_true", help=effect)
    options = parser.parse_args()
    if unknown := set(options.sections) - set(sections):
        parser.error(f"no section {sorted(unknown)}; use some of {[*sections]}")
    options.seeds = options.seeds or (quick_seeds if options.quick else seeds)
    if options.figures:
        import matplotlib  # noqa: F401 - from the extra "plot"; if missing, fail now, not at the end
    missed = []
    for name in options.sections or sections:
        begin = time.perf_counter()
        with threadpool_limits(None if name in on_all_threads else 1, user_api="blas"):
            missed += sections[name](options)
        print(f"({name}: {time.perf_counter() - begin:.0f} s)\n", flush=True)
    if options.check and missed:
        raise SystemExit("targets missed:\n" + "\n".join(missed))
