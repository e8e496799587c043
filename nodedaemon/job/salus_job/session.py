"""This process's session with salusd: attach once, pass the gate, report, leave. All real work is libsalus'.

An answer below zero from the gate means that the session is over; the job goes on without Salus.
"""

import ctypes
import errno
import os
from typing import Any, Dict, List, Tuple

from salus_job import layouts

INTERRUPTED = -errno.EINTR
Ranges = List[Tuple[int, int]]


class Session:
    def __init__(self, library: Any) -> None:
        self._library = library
        self._enter = library.salus_enter
        self._boundary = library.salus_boundary
        # Calls into C are dear where they are cold: what enter and exit do is done here while the gate is calm.
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
        """Counts and later places the framework's blocks. False where this framework allocates in an unknown way."""
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
            # Between two calls Python handles the signal: Ctrl-C ends a job that waits.
            answer = self._enter()
        return int(answer)

    def take_over(self) -> None:
        """Another thread than before passes the boundaries: its blocks go to the lane from now on."""
        if self.entry.is_calm:
            # Does not wait then, and tells libsalus which thread it is.
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
        # The entry point that the boundary lies before is under way.
        entry = self.entry
        entry.depth = 1
        if entry.is_calm or answer < 0:
            return int(answer)
        # Held up for IdleRelease after the call (another thread kept the interpreter's lock), we were taken for idle.
        entry.depth = 0
        return self.enter()

    def attach(self, framework: int, model_hash: int, input_hash: int, declared: Tuple[int, int]) -> str:
        """Says hello. Empty on success, else why not. `declared`: persistent and ephemeral bytes, 0 for as measured."""
        is_placed = self.is_hooked or framework == layouts.FRAMEWORK_NONE
        options = layouts.HelloOptions(
            size_bytes=ctypes.sizeof(layouts.HelloOptions),
            framework=framework,
            flags=layouts.INTERRUPTIBLE | (0 if is_placed else layouts.HELLO_UNGATED),
            model_hash=model_hash,
            input_hash=input_hash,
            device=os.environ.get("SALUS_DEVICE", "").encode()[:63],
            declared_persistent_bytes=declared[0],
            declared_ephemeral_bytes=declared[1],
        )
        view = layouts.HelloView()
        path = os.environ.get("SALUS_SOCKET", "").encode()
        answer = self._library.salus_hello(path, ctypes.byref(options), ctypes.byref(view))
        # Who refused knows why.
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

    def tell_live(self, persistent_bytes: int, ephemeral_bytes: int) -> None:
        """Live bytes as the framework counts them on the device."""
        self._library.salus_live(persistent_bytes, ephemeral_bytes)

    def tell_reserved(self, persistent_bytes: int, ephemeral_bytes: int) -> None:
        """P and E in reserved segments, where libsalus does not stand in the driver's place and counts them itself."""
        if not hasattr(self._library, "salus_cuda_live"):
            self._library.salus_reserved(persistent_bytes, ephemeral_bytes)

    def wants_live_ranges(self) -> bool:
        """Whether the next boundary hands device memory over, so that it pays to say which blocks are live."""
        return hasattr(self._library, "salus_cuda_live") and bool(self._library.salus_cuda_will_yield())

    def tell_live_ranges(self, segments: Ranges, blocks: Ranges) -> None:
        """(address, bytes) of the framework's cached segments and of the live blocks in them."""
        arrays = [(layouts.CudaRange * max(1, len(ranges)))(*ranges) for ranges in (segments, blocks)]
        self._library.salus_cuda_live(arrays[0], len(segments), arrays[1], len(blocks))

    def reset_figures(self) -> None:
        """Running maxima start afresh."""
        self._library.salus_counters_reset()

    def fault(self, text: str) -> None:
        self._library.salus_fault(text.encode("utf-8", "replace")[: layouts.TEXT_BYTES - 1])

    def switch_off(self, text: str) -> bool:
        """False where there was no session, so that nobody was told why."""
        answer: int = self._library.salus_off(text.encode("utf-8", "replace")[: layouts.TEXT_BYTES - 1])
        return answer == 0

    def bye(self) -> None:
        self._library.salus_bye()
