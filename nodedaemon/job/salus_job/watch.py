"""Watches one process: events of the framework go to the boundary rule, its boundaries to the gate and the report.

Rules: nothing is connected before the first entry point, so launchers and loaders never register; one thread is
watched, the first that enters; whatever fails of ours switches the watch off, tells the daemon, and the job goes on.
"""

import atexit
import threading
import time
import weakref
from threading import get_ident
from types import ModuleType
from typing import Any, Dict, List, Optional, Set, Tuple

from salus_job import binding, complaint, lap, layouts, shapes
from salus_job.accelerator import Accelerator
from salus_job.boundary import BoundaryRule
from salus_job.session import Session
from salus_job.track import (
    BACKWARD_ENTERED,
    BACKWARD_LEFT,
    FORWARD_LEFT,
    FORWARD_LEFT_OPEN,
    LOADER_ENTERED,
    LOADER_LEFT,
    Track,
)

REPORT_EVERY_NS = 1_000_000_000
# Jobs that make a new loss module for every iteration would fill our tables: from here on all share one number.
NUMBER_MAX = 63


class Numbers:
    """Small numbers for objects in their order of appearance; the last number is shared by all later ones."""

    def __init__(self, track: Track) -> None:
        self._track = track
        self._numbers: Dict[int, int] = {}
        self._references: Dict[int, Any] = {}
        self._next = 0

    def of(self, thing: Any) -> int:
        key = id(thing)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._next
            self._next = min(self._next + 1, NUMBER_MAX)
            self._references[key] = weakref.ref(thing, lambda _, key=key: self._forget(key))
        return number

    def _forget(self, key: int) -> None:
        self._numbers.pop(key, None)
        self._references.pop(key, None)
        # Its address may be another's from now on.
        self._track.spoil()

    def things(self) -> List[Any]:
        return [thing for thing in (reference() for reference in list(self._references.values())) if thing is not None]


class Watch:
    def __init__(self) -> None:
        self.is_off = False
        self.rule = BoundaryRule()
        # Asked before the methods below, which need not be called where they answer True.
        self.followers = lap.Followers()
        self._torch: Any = None
        self._tensor_type: Any = ()
        self._has_accelerator = False
        self._accelerator: Optional[Accelerator] = None
        self._session: Optional[Session] = None
        self._is_attached = False
        self._thread: Optional[threading.Thread] = None
        self._thread_id = 0
        self._track = Track()
        self._roots = Numbers(self._track)
        self._optimizers = Numbers(self._track)
        self._later: List[Tuple[str, int]] = []
        self._stepped: Set[int] = set()
        self._first_step: Optional[int] = None
        self._is_hashed = False
        self._model_hash = 0
        self._input_hash = 0
        self._report_due_ns = 0
        self._declared: Tuple[int, int] = (0, 0)

    def use_torch(self, torch: ModuleType) -> None:
        """Right after torch was imported, before it allocated anything."""
        self._torch = torch
        self._tensor_type = torch.Tensor
        self._has_accelerator = torch.version.cuda is not None
        library = binding.load()
        self._session = Session(library)
        self._session.hook()
        self._track.place = library.salus_lap_words().contents
        self.followers = lap.make(library)

    def declare(self, persistent_bytes: int, ephemeral_bytes: int) -> bool:
        if self._is_attached or self.is_off:
            return False
        self._declared = (persistent_bytes, ephemeral_bytes)
        return True

    def on_forward_entered(self, module: Any, grad: bool, args: Tuple[Any, ...]) -> bool:
        """`grad`: gradients are on. False: not an entry that counts, so nobody is to tell when it is left."""
        try:
            if get_ident() != self._thread_id and not self._is_watched():
                return False
            training = module.training
            key = id(module) * 8 + (7 if training else 3) - (0 if grad else 2)
            if self._track.take(key):
                self._go_on()
                return True
            if not self._input_hash and args:
                self._input_hash = shapes.hash_inputs(args)
            self._enter(self._ask(key, "forward_entered", (self._roots.of(module), grad, training)))
            if self._first_step is not None:
                self._session.persist_end()
            return True
        except Exception as error:
            self._fail("forward", error)
            return False

    def on_forward_left(self, module: Any, grad: bool, output: Any) -> None:
        """`grad`: gradients were on when it was entered."""
        if self.is_off:
            return
        try:
            # Only a tensor is looked into: of anything else we assume that it carries gradients.
            opens = output.requires_grad if isinstance(output, self._tensor_type) else output is not None
            key = FORWARD_LEFT_OPEN if opens else FORWARD_LEFT
            if self._track.take(key):
                self._session.leave_entry()
                return
            self._ask(key, "forward_left", (self._roots.of(module), grad, opens))
            if self._first_step is not None:
                self._session.persist_begin()
            self._session.leave_entry()
        except Exception as error:
            self._fail("forward", error)

    def on_loader_entered(self) -> bool:
        try:
            if get_ident() != self._thread_id and not self._is_watched():
                return False
            if self._track.take(LOADER_ENTERED):
                self._go_on()
                return True
            self._enter(self._ask(LOADER_ENTERED, "loader_entered", ()))
            return True
        except Exception as error:
            self._fail("loader", error)
            return False

    def on_loader_left(self, entered: bool) -> None:
        if not entered or self.is_off:
            return
        try:
            if not self._track.take(LOADER_LEFT):
                self._ask(LOADER_LEFT, "loader_left", ())
            self._session.leave_entry()
        except Exception as error:
            self._fail("loader", error)

    def on_backward_entered(self) -> bool:
        if get_ident() != self._thread_id or not self._is_attached:
            return False
        try:
            if self._track.take(BACKWARD_ENTERED):
                return True
            self._ask(BACKWARD_ENTERED, "backward_entered", ())
            if self._first_step is not None:
                self._session.persist_end()
            return True
        except Exception as error:
            self._fail("backward", error)
            return False

    def on_backward_left(self, entered: bool) -> None:
        if not entered or self.is_off:
            return
        try:
            if self._track.take(BACKWARD_LEFT):
                return
            self._ask(BACKWARD_LEFT, "backward_left", ())
            if self._first_step is not None:
                self._session.persist_begin()
        except Exception as error:
            self._fail("backward", error)

    def on_optimizer_made(self, optimizer: Any) -> None:
        try:
            number = self._optimizers.of(optimizer)
            self._tell_later("optimizer_made", number)
            weakref.finalize(optimizer, self.on_optimizer_gone, number).atexit = False
        except Exception as error:
            self._fail("optimizer", error)

    def on_optimizer_gone(self, number: int) -> None:
        self._tell_later("optimizer_gone", number)

    def _tell_later(self, name: str, number: int) -> None:
        """The rule hears of it before its next event, and after those it has missed; garbage is collected anywhere."""
        self._later.append((name, number))
        self._track.spoil()

    def on_step_entered(self, optimizer: Any) -> None:
        try:
            if get_ident() != self._thread_id and not self._is_watched():
                return
            key = id(optimizer) * 8 + 2
            if self._track.take(key):
                self._go_on()
                return
            number = self._optimizers.of(optimizer)
            self._enter(self._ask(key, "step_entered", (number,)))
            if number not in self._stepped:
                # Optimizer state is made here, and it is there to stay.
                self._stepped.add(number)
                if self._first_step is None:
                    self._first_step = number
                    self._session.persist_begin()
        except Exception as error:
            self._fail("step", error)

    def on_step_left(self, optimizer: Any) -> None:
        if get_ident() != self._thread_id or not self._is_attached:
            return
        try:
            key = id(optimizer) * 8 + 4
            if not self._track.is_at_boundary and self._track.take(key):
                self._session.leave_entry()
                return
            number = self._optimizers.of(optimizer)
            if self._first_step == number:
                self._first_step = None
                self._session.persist_end()
            fires = self._ask(key, "step_left", (number,))
            self._session.leave_entry()
            if fires:
                self._boundary()
                self._session.leave_entry()
        except Exception as error:
            self._fail("step", error)

    def on_iteration_entered(self) -> None:
        try:
            if not self.is_off and self._is_watched():
                self._catch_up()
                self._enter(self.rule.iteration_entered())
        except Exception as error:
            self._fail("iteration", error)

    def on_iteration_left(self) -> None:
        try:
            if not self.is_off and get_ident() == self._thread_id and self._is_attached:
                self._session.leave_entry()
        except Exception as error:
            self._fail("iteration", error)

    def _go_on(self) -> None:
        """The event that was expected has come, and it is an entry point."""
        self._enter(self._track.turn())

    def _catch_up(self) -> None:
        """The rule is told what it has missed."""
        if self._track.is_followed:
            self._track.leave(self.rule)
        while self._later:
            name, number = self._later.pop(0)
            getattr(self.rule, name)(number)

    def _ask(self, key: int, name: str, arguments: Tuple[Any, ...]) -> bool:
        """An event that was not expected: whether the rule sees a boundary there."""
        track = self._track
        self._catch_up()
        fires = bool(getattr(self.rule, name)(*arguments))
        track.note(self.rule, key, (name, arguments), fires)
        return fires

    def on_forked(self) -> None:
        """In a forked child: what the parent learned and holds is not ours. A trainer attaches at its first entry."""
        self._is_attached = False
        self._thread, self._thread_id = None, 0
        self._track.place.thread = self._track.place.is_passed = 0
        self._first_step = None
        self._catch_up()
        self.rule = BoundaryRule()
        for optimizer in self._optimizers.things():
            self.rule.optimizer_made(self._optimizers.of(optimizer))

    def _is_watched(self) -> bool:
        """Whether the calling thread is the one whose iterations count; the first entry of all attaches the process."""
        if get_ident() == self._thread_id:
            return True
        if self._thread is not None and self._thread.is_alive():
            return False
        if self._is_loader_worker():
            self.is_off = True
            return False
        self._thread, self._thread_id = threading.current_thread(), get_ident()
        self._track.place.thread = self._thread_id
        if not self._is_attached:
            self._attach()
        elif self._session is not None:
            self._session.take_over()
        return not self.is_off

    def _is_loader_worker(self) -> bool:
        return self._torch is not None and self._torch.utils.data.get_worker_info() is not None

    def _attach(self) -> None:
        if self._session is None:
            self._session = Session(binding.load())
        framework = layouts.FRAMEWORK_NONE if self._torch is None else layouts.FRAMEWORK_TORCH
        why_not = self._session.attach(framework, self._model_hash, self._input_hash, self._declared)
        if why_not:
            complaint.warn("hello: %s; the job goes on without Salus" % why_not)
            if not self._session.is_refused:
                complaint.tell_daemon("hello: %s" % why_not)
            self.is_off = True
            return
        self._is_attached = True
        if self._torch is not None and not self._session.is_hooked:
            # salusd takes the word before the colon for a wish: the next job of this user gets the preload.
            text = "hook: %s" % self._session.why_not_hooked
            complaint.warn("%s; tensors stay in plain memory and iterations are not gated" % text)
            self._session.fault(text)
        if self._session.rule:
            self.rule = BoundaryRule(self._session.rule)
            for optimizer in self._optimizers.things():
                self.rule.optimizer_made(self._optimizers.of(optimizer))
        atexit.register(self._leave)

    def _enter(self, fires: bool) -> None:
        if not self._track.take_passed() and fires:
            self._boundary()
        elif self._session.enter() < 0:
            self.is_off = True

    def _boundary(self) -> None:
        if self._has_accelerator:
            self._finish_on_device()
        if self._session.boundary() < 0:
            self.is_off = True
            return
        if self._accelerator is not None:
            self._accelerator.after_boundary()
        if not self._is_hashed and self.rule.learned():
            if self._accelerator is not None:
                self._accelerator.drop_cache()
            # Now, and never again: all roots of an iteration have been seen, and no other run sees others by now.
            self._is_hashed = True
            self._model_hash = shapes.hash_models(self._roots.things())
        now_ns = time.monotonic_ns()
        if now_ns >= self._report_due_ns:
            self._report_due_ns = now_ns + REPORT_EVERY_NS
            if not self._has_accelerator:
                self._track.place.report_due_ns = self._report_due_ns
            self._report()

    def _finish_on_device(self) -> None:
        """Before a boundary: the device is done, and what its memory holds is told."""
        if self._accelerator is None:
            self._accelerator = Accelerator.find(self._torch)
            if self._accelerator is None:
                return
            if self._session.cap_bytes:
                self._accelerator.cap(self._session.cap_bytes)
        device = self._accelerator
        device.before_boundary()
        self._session.tell_live(device.live_persistent_bytes, device.live_ephemeral_bytes)
        self._session.tell_reserved(device.persistent_bytes, device.ephemeral_bytes)
        if self._session.wants_live_ranges():
            ranges = device.live_ranges()
            if ranges is not None:
                blocks = [block for live in ranges.values() for block in live]
                self._session.tell_live_ranges(list(ranges), blocks)

    def _report(self) -> None:
        self._session.report(self._model_hash, self._input_hash, self.rule.learned())

    def _leave(self) -> None:
        if self.is_off or not self._is_attached:
            return
        try:
            self._report()
            self._session.bye()
        except Exception as error:
            self._fail("leave", error)

    def _fail(self, phase: str, error: Exception) -> None:
        """Something of ours failed: the job goes on as if Salus were absent, and the daemon learns why."""
        self.is_off = True
        text = "%s: %s: %s" % (phase, type(error).__name__, error)
        complaint.warn("%s; the job goes on without Salus" % text)
        if self._session is None or not self._session.switch_off(text):
            complaint.tell_daemon(text)
