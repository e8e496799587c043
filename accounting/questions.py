"""Questions about accounting: each is a request of nodedaemon.wire.envelope, with a verb of its own.

`answer_question` takes a request, a Viewer that the server has verified and an open database. It returns plain JSON
values. salus-admitd calls it for commands on login nodes; a command that may open the database calls it directly, so
both ways give the same answer. Failures stay exceptions (DeniedError, AbsentError, RequestError).
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args

import msgspec

from accounting import profiles
from accounting.profiles import ProfileKey
from accounting.records import Name, Whole
from accounting.reports import charts, job_page, report
from accounting.reports.selection import JobSelector, ReportKind, Selection
from accounting.storage.database import Database
from accounting.viewer import Viewer
from nodedaemon.core.errors import RequestError


class _Question(msgspec.Struct, frozen=True, kw_only=True, tag_field="verb", forbid_unknown_fields=True):
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
    """-> ProfileView. Without a user, it is the viewer's own profile."""

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
QUESTION_VERBS = frozenset(question.__struct_config__.tag for question in get_args(Question))

_Answer = TypeVar("_Answer")


def answer_question(
    database: Database,
    viewer: Viewer,
    request: Mapping[str, Any],
    *,
    now_utc_ns: int,
    on_step: Callable[[str], None] | None = None,
) -> Any:
    """Answer a request; RequestError if it is not a valid question."""
    try:
        question = msgspec.convert(request, Question)
    except msgspec.ValidationError as error:
        raise RequestError(f"question not understood: {error}; is the server of the same release?") from error
    return msgspec.to_builtins(_answer(database, viewer, question, now_utc_ns, on_step))


def request_of(question: Question) -> dict[str, Any]:
    request: dict[str, Any] = msgspec.to_builtins(question)
    return request


def read_answer(answer: Any, kind: type[_Answer]) -> _Answer:
    """The answer as the type that the question's docstring names."""
    try:
        return msgspec.convert(answer, kind, strict=False)
    except msgspec.ValidationError as error:
        raise RequestError(f"answer not understood: {error}; is the server of the same release?") from error


def _answer(
    database: Database, viewer: Viewer, question: Question, now_utc_ns: int, on_step: Callable[[str], None] | None
) -> object:
    match question:
        case AskReport():
            return report.make_report(
                database,
                viewer,
                question.kind,
                question.selection,
                now_utc_ns=now_utc_ns,
                with_sessions=question.with_sessions,
                is_tree=question.is_tree,
                on_step=on_step,
            )
        case AskFigures():
            return charts.make_charts(database, viewer, question.selection, now_utc_ns=now_utc_ns, on_step=on_step)
        case AskJob():
            return job_page.job_pages(database, viewer, question.job, now_utc_ns=now_utc_ns, clusters=question.clusters)
        case AskProfiles():
            return profiles.list_profiles(
                database,
                viewer,
                cluster=question.cluster,
                users=question.users,
                signature=question.signature,
                device_model=question.device_model,
            )
        case AskProfileHistory():
            return profiles.list_changes(database, viewer, signature=question.signature, users=question.users)
        case AskProfileForget():
            profiles.forget_profile(database, viewer, _key(question, viewer), now_utc_ns=now_utc_ns)
            return True
        case AskProfileSet():
            return profiles.set_profile(
                database,
                viewer,
                _key(question, viewer),
                persistent_bytes=question.persistent_bytes,
                ephemeral_bytes=question.ephemeral_bytes,
                solo_iteration_ns=question.solo_iteration_ns,
                now_utc_ns=now_utc_ns,
                cause="imported" if question.is_import else "set",
            )


def _key(question: AskProfileSet | AskProfileForget, viewer: Viewer) -> ProfileKey:
    return ProfileKey(
        cluster=question.cluster,
        user=question.user or viewer.user,
        signature=question.signature,
        device_model=question.device_model,
    )
