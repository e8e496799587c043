"""This process's session with salusd: attach once, enter the gate, report, leave. libsalus does the work.

A negative answer from the gate means that the session is over; the job continues without Salus.
"""

import ctypes
import errno
import os
from typing import Any, Dict, Iterable, Tuple

from salus_job import layouts
from salus_job.frameworks.base import Accelerator, Range

INTERRUPTED = -errno.EINTR


class JobSession:
    def __init__(self, library: Any) -> None:
        self._library = library
        self._enter = library.salus_enter
        self._boundary = library.salus_boundary
        # A cold call into C is expensive: while the gate is calm, enter and exit are done here.
        self.entry = library.salus_entry_words().contents
        self.persist_begin = library.salus_persist_begin
        self.persist_end = library.salus_persist_end
        self.bye = library.salus_bye
        # Why libsalus cannot place the framework's blocks.
        self.hook_problem = ""
        self.is_refused = False
        self.rule = ""
        self.cap_bytes = 0

    def hook(self) -> None:
        """Let libsalus count and later place the framework's blocks. If it cannot, `hook_problem` says why."""
        answer = self._library.salus_hook()
        self.hook_problem = "libc10: %s" % os.strerror(-answer) if answer else ""

    def enter(self) -> int:
        entry = self.entry
        entry.activity += 1
        entry.depth += 1
        if entry.is_fast_path:
            return 0
        entry.depth -= 1
        answer = self._enter()
        while answer == INTERRUPTED:
            # Python handles the signal between two calls, so Ctrl-C ends a job that waits.
            answer = self._enter()
        return int(answer)

    def change_thread(self) -> None:
        """This thread passes the boundaries from now on, and its blocks go to the lane."""
        if self.entry.is_fast_path:
            # While the gate is calm, this does not wait. It only tells libsalus which thread this is.
            self._enter()
            self.leave_entry()

    def leave_entry(self) -> None:
        entry = self.entry
        entry.activity += 1
        if entry.depth:
            entry.depth -= 1

    def boundary(self) -> int:
        answer = self._boundary()
        while answer == INTERRUPTED:
            answer = self._boundary()
        # The boundary lies before an entry point, which is now in progress.
        entry = self.entry
        entry.depth = 1
        if entry.is_fast_path or answer < 0:
            return int(answer)
        # Another thread held the interpreter's lock for longer than IdleRelease, so the session was considered idle.
        entry.depth = 0
        return self.enter()

    def attach(self, framework: int, signature: Tuple[int, int], declared_bytes: Tuple[int, int]) -> str:
        """Attach to the daemon. Returns the problem, or an empty text on success.

        `signature`: model hash and input hash. `declared_bytes`: persistent and ephemeral bytes; 0 means as measured.
        """
        options = layouts.HelloOptions(
            size_bytes=ctypes.sizeof(layouts.HelloOptions),
            framework=framework,
            flags=layouts.INTERRUPTIBLE | (layouts.HELLO_UNGATED if self.hook_problem else 0),
            model_hash=signature[0],
            input_hash=signature[1],
            device=os.environ.get("SALUS_DEVICE", "").encode()[:63],
            declared_persistent_bytes=declared_bytes[0],
            declared_ephemeral_bytes=declared_bytes[1],
        )
        view = layouts.HelloView()
        path = os.environ.get("SALUS_SOCKET", "").encode()
        answer = self._library.salus_hello(path, ctypes.byref(options), ctypes.byref(view))
        self.is_refused = answer == -errno.EACCES
        if answer not in (0, -errno.EALREADY):
            return self.reason() or os.strerror(-answer)
        self.rule = view.rule.decode("ascii", "replace")
        self.cap_bytes = view.persistent_bytes + view.ephemeral_bytes if view.persistent_bytes else 0
        return ""

    def reason(self) -> str:
        text = ctypes.create_string_buffer(layouts.TEXT_BYTES)
        self._library.salus_reason(text, layouts.TEXT_BYTES)
        return text.value.decode("utf-8", "replace")

    def report(self, model_hash: int, input_hash: int, rule: str) -> None:
        self._library.salus_report(model_hash, input_hash, rule.encode("ascii"))

    def read_counters(self) -> Dict[str, int]:
        counters = layouts.Counters()
        self._library.salus_counters(ctypes.byref(counters))
        return {name: getattr(counters, name) for name, _ in layouts.Counters._fields_}

    def report_memory(self, accelerator: Accelerator) -> None:
        """Tell libsalus how the framework uses the memory of its device."""
        library = self._library
        library.salus_live(accelerator.live_persistent_bytes, accelerator.live_ephemeral_bytes)
        if not hasattr(library, "salus_cuda_live"):
            # This libsalus is not loaded in the driver's place, so it cannot count reserved segments itself.
            library.salus_reserved(accelerator.persistent_bytes, accelerator.ephemeral_bytes)
        elif library.salus_cuda_will_yield():
            # The next boundary hands device memory over: only then is the list of live blocks worth its cost.
            ranges = accelerator.live_ranges()
            if ranges is not None:
                blocks = [block for live in ranges.values() for block in live]
                library.salus_cuda_live(_to_array(ranges), len(ranges), _to_array(blocks), len(blocks))

    def fault(self, text: str) -> None:
        self._library.salus_fault(text.encode("utf-8", "replace")[: layouts.TEXT_BYTES - 1])

    def switch_off(self, text: str) -> bool:
        """Report `text` and end the session. False if there is none."""
        answer: int = self._library.salus_off(text.encode("utf-8", "replace")[: layouts.TEXT_BYTES - 1])
        return answer == 0


def _to_array(ranges: Iterable[Range]) -> Any:
    items = [layouts.CudaRange(*item) for item in ranges]
    return (layouts.CudaRange * max(1, len(items)))(*items)
