# Thin: each target makes the environment it needs (once, until its requirements change) and runs one thing.
#   make test    lint and all tests but those of test-stores, in two processes; the last line counts both
#   make test-stores  the tests on S3 servers that take minutes to build (once, into .servers/, by Go), in two processes
#   make load    the same as make test, or TARGETS="test test-stores", with every core kept busy by something else
#   make test-spark41  the tests of the local Spark session once more, on the oldest Spark that is supported
#   make faults  every fault at full size, and the ledger docs/faults.md; BUDGET=600 seconds for the parts without an end
#   make servers      every server the tests use, running, with addresses and options, until Ctrl-C
#   make demo    a stream on Spark, or plain Python: killed in the middle of a publish, recovered, proved by DuckDB
#   make model   the formal model on its large bounds, MINUTES=30 at most
#   make bench   the measurements, interleaved with the peers
#   make audit   bandit, a bill of materials of what users install (dist/sbom.json), a look for known vulnerabilities
#   make lock    pin anew what pyproject.toml asks for, with hashes and without naming an index
# Another interpreter: make test PYTHON=python3.12

PYTHON ?= python3
PIP_FLAGS = --quiet --disable-pip-version-check
SPARK41_TESTS = tests/test_spark.py tests/test_spark_bad_input.py

.PHONY: test load test-stores test-spark41 faults build-servers servers lint demo model bench audit lock clean

test: lint .venv-readers/made
	.venv/bin/python tests/s3_servers.py build moto ministack
	.venv/bin/python tests/lanes.py

# What cannot be built or fetched is skipped, with the reason.
test-stores: build-servers .venv-bench-delta/made
	.venv/bin/python tests/lanes.py stores

TARGETS = test

load: .venv/made
	.venv/bin/python tests/load.py $(MAKE) --no-print-directory $(TARGETS)

BUDGET = 3600

faults: .venv/made
	.venv/bin/python tests/faults_run.py --budget $(BUDGET)

# That Spark leaves its sockets to the garbage collector. None of these tests has one of ours.
test-spark41: .venv-spark41/made
	.venv-spark41/bin/python -m pytest -W "ignore:unclosed <socket.socket:ResourceWarning" $(SPARK41_TESTS)

build-servers: .venv/made
	.venv/bin/python tests/s3_servers.py build

servers: .venv/made
	.venv/bin/python tests/s3_servers.py serve

lint: .venv/made
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

demo: .venv-demo/made
	.venv-demo/bin/python examples/demo.py

model: .venv/made
	.venv/bin/python tests/formal.py $(MINUTES)

bench: .venv-bench/made .venv-bench-delta/made .venv-bench-iceberg/made
	.venv-bench/bin/python benchmarks/run.py

# Exit code 2: not scanned, because no advisory was to be had. CI, where that is expected, says so with SCAN, and the last line
# counts it as a skip. B311: what the tools for tests draw comes from a seed, on purpose.
audit: .venv-audit/made
	.venv-audit/bin/bandit --quiet --configfile pyproject.toml --recursive --exclude txsink/testing txsink formats
	.venv-audit/bin/bandit --quiet --configfile pyproject.toml --recursive --skip B311 txsink/testing
	@mkdir -p dist
	.venv-audit/bin/cyclonedx-py requirements requirements/runtime.txt --pyproject pyproject.toml --output-reproducible \
	  --output-format JSON --output-file dist/sbom.json
	.venv-audit/bin/python tests/vulnerabilities.py requirements/runtime.txt $(SCAN)

.venv/made: requirements/test.txt pyproject.toml
.venv-demo/made: requirements/demo.txt pyproject.toml
.venv-spark41/made: requirements/spark41.txt pyproject.toml
.venv-readers/made: requirements/readers.txt pyproject.toml
.venv-bench/made: requirements/bench.txt pyproject.toml
.venv-audit/made: requirements/audit.txt pyproject.toml
.venv-bench-delta/made: requirements/bench-delta.txt pyproject.toml
.venv-bench-iceberg/made: requirements/bench-iceberg.txt pyproject.toml

# uv when it is there and can; plain pip else. The project itself last, editable, by the hatchling just pinned.
%/made:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("txsink needs Python 3.10 or later, but $(PYTHON) is %s.%s: make PYTHON=..." % sys.version_info[:2])'
	@rm -rf $*
	@if command -v uv >/dev/null 2>&1 && uv venv --quiet --python "$$(command -v $(PYTHON))" $* \
	  && uv pip install --quiet --python $*/bin/python --require-hashes -r $< \
	  && uv pip install --quiet --python $*/bin/python --no-build-isolation --no-deps -e .; then :; \
	else rm -rf $* && $(PYTHON) -m venv $* \
	  && $*/bin/python -m pip install $(PIP_FLAGS) --require-hashes -r $< \
	  && $*/bin/python -m pip install $(PIP_FLAGS) --no-build-isolation --no-deps -e .; fi
	@echo '*' >$*/.gitignore
	@touch $@

LOCK = uv pip compile --quiet --upgrade --universal --python-version 3.10 --generate-hashes \
  --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"

lock:
	@command -v uv >/dev/null 2>&1 || { $(PYTHON) -m venv .venv-lock && .venv-lock/bin/python -m pip install $(PIP_FLAGS) uv; }
	PATH="$$PATH:$(CURDIR)/.venv-lock/bin"; for group in demo test spark41 readers bench bench-delta bench-iceberg; do \
	  $(LOCK) pyproject.toml --extra cli --group $$group --output-file requirements/$$group.txt || exit 1; done; \
	$(LOCK) --group ministack --output-file requirements/ministack.txt
	$(LOCK) --group audit --output-file requirements/audit.txt
	$(LOCK) pyproject.toml --all-extras --output-file requirements/runtime.txt

clean:
	rm -rf .venv .venv-audit .venv-demo .venv-readers .venv-spark41 .venv-bench .venv-bench-delta .venv-bench-iceberg .venv-lock .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis dist demo-data
