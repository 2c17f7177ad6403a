# Everything a user or a developer types. Needs Python 3.11+ (with venv) and make; the rest is installed into .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
VLLM   ?= .venv-vllm

.DEFAULT_GOAL := help
.PHONY: help run test test-vllm check format docs bench dist clean

help: ## list these commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/' | expand -t 22

# One environment for all: installing twice costs more than a few megabytes of test tools.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ": make PYTHON=python3.12 ...") if sys.version_info < (3, 11) else None'
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing into $(VENV) (a minute or more the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

run: $(READY) ## show it: agent sessions through a real Envoy, SMetric against round robin (ARGS=--help)
	@trap : INT; $(BIN)/python -m loadgen demo $(ARGS) || test $$? -eq 130 # Ctrl-C is no error

test: $(READY) ## run all tests, on a real Envoy and a real Redis (ARGS="-k NAME" runs some)
	@$(BIN)/python -m pytest $(ARGS)

test-vllm: $(READY) ## test against two real vLLM instances on the CPU (downloads 3.5 GB)
	@echo "making $(VLLM): 3.5 GB and some minutes the first time, quiet meanwhile"
	@bash tests/vllm/setup.sh $(VLLM)
	@SMETRIC_VLLM=$(abspath $(VLLM)) $(BIN)/python -m pytest tests/vllm $(ARGS)

check: $(READY) ## check format, lint, imports between rooms (also indirect ones) and types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/mypy

format: $(READY) ## format the code, and repair what ruff can
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: $(READY) ## write again the parts of docs/ that are made from code
	@$(BIN)/python -m docs.tools.pages

bench: $(READY) ## run every benchmark; they print tables, and fail where a request was not decided
	@for name in start prompt policies index large_pool events decision profile cost; do echo "== $$name"; $(BIN)/python -m bench.$$name || exit 1; done

dist: $(READY) ## build the wheel into dist/
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps -w dist .

clean: ## remove everything that make created
	rm -rf $(VENV) .venv-vllm .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis out build dist *.egg-info
