# Most people need two targets: `make demo` and `make test`. The others are parts of these, or need more time, a GPU or
# special tools.
PY := .venv/bin/python
export PYTHONPATH := $(CURDIR)
export PYTHONDONTWRITEBYTECODE := 1
STAMP := .venv/.stamp
PYTEST := $(PY) -m pytest -q
# Tests that need hours or a GPU have targets of their own.
NORMAL := -m "not soak and not redteam and not gpu"

.PHONY: demo setup boundaries layouts docs pictures demo-picture man check format lint types imports tidy unit property integration e2e coverage test test-soak bench record compare numbers clean
.PHONY: wheel deb test-redteam test-deb test-clean test-gpu integration-cuda integration-on-cuda native native-emulator native-libsalus native-spank

# If nothing is set up yet, `make demo` needs only a smaller set-up.
ifeq ($(MAKECMDGOALS)$(wildcard .venv/.stamp),demo)
STAMP := .venv/.stamp-demo
PART := demo
endif

setup: $(STAMP)
$(STAMP): pyproject.toml constraints.txt .ci/packages .ci/cuda129.txt .ci/torch-cuda.txt .ci/setup
	@PYTHON='$(PYTHON)' bash .ci/setup $(PART)
	@touch $@

# Each C part has its own target.
native: native-emulator native-libsalus native-spank

native-libsalus: $(STAMP)
	@$(MAKE) --no-print-directory -s -C nodedaemon/job/libsalus PYTHON=$(abspath $(PY)) all tests

native-emulator: $(STAMP)
	@$(MAKE) --no-print-directory -s -C emulator PYTHON=$(abspath $(PY)) OUT=$(CURDIR)/build/emulator
	@$(MAKE) --no-print-directory -s -C emulator PYTHON=$(abspath $(PY)) OUT=$(CURDIR)/build/emulator-inject INJECT=1

native-spank: $(STAMP)
	@$(MAKE) --no-print-directory -s -C slurm_plugin/spank OUT=$(CURDIR)/build/spank

format: $(STAMP)
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

lint: $(STAMP)
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .

types: $(STAMP)
	$(PY) -m mypy

imports: $(STAMP)
	.venv/bin/lint-imports --no-cache

tidy: $(STAMP)
	$(PYTEST) tests/tidy

unit: native
	$(PYTEST) $(NORMAL) -n 2 tests/unit

property: $(STAMP)
	$(PYTEST) $(NORMAL) -n 2 tests/property tests/scenarios

# Files that are generated from the code. Tests check that they are current.
man: $(STAMP)
	$(PY) -m nodedaemon.config.document etc/salus.conf docs/man/salus.conf.md
	$(PY) -m cli.manual docs/man
	$(PY) -m tools.state_diagrams docs/sessions.md

# The Python side of the C headers.
layouts: $(STAMP)
	$(PY) -m tools.layouts

boundaries: $(STAMP)
	$(PY) -m tools.boundaries

# Drawn by the simulator. A test checks that policies.svg is current.
pictures: $(STAMP)
	@$(PY) -m tools.pictures docs/pictures

# README's picture, from the last demo's report.
demo-picture: $(STAMP)
	@test -f build/demo/report.html || { echo "demo-picture: no report; run make demo first" >&2; exit 2; }
	@$(PY) -m tools.demo_picture build/demo/report.html docs/pictures/demo.png

# The pages as HTML and as manual pages, from one source. A warning is a failure.
docs: $(STAMP)
	@$(PY) -m sphinx -W --keep-going -q -b html -d build/docs/doctrees docs build/docs/html
	@$(PY) -m sphinx -W --keep-going -q -b man -d build/docs/doctrees docs build/docs/man
	@echo "docs: build/docs/html/index.html and build/docs/man"

# A private Slurm cluster, real PyTorch jobs, and the report; KEEP=1 leaves the cluster up.
demo: $(STAMP) native-spank
	@$(MAKE) --no-print-directory -s -C nodedaemon/job/libsalus PYTHON=$(abspath $(PY)) libsalus.so
	@$(PY) -m cli.main demo $(if $(KEEP),--keep)

check: lint types imports tidy unit property

# The tests of the daemon's suite that a GPU could change: turns, deaths, hangs, restart, another user's lane, races.
# `make integration` runs these on an emulated GPU too, and integration-cuda the whole suite. Xid and lost GPUs are in
# tests/integration/cuda.
FAULTS := tests/integration/faults
ON_CUDA := \
    "tests/integration/test_sharing.py::test_three_jobs_take_turns_in_one_lane_under[priority]" \
    "$(FAULTS)/test_sessions.py::test_a_holder_that_is_killed_frees_the_lane_and_the_next_waiter_runs[5]" \
    "$(FAULTS)/test_sessions.py::test_a_hung_holder_is_warned_or_ended_as_configured[kill]" \
    $(FAULTS)/test_daemon.py::test_a_session_that_died_while_the_daemon_was_down_is_released \
    "$(FAULTS)/test_hostile.py::test_a_lane_is_taken_back_from_a_session_that_never_unmaps_it[disconnect]" \
    $(FAULTS)/test_contention.py::test_jobs_that_race_for_the_last_bytes_are_admitted_one_by_one

# These mostly wait for devices, daemons and databases, and share nothing. Two at a time take little more than half as
# long.
TWO_AT_A_TIME := $(addprefix tests/integration/,accounting cuda faults libsalus test_newcomer.py test_node.py test_site.py) tests/security tests/packaging emulator/tests

integration: native
	$(PYTEST) $(NORMAL) $(foreach part,$(TWO_AT_A_TIME),--ignore=$(part)) tests/integration
	$(PYTEST) $(NORMAL) -n 2 --ignore=tests/security/cluster $(TWO_AT_A_TIME)
	@$(MAKE) --no-print-directory integration-on-cuda

integration-on-cuda: native
	SALUS_TEST_DEVICE=cuda $(PYTEST) -n 2 $(ON_CUDA)

test-slurm: $(STAMP)
	@case "$(RELEASE)" in trixie|forky) ;; *) echo 'test-slurm: set RELEASE: make test-slurm RELEASE=trixie|forky' >&2; exit 2;; esac
	@BENCH=$(BENCH) bash tests/slurm/run.sh $(RELEASE) $(ARGS)

e2e: native-spank native-libsalus
	$(PYTEST) $(NORMAL) tests/e2e tests/security/cluster

coverage: native
	$(PYTEST) $(NORMAL) -n 2 --cov --cov-report=term tests/unit tests/property tests/scenarios

test: native lint types imports tidy coverage integration e2e

# The daemon's suite again, on an emulated GPU.
integration-cuda: native
	SALUS_TEST_DEVICE=cuda $(PYTEST) -n 2 $(NORMAL) tests/integration/test_sharing.py tests/integration/faults

# On a machine with a GPU: the real device instead of the emulator.
test-gpu: native
	$(PYTEST) -m gpu tests
	SALUS_TEST_DEVICE=gpu $(PYTEST) $(NORMAL) tests/integration/test_sharing.py tests/integration/faults

test-soak: native
	$(PYTEST) -m soak --timeout 3600 tests emulator/tests

# Floods and fuzzers against salusd, salus-admitd and a private cluster, bounded in count and time, on loopback only.
test-redteam: native
	$(PYTEST) -m redteam --timeout 3600 tests

# Packages to install outside the checkout: a wheel with the C parts, and a Debian package made from it.
wheel: native-libsalus native-spank
	@$(PY) -m hatchling build -t wheel -d build/wheel >/dev/null
	@ls -t build/wheel/salus-*.whl | head -1

deb: wheel docs
	@$(PY) distribution/deb.py "$$(ls -t build/wheel/salus-*.whl | head -1)" --man build/docs/man --out build/deb

# Installs the Debian package in a clean root file system, runs it there, and removes it again.
test-deb: deb
	@bash tests/packaging/deb.sh "$$(ls -t build/deb/salus_*.deb | head -1)"

# Repeats and times a newcomer's first steps: a fresh clone of the last commit on a clean Debian 12.
test-clean:
	@bash tests/packaging/clean.sh $(or $(PART),demo) $(TARGETS)

bench: native
	@test -n "$(BENCH)" || { echo "bench: set BENCH: make bench BENCH=NAME, NAME one of: $$(ls tests/bench/*.py | xargs -n1 basename | sed 's/\.py//' | grep -v __ | tr '\n' ' ')" >&2; exit 2; }
	@test -f tests/bench/$(BENCH).py || { echo "bench: no tests/bench/$(BENCH).py" >&2; exit 2; }
	@$(PY) tests/bench/$(BENCH).py $(ARGS)

# Runs a benchmark and keeps its summary in the tree (docs/benchmarks/NAME.json). Run `make numbers` afterwards.
record: native
	@test -n "$(BENCH)" || { echo "record: set BENCH: make record BENCH=NAME [REPEAT=5]" >&2; exit 2; }
	@$(PY) -m tools.record $(BENCH) --repeat $(or $(REPEAT),1) $(ARGS)

# Runs one benchmark alternately on this tree and on an older commit.
compare: native
	@test -n "$(BENCH)" -a -n "$(BASE)" || { echo "compare: set BENCH and BASE: make compare BENCH=NAME BASE=COMMIT [ROUNDS=3]" >&2; exit 2; }
	@$(PY) -m tools.compare --rounds $(or $(ROUNDS),3) $(BENCH) $(BASE) $(if $(ARGS),-- $(ARGS))

numbers: $(STAMP)
	@$(PY) -m tools.benchmark_plots
	@$(PY) -m tools.cited_numbers

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
