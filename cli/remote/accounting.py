"""Who answers questions about accounting: the database itself for those who may open it, salus-admitd for all others.

Both ways go through accounting.service.answer, so that they cannot differ.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cli.entry import NotFoundError, NotPermittedError, UnreachableError
from cli.remote.admitd import ask_admission
from nodedaemon.config import Config
from nodedaemon.wire.users import user_name

if TYPE_CHECKING:
    from accounting.service import Question
    from accounting.storage.database import Database

T = TypeVar("T")
SQLITE = "sqlite:///"


def ask(config: Config, question: "Question", kind: type[T], on_step: Callable[[str], None] | None = None) -> T:
    """The answer to `question` as `kind`, from wherever the caller may have it."""
    from accounting import service

    reply = (
        _ask_database(config, question, on_step)
        if may_open(config)
        else ask_admission(config.settings.admission, {"op": "accounting", "ask": service.ask_of(question)})["answer"]
    )
    return service.read(reply, kind)


def may_open(config: Config) -> bool:
    """Root, SlurmUser, and the owner of a SQLite file open the database; rights on it are nobody else's."""
    uid = os.geteuid()
    if uid == 0 or user_name(os.geteuid()) == config.settings.slurm.user:
        return True
    url = config.settings.storage.url
    if not url.startswith(SQLITE):
        return False
    try:
        return Path(url.removeprefix(SQLITE)).stat().st_uid == uid
    except OSError:
        return False


@contextmanager
def opened(config: Config, *, is_created: bool = False, is_checked: bool = True) -> "Iterator[Database]":
    """The database for a command that needs it itself; NotPermittedError for those who may not open it."""
    from accounting.storage import schema
    from accounting.storage.database import DatabaseUnreachableError, open_database

    if not may_open(config):
        raise NotPermittedError(f"database not opened: {user_name(os.geteuid())} may not; root and SlurmUser may")
    storage = config.settings.storage
    password = Path(storage.pass_file) if storage.pass_file else None
    try:
        database = open_database(storage.url, password, is_created=is_created)
        try:
            if is_checked:
                schema.require(database)
            yield database
        finally:
            database.close()
    except DatabaseUnreachableError as error:
        raise UnreachableError(str(error)) from error


def _ask_database(config: Config, question: "Question", on_step: Callable[[str], None] | None) -> object:
    from accounting import service
    from accounting.viewer import AbsentError, DeniedError, Viewer

    viewer = Viewer(uid=os.geteuid(), user=user_name(os.geteuid()), is_operator=True)
    with opened(config) as database:
        try:
            answer: object = service.answer(
                database, viewer, service.ask_of(question), now_utc_ns=time.time_ns(), on_step=on_step
            )
        except AbsentError as error:
            raise NotFoundError(str(error)) from error
        except DeniedError as error:
            raise NotPermittedError(str(error)) from error
        return answer
