# make demo   installs into .venv and runs the whole benchmark on synthetic images
# make test   installs into .venv and runs the tests
# make bench  times all stages at full size; PART=probes, extraction, data or validity: one of them
#
# PYTHON=…       a Python 3.11, 3.12 or 3.13
# DATA_ROOT=…    isic2019/, aptos2019/, chexpert/ in one folder, for the rows of make bench on real images
# TORCH_INDEX=…  a package index to take torch and torchvision from, such as PyTorch's for CPUs

PYTHON ?= python3
TORCH_INDEX ?=
PART ?= data extraction probes validity
DATA_ROOT ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
SNAKEMAKE := $(BIN)/snakemake
LOCKS := requirements/lock.txt requirements/torch.txt

.PHONY: install demo test lint acceptance bench lock clean

install: $(STAMP)

# The stamp is touched last: an interrupted installation is begun again.
$(STAMP): $(LOCKS) pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "crsbench: $(PYTHON) is not installed; call make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { echo "crsbench: Python 3.11 to 3.13 is needed, $(PYTHON) is $$($(PYTHON) -c 'import platform; print(platform.python_version())'); call make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "crsbench: $(PYTHON) lacks venv; install it (Debian, Ubuntu: apt install python3-venv) or call make PYTHON=/path/to/python3.12" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/lock.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) -r requirements/torch.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

demo: $(STAMP)
	$(SNAKEMAKE) --configfile config/demo.yaml
	$(BIN)/crsbench show --configfile config/demo.yaml

test: $(STAMP)
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/snakefmt --check Snakefile workflow/rules
	$(BIN)/mypy
	$(SNAKEMAKE) --lint

# The long checks, not part of CI: tests/workflow/test_acceptance.py, tests/workflow/test_slurm.py,
# tests/encoders/test_full_size.py and tests/probes/test_full_shapes.py say what each must show.
acceptance: $(STAMP)
	$(BIN)/python -m pytest -m acceptance -s

# Times at full size; no test depends on them. benchmarks/*.md has results and threads. The two
# variables choose OpenBLAS kernels for one machine's sake and would make times incomparable.
BENCH := env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE POLARS_MAX_THREADS=1 $(BIN)/python

bench: $(addprefix bench-,$(PART))

bench-probes: $(STAMP)
	$(BENCH) benchmarks/bench_probes.py $(if $(DATA_ROOT),--data-root $(DATA_ROOT))

bench-extraction: $(STAMP)
	$(BENCH) benchmarks/bench_extraction.py > benchmarks/extraction.md.part
	mv benchmarks/extraction.md.part benchmarks/extraction.md

bench-data bench-validity: bench-%: $(STAMP)
	$(BENCH) benchmarks/bench_$*.py

lock:
	uv pip compile pyproject.toml --group dev --universal --python-version 3.11 --no-header \
	  --generate-hashes --output-file requirements/lock.txt $(addprefix --no-emit-package ,$(shell cat requirements/with-torch.txt))

clean:
	rm -rf $(VENV) .snakemake .mypy_cache .ruff_cache .pytest_cache
