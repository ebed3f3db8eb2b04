# Everything runs in .venv, which is made from pyproject.toml alone.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-long test-python check format unit slow chaos powercut mutants bench docs clean audit manifests images

demo: .venv/ready ## the main job, on real input
	$(BIN)/rebaser demo $(DEMO)

# Processes that tests run in; 0 for this one alone.
WORKERS ?= 2
IN_PARALLEL = -n $(WORKERS) --dist loadgroup

test: check ## every check, and all tests but the long ones; on more cores: make test WORKERS=4
	EXAMPLES=$(or $(EXAMPLES),0.4) $(BIN)/pytest -m "not long and not slow" $(IN_PARALLEL) $(PYTEST)

test-long: .venv/ready ## the long tests; CI runs them, too
	$(BIN)/pytest -m "long and not slow" -o asyncio_debug=true $(IN_PARALLEL) $(PYTEST)

OTHER = build/python-$(shell $(PYTHON) -c 'import platform; print(platform.python_version())')

test-python: ## what tells Pythons apart: make test-python PYTHON=python3.13
	$(MAKE) $(OTHER)/ready
	EXAMPLES=$(or $(EXAMPLES),0.4) $(OTHER)/bin/python -m pytest -m "not long and not slow" -o asyncio_debug=true $(IN_PARALLEL) $(PYTEST) \
	  tests/unit tests/wire tests/schedules tests/integration/test_crashing_functions.py

check: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: .venv/ready ## the tests without servers; EXAMPLES=20 draws so many times as many (make test, test-python: 0.4)
	$(BIN)/pytest tests/unit tests/wire -o asyncio_debug=true $(PYTEST)

slow: .venv/ready ## soak and scale runs
	$(BIN)/pytest -m slow $(PYTEST)

chaos: .venv/ready ## seeded faults against real daemons: make chaos SEED=7 MINUTES=10 CLUSTER=1
	$(BIN)/python -m tests.chaos --seed $(or $(SEED),1) --minutes $(or $(MINUTES),5) $(if $(CLUSTER),--cluster)

powercut: .venv/ready ## power cuts, judged; takes root and loop devices: make powercut SEED=7 CUTS=50 POWERCUT='--servers 3'
	$(BIN)/python -m tests.powercut --seed $(or $(SEED),1) --cuts $(or $(CUTS),20) $(POWERCUT)

mutants: .venv/ready ## faults in the JetStream layer and the core, each against the tests of its statement or rule: make mutants ONLY=protocol
	$(BIN)/python -m tests.mutants --only "$(ONLY)"

bench: .venv/ready ## what it costs, beside the limits measured in the same run
	$(BIN)/python -m benchmarks

docs: .venv/ready ## the documentation as a site, in build/docs
	$(BIN)/properdocs build --strict

audit: .venv/ready ## known vulnerabilities in what is installed; needs the internet
	$(PYTHON) -m venv .venv/audit
	.venv/audit/bin/pip install --disable-pip-version-check --quiet 'pip-audit>=2.9'
	$(BIN)/pip freeze --disable-pip-version-check --exclude-editable > .venv/audited.txt
	.venv/audit/bin/pip-audit --strict --no-deps --disable-pip --requirement .venv/audited.txt

manifests: .venv/ready ## deploy/ as kubectl, systemd, Grafana and KEDA read it; takes npm, too
	for each in base overlays/connect overlays/keda; do \
	  kubectl kustomize deploy/kubernetes/$$each > .venv/rendered.yaml || exit 1; \
	  $(BIN)/python -m tests.deploy .venv/rendered.yaml || exit 1; \
	done
	sed 's|^ExecStart=[^ ]*|ExecStart=/bin/true|' deploy/systemd/rebaser.service > .venv/rebaser.service
	systemd-analyze verify .venv/rebaser.service
	$(BIN)/pytest -q -m slow tests/deploy/test_types.py

images: .venv/ready ## both images, built and run as deploy/compose.yaml says; takes root, buildah, runc, iproute2 and Debian's prometheus
	for each in thin daemon; do \
	  buildah bud --format docker --layers $(if $(BASE),--build-arg BASE=$(BASE)) $(BUILD) --target $$each \
	    --tag localhost/rebaser:$$(echo $$each | sed s/daemon/latest/) . || exit 1; \
	done
	$(BIN)/python -m tests.deploy.images

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

define VENV
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Rebaser needs Python 3.11 or newer; try make PYTHON=python3.12")'
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --disable-pip-version-check --quiet -e '.[server,dev]' -e examples/debian
	touch $@
endef

.venv/ready: pyproject.toml examples/debian/pyproject.toml
	$(VENV)

build/python-%/ready: pyproject.toml examples/debian/pyproject.toml
	$(VENV)

clean:
	git clean -xdf
