"""The program that answers questions about accounting for salus-admitd, in a process of its own.

It reads one JSON line per question from standard input, and writes two lines per question to standard output: the
traceback of a bug as a JSON string, which is usually empty, and the answer as it goes to the client. It ends with its
input.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from typing import Any

import msgspec

from accounting.questions import answer_question
from accounting.viewer import Viewer
from nodedaemon.core.errors import RequestError, SalusError
from nodedaemon.wire.envelope import ANSWER_BYTES_MAX, Failure, write_answer
from slurm_plugin.admitd.database import StoredRecords

NICE_LEVEL = 10
FAULT_LENGTH_MAX = 8000


class ReportTask(msgspec.Struct):
    """A question, and the verified user who asks it."""

    viewer: Viewer
    question: dict[str, Any]


def answer_task(records: StoredRecords, line: bytes) -> tuple[str, bytes]:
    """The traceback of a bug, or an empty text, and the answer as a line."""
    try:
        task = msgspec.json.decode(line, type=ReportTask)
        answer = answer_question(records.open(), task.viewer, task.question, now_utc_ns=time.time_ns())
        written = write_answer({"ok": True, "answer": answer})
        if len(written) > ANSWER_BYTES_MAX:
            raise RequestError(f"{task.question.get('verb')}: the answer is too long; ask about a shorter time")
    except SalusError as error:
        return "", write_answer(Failure.of(error))
    except Exception:  # the top of a program: one bad question must not end it
        failure = Failure(why="salus-admitd: internal error; ask your administrator")
        return traceback.format_exc()[-FAULT_LENGTH_MAX:], write_answer(failure)
    return "", written


def main() -> None:
    # Submissions come first.
    with contextlib.suppress(OSError):
        os.nice(NICE_LEVEL)
    # Ctrl-C is for salus-admitd, which ends this process. Without salus-admitd, there is nobody to answer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    url, password_file = sys.argv[1:]
    records = StoredRecords(url, password_file)
    for line in sys.stdin.buffer:
        fault, answer = answer_task(records, line)
        sys.stdout.buffer.write(msgspec.json.encode(fault) + b"\n" + answer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
