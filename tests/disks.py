"""Disks that do not let a test write or read: full ones, and files and folders of other users."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def full_disk(n_bytes=0):
    """Let no file grow beyond a number of bytes, as on a disk that has no more room."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextmanager
def as_ordinary_user():
    """Yield a folder of a user whom file modes stop, unlike the superuser."""
    folder = Path(tempfile.mkdtemp())
    is_superuser = os.geteuid() == 0
    if is_superuser:
        os.chown(folder, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    try:
        yield folder
    finally:
        if is_superuser:
            os.seteuid(0)
        shutil.rmtree(folder)
