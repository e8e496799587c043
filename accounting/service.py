"""Questions about accounting as values that travel: what a command asks, and what salus-admitd answers.

`answer` takes a question as JSON gives it, a Viewer that the server has verified and an open database; it returns what
JSON can carry. The commands use the same function where they may open the database themselves, so both ways give the
same answers. Errors stay exceptions (DeniedError, AbsentError, RequestError): the server has its own words for them.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from accounting import profiles
from accounting.profiles import ProfileKey
from accounting.records import Name, Whole
from accounting.reports import charts, job_page, report
from accounting.reports.selection import JobSelector, ReportKind, Selection
from accounting.storage.database import Database
from accounting.viewer import Viewer
from nodedaemon.core.errors import RequestError


class _Question(msgspec.Struct, frozen=True, kw_only=True, tag_field="ask", forbid_unknown_fields=True):
    pass


class AskReport(_Question, frozen=True, kw_only=True, tag="report"):
    """-> report.Report"""

    kind: ReportKind = ReportKind.SUMMARY
    selection: Selection
    with_sessions: bool = False
    is_tree: bool = False


class AskFigures(_Question, frozen=True, kw_only=True, tag="figures"):
    """-> charts.ReportCharts"""

    selection: Selection


class AskJob(_Question, frozen=True, kw_only=True, tag="job"):
    """-> list[job_page.JobPage]"""

    job: JobSelector
    clusters: tuple[str, ...] = ()


class AskProfiles(_Question, frozen=True, kw_only=True, tag="profiles"):
    """-> list[ProfileView]"""

    users: tuple[str, ...] = ()
    signature: str | None = None
    device_model: str | None = None
    cluster: str | None = None


class AskProfileSet(_Question, frozen=True, kw_only=True, tag="profile_set"):
    """-> ProfileView. Without a user the viewer's own is meant."""

    cluster: Name
    user: str = ""
    signature: Name
    device_model: Name
    persistent_bytes: Whole
    ephemeral_bytes: Whole
    solo_iteration_ns: Whole | None = None
    is_import: bool = False


class AskProfileForget(_Question, frozen=True, kw_only=True, tag="profile_forget"):
    """-> True"""

    cluster: Name
    user: str = ""
    signature: Name
    device_model: Name


class AskProfileHistory(_Question, frozen=True, kw_only=True, tag="profile_history"):
    """-> list[ProfileChange], newest first"""

    users: tuple[str, ...] = ()
    signature: str | None = None


Question = AskReport | AskFigures | AskJob | AskProfiles | AskProfileSet | AskProfileForget | AskProfileHistory

_Answer = TypeVar("_Answer")


def answer(
    database: Database,
    viewer: Viewer,
    question: Mapping[str, Any],
    *,
    now_utc_ns: int,
    on_step: Callable[[str], None] | None = None,
) -> Any:
    """Answer a question in JSON's terms; RequestError if it is none."""
    try:
        asked = msgspec.convert(question, Question)
    except msgspec.ValidationError as error:
        raise RequestError(f"question not understood: {error}; is the command as old as the server?") from error
    return msgspec.to_builtins(_answer(database, viewer, asked, now_utc_ns, on_step))


def ask_of(question: Question) -> dict[str, Any]:
    """The question in JSON's terms."""
    made: dict[str, Any] = msgspec.to_builtins(question)
    return made


def read(reply: Any, kind: type[_Answer]) -> _Answer:
    """The answer as the value that the question's class names."""
    try:
        return msgspec.convert(reply, kind, strict=False)
    except msgspec.ValidationError as error:
        raise RequestError(f"answer not understood: {error}; is the command as old as the server?") from error


def _answer(
    database: Database, viewer: Viewer, asked: Question, now_utc_ns: int, on_step: Callable[[str], None] | None
) -> object:
    match asked:
        case AskReport():
            return report.make_report(
                database,
                viewer,
                asked.kind,
                asked.selection,
                now_utc_ns=now_utc_ns,
                with_sessions=asked.with_sessions,
                is_tree=asked.is_tree,
                on_step=on_step,
            )
        case AskFigures():
            return charts.make_charts(database, viewer, asked.selection, now_utc_ns=now_utc_ns, on_step=on_step)
        case AskJob():
            return job_page.job_pages(database, viewer, asked.job, now_utc_ns=now_utc_ns, clusters=asked.clusters)
        case AskProfiles():
            return profiles.list_profiles(
                database,
                viewer,
                cluster=asked.cluster,
                users=asked.users,
                signature=asked.signature,
                device_model=asked.device_model,
            )
        case AskProfileHistory():
            return profiles.list_changes(database, viewer, signature=asked.signature, users=asked.users)
        case AskProfileForget():
            profiles.forget_profile(database, viewer, _key(asked, viewer), now_utc_ns=now_utc_ns)
            return True
        case AskProfileSet():
            return profiles.set_profile(
                database,
                viewer,
                _key(asked, viewer),
                persistent_bytes=asked.persistent_bytes,
                ephemeral_bytes=asked.ephemeral_bytes,
                solo_iteration_ns=asked.solo_iteration_ns,
                now_utc_ns=now_utc_ns,
                cause="imported" if asked.is_import else "set",
            )


def _key(asked: AskProfileSet | AskProfileForget, viewer: Viewer) -> ProfileKey:
    return ProfileKey(
        cluster=asked.cluster,
        user=asked.user or viewer.user,
        signature=asked.signature,
        device_model=asked.device_model,
    )
