# Everything runs in its own virtual environment; the stamp file shows that it is up to date.
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Without compiled files, every test process would compile its imports again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-fast test-long lint bench docs clean

demo: $(STAMP)
	$(BIN)/fedpca demo

# Use more workers than cores, because tests of federations mostly wait, and one BLAS thread, because more
# would only get in each other's way. tests/conftest.py decides the order.
test: export OPENBLAS_NUM_THREADS := 1
test: $(STAMP)
	.ci/system-packages
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder -m "not long" --durations=25 \
		--cov --cov-report=term-missing:skip-covered

test-fast: export OPENBLAS_NUM_THREADS := 1
test-fast: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not process and not slow and not long" -q

# Repeat with many random draws what `make test` shows with few.
test-long: export OPENBLAS_NUM_THREADS := 1
test-long: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m "long or hypothesis" --hypothesis-profile=long

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python benchmarks/exact.py
	$(BIN)/python benchmarks/many_sites.py
	$(BIN)/python benchmarks/wide.py
	$(BIN)/python benchmarks/cluster.py
	$(BIN)/python benchmarks/streaming.py
	$(BIN)/python benchmarks/personalized.py
	$(BIN)/python benchmarks/robust.py
	$(BIN)/python benchmarks/flower.py
	$(BIN)/python benchmarks/ranks.py
	$(BIN)/python benchmarks/busy.py
	$(BIN)/python benchmarks/peers.py
	$(BIN)/python benchmarks/alternatives.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/genotypes.py

# Build the site from the pages that the repository shows and the examples of the gallery. The site loads
# nothing from elsewhere. Any warning stops the build.
docs: export OPENBLAS_NUM_THREADS := 1
docs: $(STAMP)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

$(STAMP): pyproject.toml
	python3 -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) docs/_build docs/gallery .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
