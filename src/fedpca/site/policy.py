"""Define which questions a site answers."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, fields
from numbers import Integral
from pathlib import Path

from fedpca.errors import FileError, InputError, PolicyRefused
from fedpca.protocol.message import Header
from fedpca.protocol.question import Question

ANY = "any"  # stands for every installed question


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
        Whether the coordinator may see this site's individual answers about its rows.
    questions : sequence of str
        The questions that the site answers. Each entry is the name of a question, or the name of a
        package to allow all of its questions; "any" allows every installed question. The default
        allows only fedpca's own questions. Questions added by other packages must be listed.
    """

    min_rows: int = 0
    min_sites: int = 1
    gather: bool = True
    questions: tuple[str, ...] = ("fedpca",)

    def __post_init__(self) -> None:
        for name, least in (("min_rows", 0), ("min_sites", 1)):
            value = getattr(self, name)
            if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
                raise InputError(f"{name}={value!r} must be a whole number, at least {least}")
        if not isinstance(self.gather, bool):
            raise InputError(
                f"gather={self.gather!r} must be true or false, without quotes; false lets the "
                "coordinator see no individual answers"
            )
        listed = self.questions
        is_list = isinstance(listed, list | tuple) and all(isinstance(q, str) and q for q in listed)
        if not is_list:
            raise InputError(f"questions={listed!r} must be a list of names, as in ['fedpca']")
        object.__setattr__(self, "questions", tuple(listed))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Policy:
        """Read a policy from a TOML file; rules that are not in the file keep their defaults."""
        try:
            given = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise FileError(f"{path} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise FileError(f"{path} is not TOML: {error}") from None
        rules = [field.name for field in fields(cls)]
        for name in given:
            if name not in rules:
                raise InputError(f"{path}: unknown rule {name!r}; the rules are {', '.join(rules)}")
        try:
            return cls(**given)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    def in_words(self) -> str:
        """Return the policy as a short phrase."""
        rules = []
        if self.min_rows:
            rules.append(f"at least {self.min_rows} rows here")
        if self.min_sites > 1:
            rules.append(f"sums over at least {self.min_sites} sites")
        if not self.gather:
            rules.append("no individual answers from this site")
        if ANY in self.questions:
            rules.append("any installed question")
        elif self.questions != ("fedpca",):
            rules.append(f"only questions from {', '.join(self.questions)}")
        return ", ".join(rules) or "any fedpca question"

    def check(self, question: Question, header: Header, n_rows: int | None) -> None:
        """Refuse a question that the policy forbids, naming the rule."""
        if header["verb"] not in ("sum", "gather"):
            raise PolicyRefused(f"verb={header['verb']!r} is neither 'sum' nor 'gather'")
        if not {ANY, question.package, question.name} & {*self.questions}:
            raise PolicyRefused(
                f"the policy does not allow the question {question.name!r} from {question.package}; to "
                "allow it, the site must add it to its policy's questions"
            )
        if not question.reads_rows:
            return
        if n_rows is not None:
            self.check_rows(n_rows)
        if header["verb"] == "gather" and not self.gather:
            raise PolicyRefused(
                "the policy does not let the coordinator see this site's own answer"
            )
        if header["verb"] == "sum" and header["n_sites"] < self.min_sites:
            raise PolicyRefused(
                f"the sum covers {header['n_sites']} sites, fewer than the policy's "
                f"min_sites={self.min_sites}"
            )

    def check_rows(self, n_rows: int) -> None:
        """Refuse to answer about fewer rows than the policy allows."""
        if n_rows < self.min_rows:
            raise PolicyRefused(
                f"the site has fewer rows than its policy's min_rows={self.min_rows}"
            )


TRUSTING = Policy(questions=(ANY,))  # for a site in the coordinator's own process
