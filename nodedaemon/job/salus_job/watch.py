"""Watches one process: the framework's events go to the boundary rule, and its boundaries to the gate.

- The process connects at its first entry point, so launchers and loader workers never connect.
- One thread is watched: the first one that enters.
- If Salus itself fails, the watch switches off, the daemon learns why, and the job continues.
"""

import atexit
import functools
import threading
import weakref
from threading import get_ident
from typing import Any, Callable, List, Optional, Set, Tuple, TypeVar

from salus_job import binding, faults, layouts
from salus_job.boundary import BoundaryRule
from salus_job.follower import LoopFollower
from salus_job.frameworks.base import FrameworkAdaptor
from salus_job.object_numbers import ObjectNumbers
from salus_job.profile_reporter import ProfileReporter
from salus_job.session import JobSession

Handler = TypeVar("Handler", bound=Callable[..., Any])


def _guarded(handler: Handler) -> Handler:
    """Wrap an event handler: an exception in it switches the watch off and does not reach the job."""

    @functools.wraps(handler)
    def handle(watch: "Watch", *arguments: Any) -> Any:
        if watch.is_off:
            return False
        try:
            return handler(watch, *arguments)
        except Exception as error:
            watch.fail(handler.__name__, error)
            return False

    return handle  # type: ignore[return-value]


class Watch:
    """Handles the events that the follower has not completed."""

    def __init__(self) -> None:
        self.is_off = False
        self.rule = BoundaryRule()
        self.follower = LoopFollower()
        self._session: Optional[JobSession] = None
        self._adaptor = FrameworkAdaptor()
        self._profile: Optional[ProfileReporter] = None
        self._thread: Optional[threading.Thread] = None
        self._thread_id = 0
        self._is_attached = False
        self._declared_bytes: Tuple[int, int] = (0, 0)
        self._roots = ObjectNumbers(self._on_object_gone)
        self._optimizers = ObjectNumbers(self._on_object_gone)
        self._postponed: List[Tuple[str, int]] = []
        self._stepped: Set[int] = set()
        self._first_step: Optional[int] = None

    @property
    def session(self) -> JobSession:
        assert self._session is not None
        return self._session

    @property
    def profile(self) -> ProfileReporter:
        assert self._profile is not None
        return self._profile

    def use_framework(self, adaptor: FrameworkAdaptor) -> None:
        library = binding.load()
        self._adaptor = adaptor
        self._use_session(JobSession(library))
        self.session.hook()
        self.follower = LoopFollower(library)
        adaptor.install_hooks(self)

    def declare(self, persistent_bytes: int, ephemeral_bytes: int) -> bool:
        if self._is_attached or self.is_off:
            return False
        self._declared_bytes = (persistent_bytes, ephemeral_bytes)
        return True

    @_guarded
    def on_forward_entered(self, root: Any, grad: bool, training: Any, arguments: Tuple[Any, ...]) -> bool:
        """Returns False if this entry does not count; its end must then not be reported. `grad`: gradients are on."""
        if not self._is_watched_thread():
            return False
        if not self._finish_expected():
            self.profile.add_inputs(arguments)
            self._enter(self._ask("forward_entered", self._roots.number_of(root), grad, training))
            if self._first_step is not None:
                self.session.persist_end()
        return True

    @_guarded
    def on_forward_left(self, root: Any, grad: bool, opens: bool) -> None:
        """`grad`: gradients were on when it was entered. `opens`: the output carries a gradient."""
        self._ask("forward_left", self._roots.number_of(root), grad, opens)
        if self._first_step is not None:
            self.session.persist_begin()
        self.session.leave_entry()

    @_guarded
    def on_loader_entered(self) -> bool:
        if not self._is_watched_thread():
            return False
        if not self._finish_expected():
            self._enter(self._ask("loader_entered"))
        return True

    @_guarded
    def on_loader_left(self) -> None:
        self._ask("loader_left")
        self.session.leave_entry()

    @_guarded
    def on_backward_entered(self) -> bool:
        if not self._is_attached_thread():
            return False
        self._ask("backward_entered")
        if self._first_step is not None:
            self.session.persist_end()
        return True

    @_guarded
    def on_backward_left(self) -> None:
        self._ask("backward_left")
        if self._first_step is not None:
            self.session.persist_begin()

    @_guarded
    def on_step_entered(self, optimizer: Any) -> None:
        if not self._is_watched_thread() or self._finish_expected():
            return
        number = self._optimizers.number_of(optimizer)
        self._enter(self._ask("step_entered", number))
        if number not in self._stepped:
            # The first step allocates the optimizer's state, which is persistent.
            self._stepped.add(number)
            if self._first_step is None:
                self._first_step = number
                self.session.persist_begin()

    @_guarded
    def on_step_left(self, optimizer: Any) -> None:
        if not self._is_attached_thread():
            return
        fires = bool(self.follower.take_pending())
        if not fires:
            number = self._optimizers.number_of(optimizer)
            if self._first_step == number:
                self._first_step = None
                self.session.persist_end()
            fires = self._ask("step_left", number)
            self.session.leave_entry()
        if fires:
            self._pass_boundary()
            self.session.leave_entry()

    @_guarded
    def on_optimizer_made(self, optimizer: Any) -> None:
        number = self._optimizers.number_of(optimizer)
        self._postpone("optimizer_made", number)
        weakref.finalize(optimizer, self._postpone, "optimizer_gone", number).atexit = False

    @_guarded
    def on_iteration_entered(self) -> None:
        """The job marks its iterations itself."""
        if self._is_watched_thread():
            self._catch_up()
            self._enter(self.rule.iteration_entered())

    @_guarded
    def on_iteration_left(self) -> None:
        if self._is_attached_thread():
            self.session.leave_entry()

    @_guarded
    def on_exit(self) -> None:
        if self._is_attached:
            self.profile.report(self.rule)
            self.session.bye()

    def on_forked(self) -> None:
        """In a forked child: forget what belongs to the parent. A trainer attaches at its first entry."""
        self._is_attached = False
        self._thread, self._thread_id = None, 0
        self.follower.use_thread(0)
        self._first_step = None
        self._catch_up()
        self._start_rule("")

    def fail(self, event: str, error: Exception) -> None:
        """Salus has failed: the job continues without it, and the daemon learns why."""
        self._switch_off()
        text = "%s: %s: %s" % (event, type(error).__name__, error)
        faults.warn_without_salus(text)
        if self._session is None or not self._session.switch_off(text):
            faults.report(text)

    def _switch_off(self) -> None:
        self.is_off = True
        self.follower.use_thread(0)

    def _on_object_gone(self) -> None:
        self.follower.invalidate()

    def _postpone(self, event: str, number: int) -> None:
        """Keep an event that garbage collection may cause at any time. The rule gets it before the next event."""
        self._postponed.append((event, number))
        self.follower.invalidate()

    def _finish_expected(self) -> bool:
        """Whether the follower expected this entry. If so, enter the gate, which is all that is left to do."""
        pending = self.follower.take_pending()
        if pending:
            self._enter(pending == layouts.FOLLOWER_BOUNDARY)
        return bool(pending)

    def _catch_up(self) -> None:
        """Give the rule the events that it has missed."""
        if self.follower.is_following:
            self.follower.stop(self.rule)
        while self._postponed:
            event, number = self._postponed.pop(0)
            getattr(self.rule, event)(number)

    def _ask(self, event: str, *arguments: Any) -> bool:
        """Whether the rule sees a boundary at this event, which the follower did not expect."""
        self._catch_up()
        fires = bool(getattr(self.rule, event)(*arguments))
        self.follower.record(self.rule, (event, arguments), fires)
        return fires

    def _start_rule(self, learned: str) -> None:
        self.rule = BoundaryRule(learned)
        for optimizer in self._optimizers.objects():
            self.rule.optimizer_made(self._optimizers.number_of(optimizer))

    def _is_attached_thread(self) -> bool:
        return get_ident() == self._thread_id and self._is_attached

    def _is_watched_thread(self) -> bool:
        """Whether this thread's iterations count. The very first entry attaches the process."""
        if get_ident() == self._thread_id:
            return True
        if self._thread is not None and self._thread.is_alive():
            return False
        if self._adaptor.is_loader_worker():
            self._switch_off()
            return False
        self._thread, self._thread_id = threading.current_thread(), get_ident()
        self.follower.use_thread(self._thread_id)
        if not self._is_attached:
            self._attach()
        else:
            self.session.change_thread()
        return not self.is_off

    def _use_session(self, session: JobSession) -> None:
        self._session = session
        self._profile = ProfileReporter(session, self._adaptor)

    def _attach(self) -> None:
        if self._session is None:
            self._use_session(JobSession(binding.load()))
        problem = self.session.attach(self._adaptor.number, self.profile.signature, self._declared_bytes)
        if problem:
            faults.warn_without_salus("hello: %s" % problem)
            # If the daemon has refused, it knows why.
            if not self.session.is_refused:
                faults.report("hello: %s" % problem)
            self._switch_off()
            return
        self._is_attached = True
        if self.session.hook_problem:
            # salusd recognizes this fault by the word before the colon: the user's next job gets the preload library.
            text = "hook: %s" % self.session.hook_problem
            faults.warn("%s; tensors stay in plain memory and iterations are not gated" % text)
            self.session.fault(text)
        if self.session.rule:
            self._start_rule(self.session.rule)
        atexit.register(self.on_exit)

    def _enter(self, fires: bool) -> None:
        if fires:
            self._pass_boundary()
        elif self.session.enter() < 0:
            self._switch_off()

    def _pass_boundary(self) -> None:
        self.profile.before_boundary()
        if self.session.boundary() < 0:
            self._switch_off()
            return
        self.profile.after_boundary(self.rule, self._roots)
        self.follower.set_report_due(self.profile.next_due_ns)
