"""Count the lines of code of each package, here and at an earlier commit.

    python benchmarks/code_lines.py --against COMMIT

A line of code holds something other than a comment, a docstring, or white space. Lines of imports are
counted once more by themselves, since they restate what the lines below them say.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = "src/fedpca"
SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
DEFINITIONS = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Counted(NamedTuple):
    """The lines of some files."""

    code: int = 0
    imports: int = 0
    files: int = 0

    def plus(self, other: Counted) -> Counted:
        """Return the lines of both."""
        return Counted(*(a + b for a, b in zip(self, other, strict=True)))


def counted(text: str) -> Counted:
    """Return how many lines of a module hold code, and how many of them import."""
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in SILENT
        for line in range(token.start[0], token.end[0] + 1)
    }
    imports: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DEFINITIONS) and ast.get_docstring(node, clean=False) is not None:
            lines -= _lines_of(node.body[0])
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports |= _lines_of(node)
    return Counted(len(lines), len(imports & lines), 1)


def by_package(files: Iterator[tuple[str, str]]) -> dict[str, Counted]:
    """Return the lines of each package; modules beside the packages are together under "."."""
    total: dict[str, Counted] = {}
    for name, text in files:
        package = name.split("/")[0] if "/" in name else "."
        total[package] = total.get(package, Counted()).plus(counted(text))
    return total


def files_here() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each module of the working tree."""
    for path in sorted((ROOT / SOURCE).rglob("*.py")):
        yield path.relative_to(ROOT / SOURCE).as_posix(), path.read_text(encoding="utf-8")


def files_at(commit: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each module of a commit."""
    for name in _git("ls-tree", "-r", "--name-only", commit, "--", SOURCE).splitlines():
        if name.endswith(".py"):
            yield name.removeprefix(f"{SOURCE}/"), _git("show", f"{commit}:{name}")


def print_table(before: Mapping[str, Counted], after: Mapping[str, Counted]) -> None:
    """Print a row for each package, and the sums."""
    print(f"{'package':14} {'before':>8} {'after':>8} {'change':>8} {'imports':>8} {'files':>8}")
    sums: Counter[str] = Counter()
    for package in sorted({*before, *after}):
        then, now = before.get(package, Counted()), after.get(package, Counted())
        _print_row(package, then.code, now)
        sums.update(then=then.code, code=now.code, imports=now.imports, files=now.files)
    _print_row("all", sums["then"], Counted(sums["code"], sums["imports"], sums["files"]))


def _print_row(package: str, then: int, now: Counted) -> None:
    change = now.code - then
    print(f"{package:14} {then:8,} {now.code:8,} {change:+8,} {now.imports:8,} {now.files:8,}")


def _lines_of(node: ast.stmt) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", default="HEAD", help="the earlier commit")
    print_table(by_package(files_at(parser.parse_args().against)), by_package(files_here()))


if __name__ == "__main__":
    main()
