"""Write docs/reference/*.md from the docstrings of public names and the help of the command line.

    python docs/make_reference.py            # write the pages
    python docs/make_reference.py --check    # exit with 1 if a page is stale

The pages hold what the docstrings say and nothing else, so that they cannot disagree with them. They
are plain Markdown, so the same pages serve readers of the repository and the documentation site.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import typer

import fedpca.report
import fedpca.solvers
import fedpca.testing
from fedpca import errors
from fedpca.cli.app import app

FOLDER = Path(__file__).with_name("reference")
WIDTH = 100  # characters of a line of text
# a field of a dataclass, with the comment behind it
FIELD = re.compile(r"^    (?P<name>\w+): [^#\n]*(?:# (?P<note>.*))?$", re.MULTILINE)
RULE = re.compile(r"^-{3,}$")  # under the title of a section of a docstring

HEAD = """# Reference

One page for each public name, and one each for the [command line](command-line.md) and the
[errors](errors.md). `python docs/make_reference.py` writes these pages from the docstrings and from the
help of the command line; do not edit them by hand.
"""
SHELL_HEAD = """A site is named after its file, or by `NAME=PATH`. In Python a dict names the sites;
sites in a list are called `site-1`, `site-2`, and so on. `--quiet` hides
progress.
"""
TABLES = ("Parameters", "Attributes", "Returns", "Yields", "Raises")  # sections of named entries


@dataclass(frozen=True)
class Group:
    """Names that have a heading in common; ``places`` are pairs of a module and a name."""

    title: str
    text: str
    places: Sequence[tuple[str, str]]


GROUPS = (
    Group(
        "Estimators and sites",
        "From `fedpca`.",
        [("fedpca", name) for name in fedpca.__all__ if not name.startswith("_")],
    ),
    Group(
        "Options for reading rows",
        "Keyword arguments of `Site`, `Summary.of`, and `Federation.dask`, and options of the commands "
        "that read rows.",
        [("fedpca.rows.reading", "Reading")],
    ),
    Group(
        "Solvers",
        "From `fedpca.solvers`. Pass one as `solver=` of `FederatedPCA`, `PersonalizedPCA`, or "
        "`RobustPCA`. Each is a frozen dataclass whose fields are its options, "
        "with the methods of `Solver`. [Choose a solver](../how-to/choose-a-solver.md) says which to "
        "take.",
        [("fedpca.solvers", name) for name in fedpca.solvers.__all__],
    ),
    Group(
        "What a fit gives back",
        "Attributes and results of estimators.",
        [
            ("fedpca.coordinator.record", "RunRecord"),
            ("fedpca.coordinator.ledger", "Ledger"),
            ("fedpca.coordinator.ledger", "Entry"),
            ("fedpca.models.personalized", "Split"),
            ("fedpca.models.robust", "Parts"),
            ("fedpca.models.robust", "OutlierScores"),
            ("fedpca.models.site_similarity", "ClusterEvidence"),
            ("fedpca.estimators.rank_search", "RankSearch"),
            ("fedpca.estimators.diagnosis", "Diagnosis"),
            ("fedpca.linalg.rank_rules", "RankComparison"),
            ("fedpca.solvers.site_map", "SiteMap"),
            ("fedpca.solvers.site_map", "SiteOnMap"),
            ("fedpca.models.control_limits", "ControlLimits"),
            ("fedpca.models.control_limits", "RowFlags"),
            ("fedpca.models.features", "FeatureTable"),
            ("fedpca.solvers.planning.solver_plan", "Plan"),
            ("fedpca.solvers.planning.solver_plan", "SolverPlan"),
            ("fedpca.solvers.planning.machines", "Speed"),
            ("fedpca.solvers.verification", "Verdict"),
            ("fedpca.solvers.verification", "Statistic"),
        ],
    ),
    Group(
        "Plots",
        "From `fedpca.report`, with the extra `plot`; see [look at a "
        "model](../how-to/look-at-a-model.md).",
        [("fedpca.report", name) for name in fedpca.report.__all__],
    ),
    Group(
        "Privacy and attacks",
        "See [fit with differential privacy](../how-to/fit-with-differential-privacy.md), [what is "
        "revealed](../privacy.md), and [attack your own site](../how-to/attack-your-own-site.md).",
        [
            ("fedpca.solvers.private.utility", "expected_share"),
            ("fedpca.audit.leakage", "audit"),
            ("fedpca.audit.exposures", "Leakage"),
            ("fedpca.audit.exposures", "Exposure"),
            ("fedpca.audit.lying", "attack_site"),
        ],
    ),
    Group(
        "Testing your own engine or solver",
        "From `fedpca.testing`; see [add an engine](../how-to/add-an-engine.md) and [add a "
        "solver](../how-to/add-a-solver.md).",
        [
            ("fedpca.engines.base", "Engine"),
            ("fedpca.engines.base", "EngineWrapper"),
            *(("fedpca.testing", name) for name in fedpca.testing.__all__),
        ],
    ),
)


class Docstring:
    """A numpydoc docstring, taken apart: the text before its sections, and the sections by title."""

    def __init__(self, text: str | None) -> None:
        lines = inspect.cleandoc(text or "").splitlines()
        titles = [i for i in range(len(lines) - 1) if lines[i].strip() and RULE.match(lines[i + 1])]
        ends = [*titles, len(lines)]
        self.body = lines[: ends[0]]
        self.sections = {
            lines[at]: lines[at + 2 : end] for at, end in zip(titles, ends[1:], strict=True)
        }

    @property
    def first_line(self) -> str:
        """Return the first paragraph as one line."""
        return next(iter(" ".join(self.body).split("  ")), "").strip()

    @cached_property
    def attribute_names(self) -> set[str]:
        """Return the names that the section of attributes describes."""
        items = self.items("Attributes")
        return {name.strip() for head, _ in items for name in head.split(":")[0].split(",")}

    def items(self, title: str) -> list[tuple[str, list[str]]]:
        """Return the entries of a section, each a head such as ``name : type`` and its lines."""
        found: list[tuple[str, list[str]]] = []
        for line in self.sections.get(title, []):
            if line and not line[0].isspace():
                found.append((line, []))
            elif found:
                found[-1][1].append(line)
        return found


def main(arguments: list[str] | None = None) -> int:
    """Write the pages, or say which are stale."""
    parser = argparse.ArgumentParser(description="Write docs/reference/*.md from docstrings.")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a page is stale")
    written = pages()
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    if parser.parse_args(arguments).check:
        stale = [name for name in {**there, **written} if there.get(name) != written.get(name)]
        if stale:
            print(f"stale: {', '.join(stale)}; run: python docs/make_reference.py", file=sys.stderr)
        return int(bool(stale))
    FOLDER.mkdir(exist_ok=True)
    for name in there.keys() - written.keys():
        (FOLDER / name).unlink()
    for name, text in written.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    print(f"Wrote {len(written)} pages to {FOLDER}")
    return 0


def pages() -> dict[str, str]:
    """Return the text of every page by its file's name."""
    found, contents = {}, [HEAD]
    for group in GROUPS:
        contents.append(f"## {group.title}\n\n{_wrapped(group.text)}")
        lines = []
        for module, name in group.places:
            value = getattr(importlib.import_module(module), name)
            if inspect.isclass(value) and issubclass(value, Exception):
                continue  # on the page of errors
            found[f"{name}.md"] = tidy(describe(module, name, value))
            lines.append(_wrapped(f"- [`{name}`]({name}.md){_in_short(name, value)}", "  "))
        contents.append("".join(lines))
    contents.append(
        "## Commands and errors\n\n"
        "- [Command line](command-line.md): every command and option\n"
        "- [Errors](errors.md): every error that fedpca raises, as a tree\n"
    )
    tree = "\n".join(error_tree(errors.FedpcaError))
    return {
        "README.md": tidy("\n".join(contents)),
        **found,
        "errors.md": tidy(f"# Errors\n\nFrom `fedpca.errors`.\n\n{tree}\n"),
        "command-line.md": tidy("\n".join([f"# Command line\n\n{SHELL_HEAD}", *commands()])),
    }


def tidy(text: str) -> str:
    """Return text without empty lines that follow each other."""
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def describe(module: str, name: str, value: Any) -> str:
    """Return the page of a class, a function, or a table."""
    head = f"# {name}\n\n```py\nfrom {module} import {name}\n```\n\n"
    if isinstance(value, Mapping):
        about = "The solvers of this package by name, with their default options.\n\n"
        return head + about + "\n".join(f"- `{key}`: `{item!r}`" for key, item in value.items())
    documented = _documented(name, value)
    if not inspect.isclass(value):
        text = [*_documentation(documented), *_rest(documented)]
        return head + "\n".join([_signature(name, value), *text])
    parts = [] if _is_protocol(value) else [_signature(name, value)]
    parts += [*_documentation(documented), *_fields(value, documented)]
    parts += [*_rest(documented), *(_promises(value) or _members(value, documented))]
    return head + "\n".join(parts)


def _documented(name: str, value: Any) -> Docstring:
    """Return the docstring of a class or function, unless dataclass made it of the signature."""
    text = getattr(value, "__doc__", None)
    is_made = is_dataclass(value) and text and text.startswith(f"{name}(")
    return Docstring(None if is_made else text)


def _in_short(name: str, value: Any) -> str:
    """Return the first sentence about a name, after a colon."""
    if isinstance(value, Mapping):
        return ": the solvers of this package by name"
    paragraph = list(takewhile(str.strip, _documented(name, value).body))
    line = re.split(r"[.:] ", _markdown(" ".join(paragraph)))[0].rstrip(".")
    return f": {line[:1].lower()}{line[1:]}" if line else ""


def error_tree(kind: type, depth: int = 0) -> Iterator[str]:
    """Yield a line for an error and, below it, for each of its kinds."""
    text = Docstring(kind.__doc__).first_line
    yield f"{'  ' * depth}- `{kind.__name__}`: {_markdown(text)}"
    for child in vars(errors).values():
        if inspect.isclass(child) and kind in child.__bases__:
            yield from error_tree(child, depth + 1)


def commands() -> Iterator[str]:
    """Yield a section for each command."""
    from fedpca.cli import console

    codes = [
        part for part in (console.__doc__ or "").split("\n\n") if part.startswith("Exit codes")
    ]
    yield from (_wrapped(_markdown(part)) for part in codes)
    for name, command in _leaves(typer.main.get_command(app)):
        usage = " ".join(["fedpca", name, *_arguments(command), "[OPTIONS]"])
        parts = [f"## `fedpca {name}`\n", f"```text\n{usage}\n```\n"]
        parts += _paragraphs(inspect.cleandoc(command.help or "").splitlines())
        shown = (parameter for parameter in command.params if not _is_hidden(parameter))
        lines = [_option(parameter) for parameter in shown]
        yield "\n".join([*parts, *filter(None, lines)]) + "\n"


def _leaves(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each command with its name; a command of a group has the group's name before its own."""
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            yield from _leaves(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def _arguments(command: Any) -> Iterator[str]:
    for parameter in command.params:
        if parameter.param_type_name == "argument" and not _is_hidden(parameter):
            name = parameter.metavar or parameter.name.upper()
            many = "..." if parameter.nargs == -1 else ""
            yield f"{name}{many}" if parameter.required else f"[{name}{many}]"


def _option(parameter: Any) -> str:
    """Return a line about an option, or about an argument that has a help of its own."""
    text = getattr(parameter, "help", None) or ""
    if parameter.param_type_name == "argument":
        return text and _item(parameter.metavar or parameter.name.upper(), [text])
    names = ", ".join(sorted((*parameter.opts, *parameter.secondary_opts), key=len))
    if not parameter.is_flag:
        names += f" {parameter.metavar or parameter.type.name.split()[0].upper()}"
    default = parameter.default
    notes = ["required"] if parameter.required else []
    if isinstance(default, int | float | str | Path) and default is not False and default != "":
        notes.append(f"default `{default}`")
    elif isinstance(default, list | tuple) and default:
        notes.append(f"default `{', '.join(map(str, default))}`")
    return _item(names, [text + (f" ({'; '.join(notes)})" if notes else "")])


def _is_hidden(parameter: Any) -> bool:
    return bool(getattr(parameter, "hidden", False)) or parameter.name == "help"


def _is_error(name: str) -> bool:
    value = getattr(fedpca, name)
    return inspect.isclass(value) and issubclass(value, Exception)


def _is_protocol(kind: type) -> bool:
    return bool(getattr(kind, "_is_protocol", False))


def _signature(name: str, value: Any) -> str:
    return f"```text\n{_call(name, value)}\n```\n"


def _call(name: str, value: Any) -> str:
    """Return a call with the parameters and their defaults, a parameter a line if it is long."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return f"{name}(...)"
    shown = []
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls") or parameter.name.startswith("_"):
            continue
        plain = parameter.replace(annotation=inspect.Parameter.empty)
        if " at 0x" in repr(parameter.default) or "<factory>" in repr(parameter.default):
            plain = plain.replace(default=...)  # no address of an object in the page
        shown.append(plain)
    short = str(inspect.Signature(shown)).replace("=Ellipsis", "=...")
    if len(name + short) <= WIDTH:
        return name + short
    inner = short[1:-1]
    return "\n".join([f"{name}(", *textwrap.wrap(inner, WIDTH - 4, **_INDENTED), ")"])


_INDENTED: dict[str, Any] = {
    "initial_indent": "    ",
    "subsequent_indent": "    ",
    "break_long_words": False,
}


def _documentation(documented: Docstring) -> Iterator[str]:
    """Yield the text of a docstring and its sections of named entries."""
    yield from _paragraphs(documented.body)
    for title in documented.sections:
        if title in TABLES:
            yield f"**{title}**\n"
            yield from (_item(head, text) for head, text in documented.items(title))
            yield ""


def _rest(documented: Docstring) -> Iterator[str]:
    """Yield the sections of plain text, such as examples."""
    for title, lines in documented.sections.items():
        if title not in TABLES:
            yield f"**{title}**\n"
            yield from _paragraphs(lines)


def _item(head: str, lines: list[str], indent: str = "") -> str:
    text = _markdown(" ".join(line.strip() for line in lines).strip())
    code = head.replace("`", "")
    start = f"{indent}- `{code}`" + (f": {text}" if text else "")
    return _wrapped(start, indent + "  ").rstrip("\n")


def _fields(kind: type, documented: Docstring) -> Iterator[str]:
    """Yield the fields of a class of values that its docstring does not describe."""
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else []
    names = names or list(getattr(kind, "_fields", ()))
    if not names or "Parameters" in documented.sections:
        return
    notes = {line["name"]: line["note"] for line in FIELD.finditer(inspect.getsource(kind))}
    if any(notes.get(name) for name in names):  # else the signature says as much
        yield "**Fields**\n"
        yield from (_item(name, [notes.get(name) or ""]) for name in names)
        yield ""


def _promises(kind: type) -> list[str]:
    """Return what a solver's class says about itself."""
    if not isinstance(name := getattr(kind, "name", None), str) or not is_dataclass(kind):
        return []
    said = [f"Name: `{name}`."]
    if isinstance(guarantee := getattr(kind, "guarantee", None), str):
        said.append(f"Guarantee: {guarantee}.")
    if isinstance(seen := getattr(kind, "seen", None), tuple):
        said.append(f"Seen by the coordinator: {', '.join(f'`{q}`' for q in seen) or 'nothing'}.")
    return [_wrapped(" ".join(said))]


def _members(kind: type, documented: Docstring) -> Iterator[str]:
    """Yield the attributes and methods of a class that its docstring does not describe."""
    attributes, methods = [], []
    for name, value in _own_members(kind):
        found = Docstring(getattr(value, "__doc__", None))
        if isinstance(value, property | cached_property):
            if name not in documented.attribute_names:
                text = re.sub("^Return (the )?", "", found.first_line)
                attributes.append(_item(name, [text[:1].upper() + text[1:]]))
            continue
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if not inspect.isfunction(function):
            continue
        found = Docstring(function.__doc__)
        prefix = f"{kind.__name__}." if isinstance(value, classmethod | staticmethod) else "."
        text = [*_documentation(found), *_rest(found)]
        methods += [f"### {name}\n", _signature(prefix + name, function), *text]
    if attributes:
        more = "More attributes" if documented.attribute_names else "Attributes"
        yield "\n".join([f"**{more}**\n", *attributes, ""])
    if methods:
        yield "\n".join(["## Methods\n", *methods, ""])
    if foreign := _foreign_methods(kind):
        names = ", ".join(f"`{name}`" for name in foreign)
        yield _wrapped(f"From scikit-learn: {names}.")


def _own_members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public members that our own classes define, once each."""
    named = {field.name for field in fields(kind)} if is_dataclass(kind) else set()
    named |= set(getattr(kind, "_fields", ()))
    for base in kind.__mro__:
        if not base.__module__.startswith("fedpca"):
            continue
        for name, value in vars(base).items():
            if not name.startswith("_") and name not in named:
                named.add(name)
                yield name, value


def _foreign_methods(kind: type) -> list[str]:
    """Return the public methods that scikit-learn gives an estimator."""
    own = {name for name, _ in _own_members(kind)}
    return sorted(
        name
        for base in kind.__mro__
        if base.__module__.startswith("sklearn")
        for name in vars(base)
        if not name.startswith("_") and name not in own and callable(getattr(kind, name, None))
    )


def _paragraphs(lines: list[str]) -> Iterator[str]:
    """Yield the text as Markdown: paragraphs wrapped, lists kept, examples and formulas fenced."""
    block: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            block.append(line)
            continue
        if block:
            yield _block(block)
        block = []


def _block(lines: list[str]) -> str:
    if lines[0].lstrip().startswith(">>>"):
        return "```pycon\n" + textwrap.dedent("\n".join(lines)) + "\n```\n"
    if lines == ["::"]:
        return ""
    if all(line.startswith("  ") for line in lines):
        return "```text\n" + textwrap.dedent("\n".join(lines)) + "\n```\n"
    if lines[0].startswith("- "):
        items = re.split(r"\n(?=- )", "\n".join(lines))
        return "".join(_wrapped(_markdown(" ".join(item.split())), "  ") for item in items)
    return _wrapped(_markdown(" ".join(line.strip() for line in lines)))


def _markdown(text: str) -> str:
    """Return text with code in Markdown's quotes."""
    return text.replace("``", "`").removesuffix("::").strip()


def _wrapped(text: str, indent: str = "") -> str:
    """Return text in lines of at most `WIDTH` characters, and no line that begins a list by chance."""
    lines = textwrap.wrap(
        text,
        WIDTH,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
