"""Expand groups of options into the signatures of commands.

Typer makes the options of a command from its signature. A group of options is declared once, as a
frozen dataclass, and a command takes it as one parameter::

    @with_groups
    def check(files: Files, reading: Reading = AS_STORED) -> None: ...

`with_groups` shows typer all options of the group in place of the parameter, and calls the command with
the group's value. So an option that is added to a group is an option of every command that takes the
group. Each field whose metadata has "help" is an option; "shell" is the type that typer reads. The
metadata may also have "metavar", which the help shows for the value, "flags", such as ``("-k",
"--components")``, if the name of the field is not enough, "panel", if the option has a heading of its
own, and "complete", a function that returns the values that a shell may suggest.
The group's ``panel`` is the heading of its options. If what people type has to be parsed, the group has
a class method ``typed``, which gets what was typed for each option and returns the group's value.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Annotated, Any, TypeVar, get_args, get_origin

import typer

from fedpca.cli.console import exit_codes

F = TypeVar("F", bound=Callable[..., Any])


def option(
    default: Any,
    help: str,
    shell: Any,
    *flags: str,
    metavar: str | None = None,
    panel: str | None = None,
    complete: Callable[..., list[str]] | None = None,
    **more: Any,
) -> Any:
    """Declare an option of a group; ``more`` is what the group itself wants to know of the option."""
    how = {"help": help, "shell": shell, "flags": flags, "metavar": metavar, **more}
    how |= {"complete": complete, **({} if panel is None else {"panel": panel})}
    if isinstance(default, list):
        return field(default_factory=list, metadata=how)
    return field(default=default, metadata=how)


def flags_of(group: Any) -> dict[str, Field[Any]]:
    """Return the options of a group, each by its first flag."""
    return {
        (each.metadata.get("flags") or (f"--{each.name.replace('_', '-')}",))[0]: each
        for each in _options(group)
    }


def given_options(group: Any) -> dict[str, tuple[Field[Any], Any]]:
    """Return each option of a group that is not as by default, with its value, by its first flag."""
    values = {flag: (each, getattr(group, each.name)) for flag, each in flags_of(group).items()}
    return {
        flag: (each, value)
        for flag, (each, value) in values.items()
        if value != ([] if each.default is MISSING else each.default)
    }


def option_of(group: Any, name: str) -> Any:
    """Return one option of a group, for a command that takes no other."""
    (found,) = (each for each in _options(group) if each.name == name)
    return get_args(_parameter(found, None).annotation)[1]


@dataclass(frozen=True)
class LeftOut:
    """The options of a group that a command does not take, each with the reason."""

    reasons: Mapping[str, str]


def with_groups(command: F) -> F:
    """Expand each parameter of a command that is a group into the options of the group."""
    groups: dict[str, tuple[Any, list[str]]] = {}
    shown: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        group, left_out = _group_in(parameter.annotation)
        if group is None:
            shown.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        taken = [each for each in _options(group) if each.name not in left_out]
        groups[parameter.name] = group, [each.name for each in taken]
        shown += [_parameter(each, group.panel) for each in taken]

    @functools.wraps(command)
    def expanded(**typed: Any) -> Any:
        for name, (group, options) in groups.items():
            texts = {option: typed.pop(option) for option in options}
            with exit_codes():
                is_parsed = "typed" in vars(group)
                typed[name] = group.typed(texts) if is_parsed else group(**texts)
        return command(**typed)

    expanded.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    expanded.__annotations__ = {each.name: each.annotation for each in shown}
    return expanded  # type: ignore[return-value]


def groups_of(command: Callable[..., Any]) -> Iterator[tuple[Any, Mapping[str, str]]]:
    """Yield the groups of a command, with the options that it leaves out and the reasons."""
    for parameter in inspect.signature(inspect.unwrap(command), eval_str=True).parameters.values():
        group, left_out = _group_in(parameter.annotation)
        if group is not None:
            yield group, left_out


def _group_in(annotation: Any) -> tuple[Any, Mapping[str, str]]:
    """Return the group that a parameter stands for, or None, and the options to leave out."""
    kind, *notes = get_args(annotation) if get_origin(annotation) is Annotated else [annotation]
    if not isinstance(kind, type) or not is_dataclass(kind):
        return None, {}
    left_out: dict[str, str] = {}
    for note in notes:
        left_out |= note.reasons
    names = {each.name for each in _options(kind)}
    if not left_out.keys() <= names:  # a typing error would leave nothing out
        raise TypeError(f"{kind.__name__} has no options {sorted(left_out.keys() - names)}")
    return kind, left_out


def _options(group: Any) -> list[Field[Any]]:
    return [each for each in fields(group) if "help" in each.metadata]


def _parameter(each: Field[Any], panel: str | None) -> inspect.Parameter:
    """Return the parameter from which typer makes an option."""
    kind = each.metadata["shell"]
    how = typer.Option(
        *each.metadata.get("flags", ()),
        help=each.metadata["help"],
        metavar=each.metadata.get("metavar"),
        autocompletion=each.metadata.get("complete"),
        rich_help_panel=each.metadata.get("panel", panel),
    )
    default: Any = (
        [] if get_origin(kind) is list else None if type(None) in get_args(kind) else each.default
    )
    return inspect.Parameter(
        each.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, how],
    )
