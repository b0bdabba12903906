# Everything a person types here. Written for make 3.81, which macOS ships.

PY = .venv/bin/python
PYTEST = $(PY) -m pytest
PATHS = mlxplatform workers tests manage.py

.PHONY: help run test test-postgres drill bench lint audit format screenshots upgrade chromium blas audio vision postgres jq sandbox clean install install-dev

help:
	@echo "make run        start the platform      (PORT=9000 MODEL=<id> make run)"
	@echo "make test       all tests               (TESTS=tests/unit for a part)"
	@echo "make test-postgres   what depends on the database, on a private PostgreSQL (TESTS=… for a part)"
	@echo "make drill      long fault drills: kill -9, broker loss, full disk"
	@echo "make bench      measurements, printed as a table"
	@echo "make lint       ruff, mypy, import directions, secrets, dependencies"
	@echo "make audit      ask the vulnerability service about every dependency (goes online)"
	@echo "make format     let ruff rewrite the sources"
	@echo "make screenshots  renew the pictures of the guide"
	@echo "make upgrade    fetch the newest version, install, migrate (with a backup)"
	@echo "make audio      install what speech to text needs"
	@echo "make vision     install what showing pictures to models needs"
	@echo "make chromium   install the browser the browser tests drive"
	@echo "make blas       Linux: install a fast BLAS for CPU engines"
	@echo "make postgres   install the server that the tests on PostgreSQL start"
	@echo "make jq         install what the guide's demo needs"
	@echo "make sandbox    Linux: install the sandbox for model-written code"
	@echo "make clean      remove .venv and caches; the data directory stays"

install:
	@sh requirements/install.sh run

install-dev:
	@sh requirements/install.sh dev

run: install
	@exec $(PY) -m workers.supervisor

TESTS = tests

test: install-dev
	@$(PYTEST) $(TESTS) -m "not drill and not bench"

test-postgres: install-dev
	@$(PY) -m tests.on_postgres $(if $(filter-out tests,$(TESTS)),$(TESTS) -m "not drill and not bench")

drill: install-dev
	@$(PYTEST) $(TESTS) -m drill

bench: install-dev
	@$(PYTEST) tests/benchmarks -m bench -s -q

lint: install-dev
	@$(PY) -m ruff format --check $(PATHS)
	@$(PY) -m ruff check $(PATHS)
	@$(PY) -m mypy
	@.venv/bin/lint-imports
	@$(PY) .ci/find_secrets.py
	@$(PY) .ci/dependencies.py

audit: install-dev
	@sh .ci/audit

format: install-dev
	@$(PY) -m ruff check --fix $(PATHS)
	@$(PY) -m ruff format $(PATHS)

screenshots: install-dev
	@WRITE_DOCS=1 $(PYTEST) tests/browser/test_screenshots.py

upgrade:
	@git pull --ff-only
	@sh requirements/install.sh run
	@$(PY) manage.py prepare

chromium:
	@sh .ci/chromium

blas:
	@sh .ci/blas

postgres:
	@sh .ci/postgres

jq:
	@sh .ci/jq

audio:
	@sh requirements/install.sh audio

vision:
	@sh requirements/install.sh vision

sandbox:
	@sh .ci/bubblewrap

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .bench
	find mlxplatform workers tests -name __pycache__ -type d -prune -exec rm -rf {} +
