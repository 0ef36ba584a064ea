"""Define what an engine must do: carry a message to sites and bring their answers back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from fedpca.errors import SiteError
from fedpca.protocol.message import Message


class Engine(Protocol):
    """The transport of questions to sites and of answers back.

    `ask` takes the same message to every site in ``names``, and encodes it if it leaves the process. It
    yields each site's answer as it arrives, in any order: a `Message`, bytes if the answer comes from
    another process, or a `SiteError` in place of an answer. Errors of a transport become a `SiteError`.

    `fingerprints` identifies the rows that the engine itself can read, so that a resumed run can
    recognize them. `close` frees connections and threads; a later `ask` opens them again.

    `fedpca.testing.check_engine` checks whether an engine keeps these promises.
    """

    @property
    def names(self) -> Sequence[str]: ...

    def fingerprints(self) -> Mapping[str, str]: ...

    def ask(
        self, names: Sequence[str], request: Message, timeout: float | None
    ) -> Iterator[tuple[str, Message | bytes | SiteError]]: ...

    def close(self) -> None: ...
