# make run, make test: the two commands of the README. Both set up everything they need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
BENCH_READY := $(VENV)/bench-ready
SPARK_READY := $(VENV)/spark-ready
PIPELINE_READY := $(VENV)/pipeline-ready
FUZZ_READY := $(VENV)/fuzz-ready
DATA ?= data

# Most tests wait: for a daemon to start, a socket, a disk. So more of them run than there are cores. Those that
# measure are marked `alone`, and run behind the others, one by one; pytest ends with 5 where there are none.
WORKERS ?= 4
PYTEST := $(BIN)/pytest -rs
define run_part
	$(PYTEST) -n $(WORKERS) --dist worksteal -m 'not alone' $(1)
	$(PYTEST) -m alone $(1) || test $$? -eq 5
endef
# What is dear to set up, a Spark session or a clean Debian, is set up once for a file and two files run at a time.
define run_files
	$(PYTEST) -n 2 --dist loadfile $(1)
endef

.DEFAULT_GOAL := help
SHIPPERS := rsyslog rsyslog-elasticsearch libestr0 libfastjson4 liblognorm5 \
	syslog-ng-core syslog-ng-mod-http libivykis0 libnet1 libpcre3 libwrap0 prometheus \
	systemd-journal-remote libsystemd-shared libmicrohttpd12

RABBITMQ := rabbitmq-server erlang-base erlang-asn1 erlang-crypto erlang-eldap erlang-inets erlang-mnesia \
	erlang-os-mon erlang-parsetools erlang-public-key erlang-runtime-tools erlang-ssl erlang-syntax-tools \
	erlang-tools erlang-xmerl
# Flags of the benchmark: make bench BENCH='--full --repeat 5'
BENCH ?=

.PHONY: help run test check unit integration clients damage faults web security browser operations spark pipeline fuzz test-faults test-fuzz mutations bench bench-document packages shippers bench-packages browser-packages operations-packages spark-packages fuzz-packages constraints clean

help:
	@echo "make run     set up, start the daemon on 127.0.0.1:1774 with its data in ./$(DATA)"
	@echo "make test    set up, then lint, type check and run every test"
	@echo "make check   lint and type check only;  make unit, integration, clients, damage, faults, web,"
	@echo "             security, browser, operations, spark, pipeline, fuzz: one part of the tests"
	@echo "make test-faults   the long part: thousands of kills and crashes, and what it survived"
	@echo "make test-fuzz     a million inputs over TCP, over HTTP and in the files; SEED=n repeats a run"
	@echo "make mutations     take safety measures out of a copy, one by one, and see a test notice"
	@echo "make bench   measure, as ratios to other things measured in the same run; 20 minutes"
	@echo "make bench-document   put what it found into docs/benchmarks.md"
	@echo "make clean   remove the environment and what was built; your data stays"

# What is compiled is built anew when its source has changed.
$(READY): pyproject.toml constraints.txt logd/_native.c $(wildcard logd/*/*.pxd) logd/storage/single_push.py logd/client/message_append.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "logd needs Python 3.11 or later; $(PYTHON) is older. Try: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || ./packages.sh python3-venv
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(BENCH_READY): $(READY)
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,bench]'
	@touch $@

$(SPARK_READY): $(READY)
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,spark]'
	@touch $@

$(PIPELINE_READY): $(SPARK_READY)
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,spark,object-store]'
	@touch $@

$(FUZZ_READY): $(READY)
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,fuzz]'
	@touch $@

run: $(READY)
	@echo "logd starts on $${LOGD_HOST:-127.0.0.1:1774}; its data is in ./$(DATA). Stop it with Ctrl-C. In another terminal, try:"
	@echo "  $(BIN)/log-cli write app 'hello, log'"
	@echo "  $(BIN)/log-cli read app"
	@echo "  $(BIN)/log-cli read app --forever"
	@echo "or open http://$${LOGD_HTTP_HOST:-127.0.0.1:1775}/ in a browser"
	@exec $(BIN)/logd --data-dir $(DATA)

test: check packages unit integration clients damage faults web security fuzz operations spark pipeline browser

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: $(READY)
	$(call run_part,tests/unit)

integration: $(READY)
	$(call run_part,$(addprefix tests/integration/,cli compatibility daemon docs forward protocol))

clients: $(READY)
	$(call run_part,tests/integration/clients)

damage: $(READY)
	$(call run_part,tests/integration/storage)

faults: $(READY)
	$(call run_part,tests/integration/faults)

web: $(READY) packages shippers
	$(call run_part,tests/integration/web)

# Who must not get in, and how much of them there may be: tokens, TLS, limits, floods.
security: $(READY)
	$(PYTEST) -n 2 --dist loadfile -m 'not alone' tests/integration/security
	$(PYTEST) -m alone tests/integration/security

# The page in a real browser, one test after the other: they share it. Pictures of it are left in build/screenshots.
browser: $(READY) browser-packages
	$(PYTEST) tests/integration/browser

# The units, the container, backups, and an installation in a clean Debian below build/.
operations: $(READY) packages operations-packages
	$(call run_files,tests/integration/operations)

# Spark with real daemons: reading, writing, streams that are killed, and a cluster on this machine.
spark: $(READY) spark-packages
	@$(MAKE) --no-print-directory $(SPARK_READY) || echo "tests with Spark will be skipped"
	$(call run_files,tests/integration/spark)

# Archive, history and import: with Spark, an object store, and kills.
pipeline: $(READY) packages spark-packages
	@$(MAKE) --no-print-directory $(PIPELINE_READY) || echo "tests of the archive will be skipped"
	$(call run_files,tests/integration/archive)

test-faults: $(READY) packages spark-packages
	@$(MAKE) --no-print-directory $(PIPELINE_READY) || echo "tests with Spark will be skipped"
	LOGD_LONG=1 $(BIN)/pytest --timeout 0 $(addprefix tests/integration/,clients storage faults spark archive) \
		tests/integration/operations/test_backup.py tests/integration/operations/test_backup_under_load.py \
		tests/unit/test_backup_model.py tests/unit/test_forward_model.py tests/integration/forward \
		tests/integration/web/test_bounded_reads.py

# Inputs by the thousand, right and wrong. SEED=n draws others, or again those of a run that failed.
fuzz: $(READY) fuzz-packages
	LOGD_SEED=$(SEED) $(PYTEST) -s tests/integration/fuzz

test-fuzz: $(READY) fuzz-packages
	LOGD_LONG=1 LOGD_SEED=$(SEED) $(PYTEST) --timeout 0 -s tests/integration/fuzz

fuzz-packages: $(READY)
	@$(MAKE) --no-print-directory $(FUZZ_READY) || \
		echo "atheris does not install here: what it would guide by coverage is left out"

# Take safety measures out of a copy of the code one by one; a named test has to notice each.
mutations: $(PIPELINE_READY) packages spark-packages
	$(BIN)/python tests/mutations.py

# What the tests want from Debian. Without root or a registry the tests that need it say so and skip.
packages:
	@./packages.sh netcat-openbsd strace e2fsprogs mount iproute2 tmux logrotate curl || \
		echo "tests that need one of these will be skipped, and say so"

# Other people's log shippers, unpacked below build/ and not installed: two syslog daemons exclude each other.
shippers: build/npm/ready build/clients/ready build/clients-elasticsearch-8/ready
	@./unpack.sh build/shippers $(SHIPPERS) || echo "tests with rsyslog, syslog-ng or promtool will be skipped"

build/npm/ready: tests/integration/web/package.json
	@mkdir -p build/npm && cp $< build/npm/
	@{ command -v npm >/dev/null || ./packages.sh nodejs npm; } && \
		npm install --prefix build/npm --silent --no-audit --no-fund --no-progress && touch $@ || \
		echo "tests with clients for Node.js will be skipped"

# Third-party clients for Python, each set in its own directory: two versions of elasticsearch-py cannot share one.
build/clients/ready: tests/integration/web/requirements.txt
build/clients-elasticsearch-8/ready: tests/integration/web/requirements-elasticsearch-8.txt
build/clients/ready build/clients-elasticsearch-8/ready: constraints.txt | $(READY)
	@rm -rf $(@D)
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt --target $(@D) \
		-r $(filter %.txt,$(filter tests/%,$^)) && touch $@ || echo "tests with $(@D) will be skipped"

browser-packages:
	@./packages.sh chromium chromium-driver fonts-dejavu-core || \
		echo "tests of the page will be skipped, and say so"

operations-packages:
	@./packages.sh systemd debootstrap util-linux || echo "tests of the units will be skipped, and say so"
	@./unpack.sh build/prometheus prometheus || echo "tests with promtool will be skipped, and say so"
	@tests/integration/operations/debian-root.sh build/debian || echo "tests in a clean Debian will be skipped, and say so"

# Spark runs on Java, 17 or later.
spark-packages:
	@./java.sh || echo "tests with Spark will be skipped, and say so"

# RabbitMQ is unpacked and not installed: its package would start a service, and leave one running.
bench-packages:
	@./packages.sh redis-server nats-server wrk gcc libc6-dev || \
		echo "figures of redis-server, nats-server or wrk will be left out"
	@./unpack.sh build/rabbitmq $(RABBITMQ) || echo "figures of RabbitMQ will be left out"

bench: $(READY) bench-packages spark-packages
	@$(MAKE) --no-print-directory $(BENCH_READY) || \
		echo "plots, and figures beside redis-py, nats-py or rstream, will be left out"
	@$(MAKE) --no-print-directory $(SPARK_READY) || echo "figures of Spark will be left out"
	$(BIN)/python -m bench --json build/bench/figures.json $(BENCH)

# Put what the last `make bench` found into the document, so that nobody types figures.
bench-document: $(BENCH_READY)
	$(BIN)/python -m bench --stored build/bench/figures.json --plots docs/plots --markdown docs/benchmarks.md

# Take the versions that are installed now as the ones to install from now on: names and versions only.
constraints: $(BENCH_READY) $(SPARK_READY)
	$(BIN)/pip freeze --exclude-editable | grep -E '^[A-Za-z0-9._-]+==[^ ]+$$' > constraints.txt

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .hypothesis
