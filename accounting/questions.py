"""Questions about accounting: each is a request of nodedaemon.wire.envelope, with a verb of its own.

`answer_question` takes a request, a Viewer that the server has verified and an open database. It returns plain JSON
values. salus-admitd calls it for commands on login nodes; a command that may open the database calls it directly, so
both get the same answer. A failure is an exception: NotPermittedError, NotFoundError or RequestError.
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
    """-> values.Report"""

    kind: ReportKind = ReportKind.SUMMARY
    selection: Selection
    with_sessions: bool = False
    is_tree: bool = False


class AskFigures(_Question, frozen=True, kw_only=True, tag="figures"):
    """-> values.ReportCharts"""

    selection: Selection


class AskJob(_Question, frozen=True, kw_only=True, tag="job"):
    """-> list[values.JobPage]"""

    job: JobSelector
    clusters: tuple[str, ...] = ()


class AskProfiles(_Question, frozen=True, kw_only=True, tag="profiles"):
    """-> list[ProfileView]"""

    users: tuple[str, ...] = ()
    signature: str | None = None
    device_model: str | None = None
    cluster: str | None = None


class _ProfileQuestion(_Question, frozen=True, kw_only=True):
    """A question about one profile: the viewer's own if `user` is empty."""

    cluster: Name
    user: str = ""
    signature: Name
    device_model: Name

    def key(self, viewer: Viewer) -> ProfileKey:
        return ProfileKey(
            cluster=self.cluster,
            user=self.user or viewer.user,
            signature=self.signature,
            device_model=self.device_model,
        )


class AskProfileSet(_ProfileQuestion, frozen=True, kw_only=True, tag="profile_set"):
    """-> ProfileView"""

    persistent_bytes: Whole
    ephemeral_bytes: Whole
    solo_iteration_ns: Whole | None = None
    is_import: bool = False


class AskProfileForget(_ProfileQuestion, frozen=True, kw_only=True, tag="profile_forget"):
    """-> True"""


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
        raise RequestError(f"question not understood: {error}; does the server run the same release?") from error
    return msgspec.to_builtins(_answer(database, viewer, question, now_utc_ns, on_step))


def request_of(question: Question) -> dict[str, Any]:
    request: dict[str, Any] = msgspec.to_builtins(question)
    return request


def read_answer(answer: Any, kind: type[_Answer]) -> _Answer:
    """The answer as the type that the question's docstring names."""
    try:
        return msgspec.convert(answer, kind, strict=False)
    except msgspec.ValidationError as error:
        raise RequestError(f"answer not understood: {error}; does the server run the same release?") from error


def _answer(
    database: Database, viewer: Viewer, question: Question, now_utc_ns: int, on_step: Callable[[str], None] | None
) -> object:
    # The fields of a question have the names of the parameters of the function that answers it.
    fields = msgspec.structs.asdict(question)
    match question:
        case AskReport():
            return report.make_report(database, viewer, **fields, now_utc_ns=now_utc_ns, on_step=on_step)
        case AskFigures():
            return charts.make_charts(database, viewer, **fields, now_utc_ns=now_utc_ns, on_step=on_step)
        case AskJob():
            return job_page.job_pages(database, viewer, **fields, now_utc_ns=now_utc_ns)
        case AskProfiles():
            return profiles.list_profiles(database, viewer, **fields)
        case AskProfileHistory():
            return profiles.list_changes(database, viewer, **fields)
        case AskProfileForget():
            profiles.forget_profile(database, viewer, question.key(viewer), now_utc_ns=now_utc_ns)
            return True
        case AskProfileSet():
            return profiles.set_profile(
                database,
                viewer,
                question.key(viewer),
                persistent_bytes=question.persistent_bytes,
                ephemeral_bytes=question.ephemeral_bytes,
                solo_iteration_ns=question.solo_iteration_ns,
                now_utc_ns=now_utc_ns,
                cause="imported" if question.is_import else "set",
            )
