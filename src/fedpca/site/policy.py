"""Decide which questions a site answers."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpca.errors import FileError, InputError, PolicyRefused
from fedpca.protocol.message import Header
from fedpca.protocol.question import Question

ANY = "any"  # stands for every question that is installed


@dataclass(frozen=True)
class Policy:
    """A site's own rules for the questions that it answers.

    Parameters
    ----------
    min_rows : int
        The site answers only if it has at least this many rows.
    min_sites : int
        A sum must run over at least this many sites.
    gather : bool
        Whether the coordinator may see this site's own answer to a question about its rows.
    questions : sequence of str
        The questions that the site answers. An entry names one question, or a package and with it all
        its questions; "any" allows every question that is installed. The default allows the questions
        of fedpca itself. Questions that other packages add must be listed.
    """

    min_rows: int = 0
    min_sites: int = 1
    gather: bool = True
    questions: tuple[str, ...] = ("fedpca",)

    def __post_init__(self) -> None:
        for name, least in (("min_rows", 0), ("min_sites", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name}={getattr(self, name)} must be at least {least}")
        listed = self.questions
        is_list = isinstance(listed, list | tuple) and all(isinstance(q, str) and q for q in listed)
        if not is_list:
            raise InputError(f"questions={listed!r} must be a list of names, as in ['fedpca']")
        object.__setattr__(self, "questions", tuple(listed))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Policy:
        """Read a policy from a TOML file; a rule that the file leaves out keeps its default."""
        try:
            given = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise FileError(f"{path} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise FileError(f"{path} is not TOML: {error}") from None
        kinds: dict[str, Any] = {"min_rows": int, "min_sites": int, "gather": bool}
        kinds["questions"] = list
        for name, value in given.items():
            if name not in kinds:
                raise InputError(f"{path}: no rule {name!r}; a policy has {', '.join(kinds)}")
            if type(value) is not kinds[name]:
                raise InputError(
                    f"{path}: {name} = {value!r} must be of type {kinds[name].__name__}"
                )
        try:
            return cls(**given)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    def in_words(self) -> str:
        """Return the policy's rules as a phrase."""
        rules = []
        if self.min_rows:
            rules.append(f"at least {self.min_rows} rows here")
        if self.min_sites > 1:
            rules.append(f"sums over at least {self.min_sites} sites")
        if not self.gather:
            rules.append("no answer of this site alone")
        if ANY in self.questions:
            rules.append("any installed question")
        elif self.questions != ("fedpca",):
            rules.append(f"questions of {', '.join(self.questions)} only")
        return ", ".join(rules) or "any question of fedpca"

    def check(self, question: Question, header: Header, n_rows: int | None) -> None:
        """Refuse a question that the policy forbids, and name the rule."""
        if header["verb"] not in ("sum", "gather"):
            raise PolicyRefused(f"verb={header['verb']!r} is neither 'sum' nor 'gather'")
        if not {ANY, question.package, question.name} & {*self.questions}:
            raise PolicyRefused(
                f"the policy does not list the question {question.name!r} of {question.package}; the "
                "site may add it to its questions"
            )
        if not question.reads_rows:
            return
        if n_rows is not None and n_rows < self.min_rows:
            raise PolicyRefused(
                f"the site has fewer rows than its policy's min_rows={self.min_rows}"
            )
        if header["verb"] == "gather" and not self.gather:
            raise PolicyRefused(
                f"the policy hides this site's own answer to {question.name!r} from the coordinator"
            )
        if header["verb"] == "sum" and header["n_sites"] < self.min_sites:
            raise PolicyRefused(
                f"a sum over {header['n_sites']} sites is below the policy's min_sites={self.min_sites}"
            )


TRUSTING = Policy(questions=(ANY,))  # for a site in the coordinator's own process
