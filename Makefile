# Everything runs in .venv, made from requirements-dev.lock on first use.
#   make run    make test    make bench    make check
# PYTHON=python3.12 picks another interpreter; ARGS="-k server" goes to pytest or to fedsim.

PYTHON ?= python3
ARGS ?=
PEERS ?=
RESULTS := benchmarks/results
VENV := .venv
PY := $(VENV)/bin/python
LOG := $(VENV)/log.txt
LOCK := requirements-dev.lock

# Another torch or site-packages on the path would take the place of the locked one.
unexport PYTHONPATH
export PIP_DISABLE_PIP_VERSION_CHECK := 1

VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
TOO_OLD := $(filter 2.% 3.0 3.1 3.2 3.3 3.4 3.5 3.6 3.7 3.8 3.9,$(VERSION))
# The stamp carries the lock, the interpreter and the folder: change one and the environment is made anew.
LOCKED := $(VENV)/locked-$(shell { cat $(LOCK); echo "$(VERSION) $(CURDIR)"; } | cksum | cut -d' ' -f1)
INSTALLED := $(VENV)/installed
BUILT := $(VENV)/built

# With a compiler at hand a failing build is an error; without one the library runs on PyTorch alone.
CXX_FOUND := $(shell command -v $${CXX:-g++} || command -v c++ || command -v clang++)
FATCLIP_BUILD ?= $(if $(CXX_FOUND),cpu,auto)

CXX_FILES = $(shell find csrc $(wildcard tests/csrc tests/host_cuda tests/far_device) -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')

say = @echo "fatclip: $(1)"
# Runs a command; what it wrote is shown only if it failed.
quietly = @mkdir -p $(VENV) && $(1) > $(LOG) 2>&1 || { cat $(LOG); echo "fatclip: $(2)" >&2; exit 1; }

.PHONY: help run test bench check clean always

help:
	@echo "make run     the paper's synthetic experiments: tables, figures, reports"
	@echo "make test    static checks, then all tests"
	@echo "make check   static checks only: ruff, mypy, clang-format"
	@echo "make bench   time kernels and simulated rounds; writes benchmarks/results and the tables"
	@echo "make clean   remove .venv, build products and caches"

run: $(BUILT)
	@$(PY) -m fedsim run synthetic-cauchy $(ARGS)
	@$(PY) -m fedsim run synthetic-alpha $(ARGS)

test: check
	$(call say,pytest)
	@$(PY) -m pytest $(ARGS)

# PEERS=pfl,fedjax,flwr compares with them, too; their environments are made under ~/.cache/fatclip.
bench: $(BUILT)
	@$(PY) -m benchmarks kernels --out $(RESULTS) --readme benchmarks/README.md
	@$(PY) -m benchmarks rounds --peers "$(PEERS)" --out $(RESULTS) --readme benchmarks/README.md
	@$(PY) -m benchmarks growth --out $(RESULTS)
	@$(PY) -m benchmarks engines --out $(RESULTS)

check: $(BUILT)
	$(call say,ruff check)
	@$(PY) -m ruff check --quiet .
	$(call say,ruff format --check)
	@$(PY) -m ruff format --quiet --check .
	$(call say,mypy --strict fatclip_ops)
	@$(PY) -m mypy --strict --no-error-summary fatclip_ops
	$(call say,clang-format)
	@$(VENV)/bin/clang-format --dry-run -Werror $(CXX_FILES)

clean:
	@rm -rf $(VENV) build dist *.egg-info fatclip_ops/_native*.so fatclip_ops/_cuda*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks

$(LOCKED):
	$(if $(VERSION),,$(error fatclip needs Python 3.10 or newer, and `$(PYTHON)` does not run here; name one with `make PYTHON=...`))
	$(if $(TOO_OLD),$(error fatclip needs Python 3.10 or newer, and `$(PYTHON)` is $(VERSION); name another with `make PYTHON=...`))
	$(call say,making $(VENV) with Python $(VERSION))
	@rm -rf $(VENV)
	$(call quietly,$(PYTHON) -m venv $(VENV),'$(PYTHON) -m venv' failed; on Debian and Ubuntu it comes with the package python3-venv)
	$(call say,installing $(LOCK) (a minute or two)...)
	$(call quietly,$(PY) -m pip install -r $(LOCK),the packages of $(LOCK) were not installed)
	@touch $@

# The package is linked once; the extension is built apart, in build/, where ninja compiles only what has changed.
$(INSTALLED): $(LOCKED) setup.py pyproject.toml
	$(call quietly,FATCLIP_BUILD=none $(PY) -m pip install --no-build-isolation --no-deps -e .,the package was not installed)
	@touch $@

CUDA_MISSING := $(if $(filter cuda,$(FATCLIP_BUILD)),$(if $(wildcard fatclip_ops/_cuda*.so),,always))
$(BUILT): $(INSTALLED) $(shell find csrc) $(if $(wildcard fatclip_ops/_native*.so),,always) $(CUDA_MISSING)
	$(call say,building the native extension)
	$(call quietly,FATCLIP_BUILD=$(FATCLIP_BUILD) $(PY) setup.py build_ext --inplace,the build failed; FATCLIP_BUILD=none leaves the native extension out)
	@grep -h '^fatclip: ' $(LOG) || true
	@touch $@
