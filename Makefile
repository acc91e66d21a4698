# Start with `make demo` and `make test`. Each target creates .venv if it does not exist.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
TEST_OPTIONS ?= -n 2 --dist worksteal
# Python stores what it compiles, also where the environment forbids it: the tests start hundreds of processes.
export PYTHONDONTWRITEBYTECODE =
# The subjects of the commits after this one are checked.
COMMITS_SINCE ?= bf00fe82a39847366b1054af663ff59174b9d5ca

.PHONY: demo test test-exhaustive test-all check format docs figures pictures clean

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e ".[dev]"
	touch $@

$(VENV)/peers: $(VENV)/installed
	$(PIP) -e ".[peers]" || echo "kenlm cannot be built here; the tests that compare with it are skipped"
	touch $@

$(VENV)/docs: $(VENV)/installed
	$(PIP) -e ".[docs]"
	touch $@

demo: $(VENV)/installed
	@BIN=$(BIN) sh scripts/demo.sh

test: $(VENV)/peers
	$(BIN)/python -m pytest $(TEST_OPTIONS) -m "not exhaustive"

test-exhaustive: $(VENV)/peers
	$(BIN)/python -m pytest $(TEST_OPTIONS) -m exhaustive
	SERIATIM_EXAMPLES=150 $(BIN)/python -m pytest $(TEST_OPTIONS) tests/promises/test_10*.py

test-all: test test-exhaustive

check: $(VENV)/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python scripts/check_commit_subjects.py --since $(COMMITS_SINCE)

format: $(VENV)/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "The documentation is in site/index.html. To search in it: python3 -m http.server --directory site"

figures: $(VENV)/peers
	$(BIN)/python benchmarks/figures.py $(if $(DATA),--data $(DATA))

pictures: $(VENV)/installed
	$(BIN)/python scripts/screenshots.py

clean:
	rm -rf $(VENV) build dist site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
