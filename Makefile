PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test slow check bench docs site mutants clean

# Everything is installed into .venv once, and again when pyproject.toml changes.
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable ".[all,dev,docs]"
	touch $@

demo: $(VENV)/.installed            ## the main job on built-in data
	$(BIN)/starseq demo

test: $(VENV)/.installed            ## the whole suite but what is marked slow
	$(BIN)/python -m pytest -q -n 2 -m "not slow"

slow: $(VENV)/.installed            ## what takes minutes
	$(BIN)/python -m pytest -q -n 2 -m slow

check: $(VENV)/.installed           ## style, types, who imports whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.installed           ## this machine against torch; appends to benchmarks/results.csv
	$(BIN)/starseq bench --save benchmarks/results.csv
	$(BIN)/python benchmarks/measure.py data $(if $(wildcard ../shared/data),--corpora ../shared/data) --save benchmarks/results.csv

docs: $(VENV)/.installed            ## the generated tables, plots and drawings in docs/ and README.md
	$(BIN)/python docs/build.py

site: $(VENV)/.installed            ## the site, into site/; a link that leads nowhere is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

mutants: $(VENV)/.installed         ## breaks the code in known ways and expects the suite to notice
	$(BIN)/python tests/mutants.py

clean:
	rm -rf $(VENV) build dist site src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
