"""Asks questions about accounting: the database directly if the user may open it, salus-admitd otherwise.

Both use accounting.questions.answer_question, so that their answers cannot differ.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cli.remote.admitd import ask_admission
from nodedaemon.config import Config
from nodedaemon.wire.envelope import NotPermittedError
from nodedaemon.wire.users import user_name

if TYPE_CHECKING:
    from accounting.questions import Question
    from accounting.storage.database import Database

T = TypeVar("T")
SQLITE = "sqlite:///"


def ask(config: Config, question: "Question", kind: type[T], on_step: Callable[[str], None] | None = None) -> T:
    """The answer to `question` as `kind`."""
    from accounting.questions import answer_question, read_answer, request_of
    from accounting.viewer import Viewer

    request = request_of(question)
    if may_open(config):
        viewer = Viewer(uid=os.geteuid(), user=user_name(os.geteuid()), is_operator=True)
        with opened(config) as database:
            answer = answer_question(database, viewer, request, now_utc_ns=time.time_ns(), on_step=on_step)
    else:
        answer = ask_admission(config.settings, request)["answer"]
    return read_answer(answer, kind)


def may_open(config: Config) -> bool:
    """Only root, SlurmUser and the owner of a SQLite file may open the database."""
    uid = os.geteuid()
    if uid == 0 or user_name(uid) == config.settings.slurm.user:
        return True
    url = config.settings.storage.url
    if not url.startswith(SQLITE):
        return False
    try:
        return Path(url.removeprefix(SQLITE)).stat().st_uid == uid
    except OSError:
        return False


@contextmanager
def opened(config: Config, *, may_create: bool = False, is_checked: bool = True) -> "Iterator[Database]":
    """The database, for a command that works on it; NotPermittedError if the user may not open it."""
    from accounting.storage import schema
    from accounting.storage.database import open_database

    if not may_open(config):
        raise NotPermittedError(
            "database not opened: only root, SlurmUser and the owner of a SQLite file may open it, "
            f"not {user_name(os.geteuid())}; ask an admin"
        )
    storage = config.settings.storage
    password = Path(storage.pass_file) if storage.pass_file else None
    database = open_database(storage.url, password, may_create=may_create)
    try:
        if is_checked:
            schema.require(database)
        yield database
    finally:
        database.close()
