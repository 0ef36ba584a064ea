"""Write docs/reference.md from the docstrings of public names and the help of the command line.

    python docs/make_reference.py            # write the page
    python docs/make_reference.py --check    # exit with 1 if the page is stale

The page holds what the docstrings say and nothing else, so that it cannot disagree with them.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import typer

import fedpca
from fedpca import errors
from fedpca.cli.app import app

PAGE = Path(__file__).with_name("reference.md")
WIDTH = 100  # characters of a line of text
# a field of a dataclass, with the comment behind it
FIELD = re.compile(r"^    (?P<name>\w+): [^#\n]*(?:# (?P<note>.*))?$", re.MULTILINE)
RULE = re.compile(r"^-{3,}$")  # under the title of a section of a docstring

HEAD = """# Reference

`python docs/make_reference.py` makes this page from the docstrings and from the help of the command
line; do not edit it by hand.
"""
SOLVERS_HEAD = """From `fedpca.solvers`. Pass one as `solver=` of `FederatedPCA`, or as `method=` of
`PersonalizedPCA` and `RobustPCA`. Each is a frozen dataclass whose fields are its options, with the
methods of `Solver`. [Choose a solver](how-to/choose-a-solver.md) says which to take.
"""
SHELL_HEAD = """A site is named after its file, or by `NAME=PATH`. In Python a dict names the sites;
sites in a list are called `site-1`, `site-2`, and so on. `--quiet` hides
progress.
"""
TABLES = ("Parameters", "Attributes", "Returns", "Yields", "Raises")  # sections of named entries
RESULTS = (  # what public names return, and users read
    ("fedpca.coordinator.record", "RunRecord"),
    ("fedpca.coordinator.ledger", "Ledger"),
    ("fedpca.coordinator.ledger", "Entry"),
    ("fedpca.models.personalized", "Split"),
    ("fedpca.models.robust", "Parts"),
    ("fedpca.models.robust", "OutlierScores"),
    ("fedpca.models.site_similarity", "ClusterEvidence"),
    ("fedpca.estimators.rank_search", "RankSearch"),
    ("fedpca.audit.exposures", "Leakage"),
    ("fedpca.audit.exposures", "Exposure"),
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
    """Write the page, or say whether it is stale."""
    parser = argparse.ArgumentParser(description="Write docs/reference.md from docstrings.")
    parser.add_argument("--check", action="store_true", help="exit with 1 if the page is stale")
    page = reference()
    if not parser.parse_args(arguments).check:
        PAGE.write_text(page, encoding="utf-8")
        print(f"Wrote {PAGE}")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page:
        return 0
    print(f"{PAGE} is stale; run: python docs/make_reference.py", file=sys.stderr)
    return 1


def reference() -> str:
    """Return the whole page."""
    solvers = importlib.import_module("fedpca.solvers")
    testing = importlib.import_module("fedpca.testing")
    leakage = importlib.import_module("fedpca.audit.leakage")
    lying = importlib.import_module("fedpca.audit.lying")
    utility = importlib.import_module("fedpca.solvers.private.utility")
    own = [name for name in fedpca.__all__ if not name.startswith("_") and not _is_error(name)]
    parts = [
        HEAD,
        "## Public names\n\nFrom `fedpca`.\n",
        *(describe(name, getattr(fedpca, name)) for name in own),
        "## Solver values\n\n" + SOLVERS_HEAD,
        *(describe(name, getattr(solvers, name)) for name in public_names(solvers)),
        "## Plan a private fit\n\nFrom `fedpca.solvers.private.utility`; see "
        "[fit with differential privacy](how-to/fit-with-differential-privacy.md).\n",
        describe("expected_share", utility.expected_share),
        "## The leak lab\n\nFrom `fedpca.audit.leakage`; see [what is revealed](privacy.md).\n",
        describe("audit", leakage.audit),
        "## The lab against a lying coordinator\n\nFrom `fedpca.audit.lying`; see "
        "[attack your own site](how-to/attack-your-own-site.md).\n",
        describe("attack_site", lying.attack_site),
        "## What a fit gives back\n",
        *(_describe_result(module, name) for module, name in RESULTS),
        "## Testing your own engine or solver\n\nFrom `fedpca.testing`.\n",
        *(describe(name, getattr(testing, name)) for name in public_names(testing)),
        "## Errors\n\nFrom `fedpca.errors`.\n\n" + "\n".join(error_tree(errors.FedpcaError)) + "\n",
        "## Command line\n\n" + SHELL_HEAD,
        *commands(),
    ]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).rstrip() + "\n"


def public_names(module: Any) -> list[str]:
    """Return the names that a module means others to use."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith(module.__name__)
    ]


def describe(name: str, value: Any) -> str:
    """Return a section about a class, a function or a table."""
    head = f"### `{name}`\n\n"
    if isinstance(value, Mapping):
        return head + "\n".join(f"- `{key}`: `{item!r}`" for key, item in value.items()) + "\n"
    if not inspect.isclass(value):
        documented = Docstring(value.__doc__)
        text = [*_documentation(documented), *_rest(documented)]
        return head + "\n".join([_signature(name, value), *text])
    documented = Docstring(value.__doc__)
    if is_dataclass(value) and value.__doc__ and value.__doc__.startswith(f"{name}("):
        documented = Docstring(None)  # which dataclass made, of the signature
    parts = [] if _is_protocol(value) else [_signature(name, value)]
    parts += [*_documentation(documented), *_fields(value, documented)]
    parts += [*(_promises(value) or _members(value, documented)), *_rest(documented)]
    return head + "\n".join(parts)


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
        parts = [f"### `fedpca {name}`\n", f"```text\n{usage}\n```\n"]
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
    if isinstance(default, int | float | str | Path) and default is not False:
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


def _describe_result(module: str, name: str) -> str:
    return describe(name, getattr(importlib.import_module(module), name))


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
        call = (
            " ".join(_call(prefix + name, function).split()).replace("( ", "(").replace(" )", ")")
        )
        methods.append(_item(call, [found.first_line]))
        methods += [_item(head, text, "  ") for head, text in found.items("Parameters")]
    if attributes:
        more = "More attributes" if documented.attribute_names else "Attributes"
        yield "\n".join([f"**{more}**\n", *attributes, ""])
    if methods:
        yield "\n".join(["**Methods**\n", *methods, ""])
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
