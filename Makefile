# Two commands for a newcomer: `make demo` and `make test`. Both set up what they need, once.
PYTHON ?= python3
# On a machine without a GPU: TORCH_INDEX=<the CPU index named on PyTorch's install page> avoids CUDA.
TORCH_INDEX ?=
TORCH := torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INDEX := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

.PHONY: setup dev demo test test-slow lint doctor docs proto clean

setup: $(VENV)/.run
dev: $(VENV)/.dev

$(VENV)/.run: pyproject.toml
	@echo "== virtual environment and run-time packages (about 70 s, 540 MB to download, once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install -q --upgrade "pip>=25.1"
	@$(PIP) install --progress-bar on $(INDEX) "$(TORCH)" -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@echo "== test and lint packages (about 35 s, once)"
	@$(PIP) install -q $(INDEX) "$(TORCH)" --group test --group lint
	@touch $@

demo: setup
	@$(BIN)/headrace demo

test: dev
	@$(BIN)/headrace models pull smollm2-135m-instruct
	@$(BIN)/python -m pytest -m "not slow"

# What takes longer than about ten seconds a test: everything killed and edited under load, the built-in
# model against transformers, 1,000 made-up HTTP calls.
test-slow: dev
	@$(BIN)/headrace models pull smollm2-135m-instruct
	@$(BIN)/python -m pytest -m slow

lint: dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

docs: dev
	@$(BIN)/headrace docs

proto: dev
	@$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --grpc_python_out=. --pyi_out=. \
		contracts/headrace.proto

doctor: setup
	@$(BIN)/headrace doctor

clean:
	rm -rf $(VENV) .headrace
