"""Measures at the boundaries of a session, and reports the profile of the job to the daemon."""

import time
from typing import Any, Optional, Tuple

from salus_job.boundary import BoundaryRule
from salus_job.frameworks.base import Accelerator, FrameworkAdaptor
from salus_job.object_numbers import ObjectNumbers
from salus_job.session import JobSession

REPORT_EVERY_NS = 1_000_000_000


class ProfileReporter:
    def __init__(self, session: JobSession, adaptor: FrameworkAdaptor) -> None:
        self._session = session
        self._adaptor = adaptor
        self._accelerator: Optional[Accelerator] = None
        self._model_hash = 0
        self._input_hash = 0
        self._is_model_hashed = False
        self._report_due_ns = 0

    @property
    def signature(self) -> Tuple[int, int]:
        """Model hash and input hash; 0 while unknown."""
        return self._model_hash, self._input_hash

    @property
    def next_due_ns(self) -> int:
        """Until then nothing needs to be measured or reported at a boundary; 0: at every boundary."""
        return 0 if self._adaptor.supports_accelerator else self._report_due_ns

    def add_inputs(self, arguments: Tuple[Any, ...]) -> None:
        if not self._input_hash and arguments:
            self._input_hash = self._adaptor.hash_inputs(arguments)

    def before_boundary(self) -> None:
        """Wait for the device, and tell libsalus how its memory is used."""
        if self._accelerator is None and self._adaptor.supports_accelerator:
            self._accelerator = self._adaptor.find_accelerator()
            if self._accelerator is not None and self._session.cap_bytes:
                # libsalus limits memory too. With this limit, the framework itself reports the error.
                self._accelerator.cap(self._session.cap_bytes)
        if self._accelerator is not None:
            self._accelerator.before_boundary()
            self._session.report_memory(self._accelerator)

    def after_boundary(self, rule: BoundaryRule, roots: ObjectNumbers) -> None:
        if self._accelerator is not None:
            self._accelerator.after_boundary()
        if not self._is_model_hashed and rule.learned():
            if self._accelerator is not None:
                self._accelerator.drop_cache()
            # Hash once, here: all roots of an iteration have been seen, and every run has seen the same ones by now.
            self._is_model_hashed = True
            self._model_hash = self._adaptor.hash_models(roots.objects())
        now_ns = time.monotonic_ns()
        if now_ns >= self._report_due_ns:
            self._report_due_ns = now_ns + REPORT_EVERY_NS
            self.report(rule)

    def report(self, rule: BoundaryRule) -> None:
        self._session.report(self._model_hash, self._input_hash, rule.learned())
