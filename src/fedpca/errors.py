"""Define the tree of exceptions that fedpca raises.

::

    FedpcaError
     +-- InputError (ValueError)       rows or parameters that cannot be used as they are
     +-- MessageError                  bytes that are not the expected message
     +-- SiteError                     a site did not answer a question
     |    +-- SiteFailed               the site's work raised an exception
     |    +-- SiteTimeout              the site did not answer in time
     +-- PolicyRefused                 a site's policy forbids the question
     |    +-- ApprovalPending          a person at the site has not approved the run yet
     +-- SitesLost                     sites failed twice; the fit restarts without them
     +-- QuorumLost                    too few sites remain
     +-- SitesBusy                     a different run is using the sites
     +-- LinkError                     the coordinator's server cannot be reached or used
     |    +-- LinkRefused              the connection was refused; retrying will not help
     +-- JournalError                  a journal that is damaged or belongs to a different run
     +-- LedgerError                   a site's ledger that was altered or does not match a run
     +-- FileError                     a file that cannot be read or used, or must not be overwritten

Each error message identifies the invalid value, the bound that it violated, and the way to fix it. A
message about a site names the site, the round, and what it was doing, but never a value from a row.
"""

from __future__ import annotations


class FedpcaError(Exception):
    """The base class of all errors that this package raises deliberately."""


class InputError(FedpcaError, ValueError):
    """Rows or parameters that cannot be used as they are."""


class MessageError(FedpcaError):
    """Bytes that are not the expected message."""


class SiteError(FedpcaError):
    """A site did not answer a question."""


class SiteFailed(SiteError):
    """A site's work on a question raised an exception."""


class SiteTimeout(SiteError):
    """A site did not answer within the round's time limit."""


class PolicyRefused(FedpcaError):
    """A site's policy forbids the question; asking again will not help."""


class ApprovalPending(PolicyRefused):
    """A person at the site has not approved the run yet; asking again later may help."""


class SitesLost(FedpcaError):
    """Sites that failed a round twice; `Federation.run` restarts without them."""

    def __init__(self, reasons: dict[str, str]) -> None:
        super().__init__("; ".join(reasons.values()))
        self.reasons = reasons
        self.sites = tuple(reasons)


class QuorumLost(FedpcaError):
    """Fewer sites remain than the quorum requires."""


class SitesBusy(FedpcaError):
    """A different run is using the sites; a site takes part in only one run at a time."""


class LinkError(FedpcaError):
    """The server between the coordinator and the sites cannot be reached or used."""


class LinkRefused(LinkError):
    """The server or this side refused the connection; retrying will not help."""


class JournalError(FedpcaError):
    """A journal that is damaged, is in use, or belongs to a different run."""


class LedgerError(FedpcaError):
    """A site's ledger that was altered, or that does not match the record of a run."""


class FileError(FedpcaError):
    """A file without rows that cannot be read or used, or must not be overwritten."""


# The errors that a site may report by name. Any other error at a site becomes a SiteFailed.
REPORTED_BY_SITES: dict[str, type[FedpcaError]] = {
    error.__name__: error
    for error in (InputError, MessageError, PolicyRefused, ApprovalPending, SiteFailed)
}
