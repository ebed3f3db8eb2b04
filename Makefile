# Everything runs in .venv, which is made from pyproject.toml alone. Commands are run as modules:
# pip cannot write a script that starts in a folder with a quote in its name.
PYTHON ?= python3
BIN := .venv/bin
RUN := $(BIN)/python -m

.PHONY: demo example-tables test test-long test-python test-spark check format unit slow chaos oracle powercut mutants bench docs clean audit lock manifests images

demo: .venv/ready ## the main job, on real input
	$(RUN) rebaser_server demo $(DEMO)

example-tables: .venv/ready ## twelve queries of TPC-H as tables, a branch with another tax: make example-tables SCALE=1
	$(BIN)/python examples/tpch/tpch.py --scale $(or $(SCALE),0.1)

# Processes that tests run in, three for two cores: with more they wait for each other; 0 for this one alone.
WORKERS ?= 3
# Without bytecode each of these processes compiles all tests, which takes longer than collecting them.
unexport PYTHONDONTWRITEBYTECODE
IN_PARALLEL = -n $(WORKERS) --dist loadgroup

test: .venv/trained ## all tests but the long ones; on more cores: make test WORKERS=8
	EXAMPLES=$(or $(EXAMPLES),0.4) $(RUN) pytest -m "not long and not slow" $(IN_PARALLEL) $(PYTEST)

test-long: .venv/trained ## the long tests; CI runs them, too
	$(RUN) pytest -m "long and not slow" $(IN_PARALLEL) $(PYTEST)

OTHER = build/python-$(shell $(PYTHON) -c 'import platform; print(platform.python_version())')

test-python: ## what tells Pythons apart: make test-python PYTHON=python3.13
	$(MAKE) $(OTHER)/ready
	EXAMPLES=$(or $(EXAMPLES),0.4) $(OTHER)/bin/python -m pytest -m "not long and not slow" -o asyncio_debug=true $(IN_PARALLEL) $(PYTEST) \
	  tests/unit tests/wire tests/integration/test_crashing_functions.py

SPARK ?= 4.0.0
# pyspark 4.0 leaves its own sockets to the garbage collector.
OLD_SOCKETS = -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning

test-spark: .venv/ready build/spark-$(SPARK)/ready ## the Spark tests with another release of Spark: make test-spark SPARK=4.0.0
	PYTHONPATH="$(CURDIR)/build/spark-$(SPARK)" $(RUN) pytest -m "not slow" $(OLD_SOCKETS) tests/spark $(PYTEST)

build/spark-%/ready: .venv/ready
	$(RUN) pip install --disable-pip-version-check --quiet --no-deps --upgrade --target $(@D) pyspark==$*
	touch $@

check: .venv/ready ## formatter, linter, types and import contracts
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) mypy
	$(BIN)/python -c 'from importlinter.cli import lint_imports_command; lint_imports_command()'

unit: .venv/ready ## the tests without servers; EXAMPLES=20 draws so many times as many (make test, test-python: 0.4)
	$(RUN) pytest tests/unit tests/wire -o asyncio_debug=true $(PYTEST)

slow: .venv/ready ## soak and scale runs
	$(RUN) pytest -m slow $(PYTEST)

chaos: .venv/ready ## seeded faults against real daemons: make chaos SEED=7 MINUTES=10 CLUSTER=1 BANK=1
	$(RUN) tests.chaos --seed $(or $(SEED),1) --minutes $(or $(MINUTES),5) $(if $(CLUSTER),--cluster) $(if $(BANK),--bank)

powercut: .venv/ready ## power cuts, judged; takes root and loop devices: make powercut SEED=7 CUTS=50 POWERCUT='--servers 3'
	$(RUN) tests.powercut --seed $(or $(SEED),1) --cuts $(or $(CUTS),20) $(POWERCUT)

ORACLES = tests/unit/compute/test_oracle.py tests/integration/test_oracle.py tests/spark/test_oracle.py tests/integration/test_table_oracle.py

oracle: .venv/ready ## 3,000 rounds of random graphs against brute force, 1,000 of tables against DuckDB, and 400 over the service; more with EXAMPLES=20
	EXAMPLES=$(or $(EXAMPLES),10) $(RUN) pytest $(IN_PARALLEL) $(PYTEST) $(ORACLES)

mutants: .venv/ready ## faults in the JetStream layer and the core, each against the tests of its statement or rule: make mutants ONLY=protocol
	$(RUN) tests.mutants --only "$(ONLY)"

bench: .venv/ready ## what it costs, beside the limits measured in the same run
	$(RUN) benchmarks

docs: .venv/ready ## the documentation as a site, in build/docs
	$(RUN) properdocs build --strict

audit: .venv/ready ## known vulnerabilities in what is installed; needs the internet
	$(PYTHON) -m venv .venv/audit
	.venv/audit/bin/python -m pip install --disable-pip-version-check --quiet 'pip-audit>=2.9'
	$(RUN) pip freeze --disable-pip-version-check --exclude-editable > .venv/audited.txt
	.venv/audit/bin/python -m pip_audit --strict --no-deps --disable-pip --requirement .venv/audited.txt

lock: ## deploy/requirements.lock, which the images are made of, anew from pyproject.toml
	$(PYTHON) -m venv .venv/lock
	.venv/lock/bin/python -m pip install --disable-pip-version-check --quiet 'uv>=0.13'
	.venv/lock/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate \
	  --no-header --extra server --extra tracing pyproject.toml --output-file deploy/requirements.lock

manifests: .venv/ready ## deploy/ as systemd, Grafana, KEDA and Prometheus read it; takes npm, too
	sed 's|^ExecStart=[^ ]*|ExecStart=/bin/true|' deploy/systemd/rebaser.service > .venv/rebaser.service
	systemd-analyze verify .venv/rebaser.service
	$(RUN) pytest -q -m slow tests/deploy/test_types.py

images: .venv/ready ## both images, built and run as deploy/compose.yaml says; takes root, buildah, runc, iproute2 and Debian's prometheus
	for each in thin daemon; do \
	  buildah bud --format docker --layers $(if $(BASE),--build-arg BASE=$(BASE)) $(BUILD) --target $$each \
	    --tag localhost/rebaser:$$(echo $$each | sed s/daemon/latest/) . || exit 1; \
	done
	$(RUN) tests.deploy.images

format: .venv/ready
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

define VENV
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Rebaser needs Python 3.11 or newer; try make PYTHON=python3.12")'
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --disable-pip-version-check --quiet -e '.[server,dev]' -e examples/debian
	@$(@D)/bin/rebaser --version > /dev/null 2>&1 || $(@D)/bin/python -c "$$NO_SCRIPTS"
	touch $@
endef

# What stands in for the scripts, and for `. .venv/bin/activate`, where they do not start.
define NO_SCRIPTS
import shlex, sys
print("The commands in .venv/bin do not start: a script cannot name a folder like this one. Say in each terminal:")
print(f'  rebaser() {{ {shlex.quote(sys.executable)} -m rebaser_server "$$@"; }}')
print(f'  python() {{ {shlex.quote(sys.executable)} "$$@"; }}')
endef
export NO_SCRIPTS

.venv/ready: pyproject.toml examples/debian/pyproject.toml
	$(VENV)

# Tests start Spark more than a hundred times: with the archive of its classes in half the processor time.
.venv/trained: .venv/ready
	$(RUN) rebaser_server train
	touch $@

build/python-%/ready: pyproject.toml examples/debian/pyproject.toml
	$(VENV)

clean:
	git clean -xdf
