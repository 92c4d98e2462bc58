# make run, make test: the two commands of the README. Both set up everything they need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
DATA ?= data

.DEFAULT_GOAL := help
.PHONY: help run test check unit integration clients damage faults test-faults mutations bench packages bench-packages constraints clean

help:
	@echo "make run     set up, start the daemon on 127.0.0.1:1774 with its data in ./$(DATA)"
	@echo "make test    set up, then lint, type check and run every test"
	@echo "make check   lint and type check only;  make unit, integration, clients, damage, faults: one part of the tests"
	@echo "make test-faults   the long part: thousands of kills and crashes, and what it survived"
	@echo "make mutations     take safety measures out of a copy, one by one, and see a test notice"
	@echo "make bench   measure, as ratios to other things measured in the same run"
	@echo "make clean   remove the environment and what was built; your data stays"

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "logd needs Python 3.11 or later; $(PYTHON) is older. Try: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || ./packages.sh python3-venv
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

run: $(READY)
	@echo "logd starts on 127.0.0.1:1774; its data is in ./$(DATA). Stop it with Ctrl-C. In another terminal, try:"
	@echo "  $(BIN)/log-cli write app 'hello, log'"
	@echo "  $(BIN)/log-cli read app"
	@echo "  $(BIN)/log-cli read app --forever"
	@exec $(BIN)/logd --data-dir $(DATA)

test: check packages unit integration clients damage faults

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: $(READY)
	$(BIN)/pytest tests/unit

integration: $(READY)
	$(BIN)/pytest tests/integration

# Clients behind a bad line, on daemons that are killed, and killed themselves.
clients: $(READY)
	$(BIN)/pytest tests/clients

damage: $(READY)
	$(BIN)/pytest tests/damage

faults: $(READY)
	$(BIN)/pytest tests/faults

test-faults: $(READY) packages
	LOGD_LONG=1 $(BIN)/pytest tests/clients tests/damage tests/faults

# Take safety measures out of a copy of the code one by one; a named test has to notice each.
mutations: $(READY) packages
	$(BIN)/python tests/mutations.py

# What the tests want from Debian. Without root or a registry the tests that need it say so and skip.
packages:
	@./packages.sh netcat-openbsd strace e2fsprogs mount iproute2 || \
		echo "tests that need one of these will be skipped, and say so"

bench-packages:
	@./packages.sh redis-server gcc libc6-dev || echo "rows that need redis-server will be skipped"

bench: $(READY) bench-packages
	$(BIN)/python -m bench

# Take the versions that are installed now as the ones to install from now on: names and versions only.
constraints: $(READY)
	$(BIN)/pip freeze --exclude-editable | grep -E '^[A-Za-z0-9._-]+==[^ ]+$$' > constraints.txt

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .hypothesis
