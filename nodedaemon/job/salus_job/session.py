"""This process's session with salusd: attach once, pass the gate, report, leave. All real work is libsalus'.

An answer below zero from the gate means that the session is over; the job goes on without Salus.
"""

import ctypes
import errno
import os
from typing import Any, Dict

from salus_job import binding


class Session:
    def __init__(self, library: Any) -> None:
        self._library = library
        self.enter = library.salus_enter
        self.leave_entry = library.salus_exit
        self.boundary = library.salus_boundary
        self.persist_begin = library.salus_persist_begin
        self.persist_end = library.salus_persist_end
        self.is_hooked = False
        self.is_gated = False
        self.rule = ""

    def hook(self) -> bool:
        """Counts and later places the framework's blocks. False where this framework allocates in an unknown way."""
        self.is_hooked = self._library.salus_hook() == 0
        return self.is_hooked

    def attach(self, framework: int, model_hash: int, input_hash: int) -> str:
        """Says hello. Empty on success, else why not."""
        options = binding.Options(
            size_bytes=ctypes.sizeof(binding.Options),
            framework=framework,
            flags=0 if self.is_hooked or framework == binding.FRAMEWORK_NONE else binding.HELLO_UNGATED,
            model_hash=model_hash,
            input_hash=input_hash,
            device=os.environ.get("SALUS_DEVICE", "").encode()[:63],
        )
        view = binding.View()
        path = os.environ.get("SALUS_SOCKET", "").encode()
        answer = self._library.salus_hello(path, ctypes.byref(options), ctypes.byref(view))
        if answer not in (0, -errno.EALREADY):
            return self.reason() or os.strerror(-answer)
        self.is_gated = bool(view.is_gated)
        self.rule = view.rule.decode("ascii", "replace")
        return ""

    def reason(self) -> str:
        text = ctypes.create_string_buffer(binding.TEXT_BYTES)
        self._library.salus_reason(text, binding.TEXT_BYTES)
        return text.value.decode("utf-8", "replace")

    def report(self, model_hash: int, input_hash: int, rule: str) -> None:
        self._library.salus_report(model_hash, input_hash, rule.encode("ascii"))

    def figures(self) -> Dict[str, int]:
        figures = binding.Figures()
        self._library.salus_figures(ctypes.byref(figures))
        return {name: getattr(figures, name) for name in binding.FIGURES}

    def reset_figures(self) -> None:
        """Running maxima start afresh."""
        self._library.salus_figures_reset()

    def fault(self, text: str) -> None:
        self._library.salus_fault(text.encode("utf-8", "replace")[: binding.TEXT_BYTES - 1])

    def switch_off(self, text: str) -> None:
        self._library.salus_off(text.encode("utf-8", "replace")[: binding.TEXT_BYTES - 1])

    def bye(self) -> None:
        self._library.salus_bye()
