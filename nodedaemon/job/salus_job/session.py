"""This process's session with salusd: attach once, pass the gate, report, leave. libsalus does the work.

A negative answer from the gate means that the session is over; the job continues without Salus.
"""

import ctypes
import errno
import os
from typing import Any, Dict, List, Tuple

from salus_job import layouts

INTERRUPTED = -errno.EINTR
Ranges = List[Tuple[int, int]]


class JobSession:
    def __init__(self, library: Any) -> None:
        self._library = library
        self._enter = library.salus_enter
        self._boundary = library.salus_boundary
        # A cold call into C is expensive: while the gate is calm, enter and exit are done here.
        self.entry = library.salus_entry_words().contents
        self.persist_begin = library.salus_persist_begin
        self.persist_end = library.salus_persist_end
        self.is_hooked = False
        self.is_refused = False
        self.why_not_hooked = ""
        self.is_gated = False
        self.rule = ""
        self.cap_bytes = 0

    def hook(self) -> bool:
        """Let libsalus count and later place the framework's blocks. False if it allocates in an unknown way."""
        answer = self._library.salus_hook()
        self.is_hooked = answer == 0
        self.why_not_hooked = "" if self.is_hooked else "libc10: %s" % os.strerror(-answer)
        return self.is_hooked

    def enter(self) -> int:
        entry = self.entry
        entry.activity += 1
        entry.depth += 1
        if entry.is_calm:
            return 0
        entry.depth -= 1
        answer = self._enter()
        while answer == INTERRUPTED:
            # Python handles the signal between two calls, so Ctrl-C ends a job that waits.
            answer = self._enter()
        return int(answer)

    def change_thread(self) -> None:
        """This thread passes the boundaries from now on, and its blocks go to the lane."""
        if self.entry.is_calm:
            # This does not wait while the gate is calm. It shows libsalus the thread.
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
        if entry.is_calm or answer < 0:
            return int(answer)
        # Another thread held the interpreter's lock for longer than IdleRelease, and the session was taken for idle.
        entry.depth = 0
        return self.enter()

    def attach(self, framework: int, signature: Tuple[int, int], declared_bytes: Tuple[int, int]) -> str:
        """Attach to the daemon. Returns the problem, or an empty text on success.

        `signature`: model hash and input hash. `declared_bytes`: persistent and ephemeral bytes, 0 for as measured.
        """
        is_placed = self.is_hooked or framework == layouts.FRAMEWORK_NONE
        options = layouts.HelloOptions(
            size_bytes=ctypes.sizeof(layouts.HelloOptions),
            framework=framework,
            flags=layouts.INTERRUPTIBLE | (0 if is_placed else layouts.HELLO_UNGATED),
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
        self.is_gated = bool(view.is_gated)
        self.rule = view.rule.decode("ascii", "replace")
        self.cap_bytes = view.persistent_bytes + view.ephemeral_bytes if view.persistent_bytes else 0
        return ""

    def reason(self) -> str:
        text = ctypes.create_string_buffer(layouts.TEXT_BYTES)
        self._library.salus_reason(text, layouts.TEXT_BYTES)
        return text.value.decode("utf-8", "replace")

    def report(self, model_hash: int, input_hash: int, rule: str) -> None:
        self._library.salus_report(model_hash, input_hash, rule.encode("ascii"))

    def figures(self) -> Dict[str, int]:
        counters = layouts.Counters()
        self._library.salus_counters(ctypes.byref(counters))
        return {name: getattr(counters, name) for name, _ in layouts.Counters._fields_}

    def set_live(self, persistent_bytes: int, ephemeral_bytes: int) -> None:
        """Live bytes as the framework counts them on the device."""
        self._library.salus_live(persistent_bytes, ephemeral_bytes)

    def set_reserved(self, persistent_bytes: int, ephemeral_bytes: int) -> None:
        """P and E in reserved segments. In the driver's place, libsalus counts them itself."""
        if not hasattr(self._library, "salus_cuda_live"):
            self._library.salus_reserved(persistent_bytes, ephemeral_bytes)

    def wants_live_ranges(self) -> bool:
        """Whether the next boundary hands device memory over, so that the list of live blocks is worth its cost."""
        return hasattr(self._library, "salus_cuda_live") and bool(self._library.salus_cuda_will_yield())

    def set_live_ranges(self, segments: Ranges, blocks: Ranges) -> None:
        """(address, bytes) of the framework's cached segments and of the live blocks in them."""
        arrays = [_to_array(ranges) for ranges in (segments, blocks)]
        self._library.salus_cuda_live(arrays[0], len(segments), arrays[1], len(blocks))

    def reset_figures(self) -> None:
        """Start the running maxima again."""
        self._library.salus_counters_reset()

    def fault(self, text: str) -> None:
        self._library.salus_fault(text.encode("utf-8", "replace")[: layouts.TEXT_BYTES - 1])

    def switch_off(self, text: str) -> bool:
        """Report `text` and end the session. False if there is none."""
        answer: int = self._library.salus_off(text.encode("utf-8", "replace")[: layouts.TEXT_BYTES - 1])
        return answer == 0

    def bye(self) -> None:
        self._library.salus_bye()


def _to_array(ranges: Ranges) -> Any:
    return (layouts.CudaRange * max(1, len(ranges)))(*[layouts.CudaRange(*item) for item in ranges])
