"""What the end-to-end tests share: a directory that SlurmUser and the jobs' users may enter."""

import shutil
import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def open_directory():
    # pytest's own directories are closed to other users, and a unix socket's path must be short.
    directory = Path(tempfile.mkdtemp(prefix="salus-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)
