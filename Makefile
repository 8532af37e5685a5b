# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PORT ?= 7860

.PHONY: demo test check bench docs install install-test clean help

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
	$(BIN)/python -m pytest

check: install-test ## formatting rules, types, generated docs
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python scripts/make_docs.py --check

docs: install-test ## write the generated reference pages
	$(BIN)/python scripts/make_docs.py

bench: install-test ## print every benchmark's ratios
	$(BIN)/python benchmarks/proxy.py
	$(BIN)/python benchmarks/tree.py
	$(BIN)/python benchmarks/store_commit.py
	$(BIN)/python benchmarks/page.py

clean: ## remove the environment and what tools left
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
