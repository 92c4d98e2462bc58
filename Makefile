# `make run` starts the daemon, `make test` runs all tests. Both install what they need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
RUN_READY := $(VENV)/run-ready
READY := $(VENV)/ready
BENCH_READY := $(VENV)/bench-ready
SPARK_READY := $(VENV)/spark-ready
ARCHIVE_READY := $(VENV)/archive-ready
FUZZ_READY := $(VENV)/fuzz-ready
DATA ?= data
# A module that is compiled has a file of types.
TYPES := $(wildcard logd/*.pxd logd/*/*.pxd)

# Most tests wait for a process, a socket or a disk, so more of them run than there are cores. Tests that share
# something expensive, a Spark session or a browser, run in one worker: see tests/conftest.py.
# Tests that measure are marked `alone` and run after the others, one by one; pytest exits with 5 if there are none.
WORKERS ?= 5
PYTEST := $(BIN)/pytest -rfEs
define run_tests
	$(PYTEST) -n $(WORKERS) -m 'not alone' $(1)
	$(PYTEST) -m alone $(1) || test $$? -eq 5
endef

.DEFAULT_GOAL := help
SHIPPERS := rsyslog rsyslog-elasticsearch libestr0 libfastjson4 liblognorm5 \
	syslog-ng-core syslog-ng-mod-http libivykis0 libnet1 libpcre3 libwrap0 prometheus \
	systemd-journal-remote libsystemd-shared libmicrohttpd12

RABBITMQ := rabbitmq-server erlang-base erlang-asn1 erlang-crypto erlang-eldap erlang-inets erlang-mnesia \
	erlang-os-mon erlang-parsetools erlang-public-key erlang-runtime-tools erlang-ssl erlang-syntax-tools \
	erlang-tools erlang-xmerl
# Options of the benchmark: make bench BENCH='--full --repeat 5'
BENCH ?=

.PHONY: help run test check generate unit model integration clients storage faults web security browser operations spark archive \
	cluster fuzz test-faults test-fuzz test-uncompiled mutations bench bench-document packages model-packages shippers etcd bench-packages browser-packages \
	operations-packages spark-packages archive-packages fuzz-packages java constraints clean

help:
	@echo "make run     install logd and start the daemon on 127.0.0.1:1774, with its data in ./$(DATA)"
	@echo "make test    run the linter, the type checker and all tests"
	@echo "make check   run the linter and the type checker; make unit, model, integration, clients, storage, faults, web,"
	@echo "             security, browser, operations, spark, archive, cluster, fuzz: run one area of the tests"
	@echo "make generate      write the blocking client modules that are generated from asyncio sources"
	@echo "make test-faults   run the long fault tests: thousands of kills and crashes"
	@echo "make test-fuzz     run a million random inputs over TCP, over HTTP and in the files; SEED=n repeats a run"
	@echo "make test-uncompiled   run the tests of the guarantees without compiled modules"
	@echo "make mutations     remove safety measures from a copy, one at a time, and verify that a test fails"
	@echo "make bench   run the benchmark, compared with other programs; takes 20 minutes"
	@echo "make bench-document   write the results of the last benchmark into docs/benchmarks.md"
	@echo "make clean   remove the environment and all build products, but not the data"

# What logd itself needs, and nothing else. Compiled modules are rebuilt when their sources have changed.
$(RUN_READY): pyproject.toml constraints.txt logd/_native.c $(TYPES) $(TYPES:.pxd=.py)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "logd needs Python 3.11 or later; $(PYTHON) is older. Try: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || ./packages.sh python3-venv
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) ..."
	@$(PIP_INSTALL) -e .
	@touch $@

# The packages of extras of pyproject.toml, without building logd again.
define install_extras
	@$(BIN)/python -c 'import sys, tomllib; \
		extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
		print(*(package for name in sys.argv[1:] for package in extras[name]), sep="\n")' $(1) | \
		$(PIP_INSTALL) -r /dev/stdin
	@touch $@
endef

$(READY): $(RUN_READY)
	$(call install_extras,dev)

$(BENCH_READY): $(READY)
	$(call install_extras,bench)

$(SPARK_READY): $(READY)
	$(call install_extras,spark)

$(ARCHIVE_READY): $(SPARK_READY)
	$(call install_extras,object-store)

$(FUZZ_READY): $(READY)
	$(call install_extras,fuzz)

run: $(RUN_READY)
	@echo "logd listens on $${LOGD_HOST:-127.0.0.1:1774}, with its data in ./$(DATA). Press Ctrl-C to stop it. In another terminal, try:"
	@echo "  $(BIN)/log-cli write app 'hello, log'"
	@echo "  $(BIN)/log-cli read app"
	@echo "  $(BIN)/log-cli read app --forever"
	@echo "or open http://$${LOGD_HTTP_HOST:-127.0.0.1:1775}/ in a browser"
	@exec $(BIN)/logd --data-dir $(DATA)

test: check packages model-packages shippers etcd browser-packages operations-packages archive-packages fuzz-packages
	$(call run_tests,tests)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Write the blocking halves of the clients from their asyncio sources.
generate: $(READY)
	$(BIN)/python tools/async_to_sync.py

unit: $(READY)
	$(call run_tests,tests/unit)

# The model of replication, checked exhaustively.
model: $(READY) model-packages
	$(call run_tests,tests/model)

integration: $(READY)
	$(call run_tests,$(addprefix tests/integration/,cli compatibility daemon docs forward protocol))

# Hostile and defective peers, cuts and kills, for every kind of client.
clients: $(READY)
	$(call run_tests,tests/integration/clients)

# Damaged files, recovery, repair, retention and cursors.
storage: $(READY)
	$(call run_tests,tests/integration/storage)

# Kills, power cuts, full and slow disks.
faults: $(READY) packages
	$(call run_tests,tests/integration/faults)

# HTTP, with other programs' log shippers.
web: $(READY) packages shippers
	$(call run_tests,tests/integration/web)

# Access control: tokens, TLS, limits, floods.
security: $(READY)
	$(call run_tests,tests/integration/security)

# The web page in a browser. Screenshots are written to build/screenshots.
browser: $(READY) browser-packages
	$(call run_tests,tests/integration/browser)

# The systemd units, the container, backups, and an installation in a clean Debian below build/.
operations: $(READY) packages operations-packages
	$(call run_tests,tests/integration/operations)

# Spark with real daemons: reading, writing, killed streams, and a cluster on this machine.
spark: $(READY) spark-packages
	$(call run_tests,tests/integration/spark)

# Archive, history and import: with Spark, an object store, and kills.
archive: $(READY) packages archive-packages
	$(call run_tests,tests/integration/archive)

# The register on etcd: members that are killed and suspended, TLS, users.
cluster: $(READY) etcd
	$(call run_tests,tests/integration/cluster)

# Thousands of valid and invalid inputs. SEED=n selects other inputs, or repeats those of a failed run.
fuzz: $(READY) fuzz-packages
	LOGD_SEED=$(SEED) $(PYTEST) -s tests/integration/fuzz

test-faults: $(READY) packages model-packages archive-packages
	LOGD_LONG=1 $(BIN)/pytest --timeout 0 $(addprefix tests/integration/,clients storage faults spark archive) \
		tests/integration/operations/test_backup.py tests/integration/operations/test_backup_under_load.py \
		tests/unit/test_backup_model.py tests/unit/test_forward_model.py tests/integration/forward \
		tests/integration/web/test_bounded_reads.py tests/model

test-fuzz: $(READY) fuzz-packages
	LOGD_LONG=1 LOGD_SEED=$(SEED) $(PYTEST) --timeout 0 -s tests/integration/fuzz

# The tests behind docs/guarantees.md without any compiled module, in a copy that has only source.
test-uncompiled: $(READY) packages
	$(BIN)/python -m tests.uncompiled

# Remove safety measures from a copy of the code, one at a time; the named test must fail.
mutations: $(ARCHIVE_READY) packages java
	$(BIN)/python -m tests.mutations

# Debian packages for the tests. Tests whose packages cannot be installed are skipped with a message.
packages:
	@./packages.sh netcat-openbsd strace e2fsprogs mount iproute2 tmux logrotate curl || \
		echo "tests that need one of these packages will be skipped"

model-packages:
	@./packages.sh spin gcc libc6-dev || echo "checks of the model of replication will be skipped"

# Third-party log shippers, unpacked below build/ and not installed, because the syslog daemons conflict.
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

# etcd is unpacked and not installed, because its package would start a service.
etcd:
	@./unpack.sh build/etcd etcd-server || echo "tests with etcd will be skipped"

browser-packages:
	@./packages.sh chromium chromium-driver fonts-dejavu-core || \
		echo "tests of the web page will be skipped"

operations-packages:
	@./packages.sh systemd debootstrap util-linux || echo "tests of the units will be skipped"
	@./unpack.sh build/prometheus prometheus || echo "tests with promtool will be skipped"
	@tests/integration/operations/debian-root.sh build/debian || echo "tests in a clean Debian will be skipped"

spark-packages: java
	@$(MAKE) --no-print-directory $(SPARK_READY) || echo "tests with Spark will be skipped"

archive-packages: spark-packages
	@$(MAKE) --no-print-directory $(ARCHIVE_READY) || echo "tests of the archive will be skipped"

fuzz-packages: $(READY)
	@$(MAKE) --no-print-directory $(FUZZ_READY) || \
		echo "atheris cannot be installed: coverage-guided fuzzing will be skipped"

# Spark needs Java 17 or later.
java:
	@./java.sh || echo "tests with Spark will be skipped"

# RabbitMQ is unpacked and not installed, because its package would start a service.
bench-packages:
	@./packages.sh redis-server nats-server wrk gcc libc6-dev || \
		echo "rows with redis-server, nats-server or wrk will be skipped"
	@./unpack.sh build/rabbitmq $(RABBITMQ) || echo "rows with RabbitMQ will be skipped"

bench: $(READY) bench-packages spark-packages
	@$(MAKE) --no-print-directory $(BENCH_READY) || \
		echo "plots, and rows with redis-py, nats-py or rstream, will be skipped"
	$(BIN)/python -m bench --json build/bench/figures.json $(BENCH)

# Write the results of the last `make bench` into the document.
bench-document: $(BENCH_READY)
	$(BIN)/python -m bench --stored build/bench/figures.json --plots docs/plots --markdown docs/benchmarks.md

# Pin the currently installed versions.
constraints: $(BENCH_READY) $(SPARK_READY)
	$(BIN)/pip freeze --exclude-editable | grep -E '^[A-Za-z0-9._-]+==[^ ]+$$' > constraints.txt

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .hypothesis
