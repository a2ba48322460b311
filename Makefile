# make up      sets everything up and starts the system on this machine (DATA=./data)
# make test    sets everything up and runs the tests
# make bench   measures how fast everything is: benchmarks/README.md (BENCH="lone parts" for a part of it)
# make lint    style, types and the import contracts
# make fuzz    damaged Session logs, each to be answered in its kind (SECONDS=60, SEED=... to repeat one)
# make chaos   random faults under load, and a checker of what was promised (SECONDS=60, SEED=... to repeat one,
#              STORE=postgres for that engine and its own faults)
# make soak    sustained load, and whether anything grows without bound (SECONDS=900, of which half is for warming up)

PYTHON ?= python3
DATA ?= data
JOBS ?= 2
SECONDS ?= 60
SEED ?=
STORE ?=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
PACKAGES := feedback persistence barrier worker projections gateway app tests benchmarks

.PHONY: up test bench lint fuzz chaos soak clean

up: $(READY)
	@exec $(BIN)/feedback up --data "$(DATA)"

test: $(READY)
	$(BIN)/python -m pytest -n $(JOBS)

bench: $(READY)
	$(BIN)/python -m benchmarks $(BENCH)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fuzz: $(READY)
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

chaos: $(READY)
	$(BIN)/python -m tests.chaos --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(if $(STORE),--store $(STORE))

soak: $(READY)
	$(BIN)/python -m tests.soak --seconds $(if $(filter file,$(origin SECONDS)),900,$(SECONDS))

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

# Exact versions with hashes first, then the project itself, which brings nothing more.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed; name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "Setting up $(VENV): a minute or two and 700 MB, tests and tools included, the first time."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
