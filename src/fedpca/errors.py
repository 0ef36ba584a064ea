"""What can go wrong, as a tree.

::

    FedpcaError
     +-- InputError (ValueError)       rows or parameters that cannot be used as they are
     +-- MessageError                  bytes that are not the message that was due
     +-- SiteError                     one site did not answer a question
     |    +-- SiteFailed               its work raised an exception
     |    +-- SiteTimeout              it was too slow
     +-- PolicyRefused                 a site's policy forbids the question
     +-- SitesLost                     sites failed twice; the fit goes on with the others
     +-- QuorumLost                    too few sites are left
     +-- LinkError                     no way through the coordinator's server at present
     |    +-- LinkRefused              and trying again will not help
     +-- JournalError                  a journal that is damaged or belongs to another run
     +-- FileError                     a model file that cannot be read or written

A message says which value was wrong, which bound it broke and what to do instead. What happened at
a site names the site, the round and the question, and never a value of a row.
"""

from __future__ import annotations


class FedpcaError(Exception):
    """Every error that this package raises on purpose."""


class InputError(FedpcaError, ValueError):
    """Rows or parameters that cannot be used as they are."""


class MessageError(FedpcaError):
    """Bytes that are not the message that was due."""


class SiteError(FedpcaError):
    """One site did not answer one question."""


class SiteFailed(SiteError):
    """A site's work on a question raised an exception."""


class SiteTimeout(SiteError):
    """A site did not answer within the time limit of a round."""


class PolicyRefused(FedpcaError):
    """A site's policy forbids the question; asking again will not help."""


class SitesLost(FedpcaError):
    """Sites that failed a round twice; `Federation.run` starts again without them."""

    def __init__(self, reasons: dict[str, str]) -> None:
        super().__init__("; ".join(reasons.values()))
        self.reasons = reasons
        self.sites = tuple(reasons)


class QuorumLost(FedpcaError):
    """Fewer sites are left than the quorum asks for."""


class LinkError(FedpcaError):
    """The server between coordinator and sites cannot be reached, or not used."""


class LinkRefused(LinkError):
    """The server, or what this side shows it, was refused; trying again will not help."""


class JournalError(FedpcaError):
    """A journal that is damaged, in use, or belongs to another run."""


class FileError(FedpcaError):
    """A file of ours that cannot be read, or must not be overwritten."""


# What a site may report by name. Anything else that goes wrong there is a SiteFailed.
REPORTED_BY_SITES: dict[str, type[FedpcaError]] = {
    error.__name__: error for error in (InputError, MessageError, PolicyRefused, SiteFailed)
}
