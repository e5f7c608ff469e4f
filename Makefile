# gemma3.h itself needs no building. This makes the examples, the fixtures and the tests; `make help` lists the targets.
# From outside: CC, CFLAGS, CXX, CXXFLAGS, LDFLAGS, LDLIBS, JOBS (how many compilers and test programs run at once).

MAKEFLAGS += --no-print-directory

JOBS     ?= 2
NATIVE   := $(shell $(CC) -march=native -E -x c /dev/null >/dev/null 2>&1 && echo -march=native)
WARN     ?= -Wall -Wextra
CFLAGS   ?= -O3 $(NATIVE) -std=c99 $(WARN)
CXX      ?= g++
CXXFLAGS ?= -O3 $(NATIVE) -std=c++11 $(WARN)
LDLIBS   ?= -lm -lpthread -ldl

ASAN = -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
TSAN = -O1 -g -fsanitize=thread
MSAN = -O1 -g -fsanitize=memory -fno-omit-frame-pointer

export ASAN_OPTIONS  ?= detect_leaks=1:detect_stack_use_after_return=1:allocator_may_return_null=1
export UBSAN_OPTIONS ?= print_stacktrace=1
export CC CXX JOBS

# Tests are found by their names. A test is a C file, or a script that run.sh starts; model/test_real* want the real 270M, or more time than `quick` has.
real     = $(filter tests/model/test_real%,$(1))
quick    = $(filter-out tests/model/test_real%,$(1))
SOURCES := $(wildcard tests/unit/test_*.c tests/ops/test_*.c tests/model/test_*.c)
SCRIPTS := $(wildcard tests/unit/test_*.sh tests/unit/test_*.py tests/model/test_*.sh tests/model/test_*.py)
THREADS := $(wildcard $(addprefix tests/,unit/test_platform.c model/test_threads.c))
QUICK   := $(patsubst tests/%.c,build/%,$(call quick,$(SOURCES))) $(call quick,$(SCRIPTS)) tests/compile/matrix.sh
REAL    := $(patsubst tests/%.c,build/%,$(call real,$(SOURCES))) $(call real,$(SCRIPTS))
BENCH   := $(patsubst tests/%.c,build/%,$(wildcard tests/*/bench_*.c))
SAN      = $(patsubst tests/%.c,build/asan/%,$(call quick,$(SOURCES))) build/asan/model/test_real_short $(CARDSAN) $(patsubst tests/%.c,build/tsan/%,$(THREADS)) $(if $(HAS_MSAN),$(patsubst tests/%.c,build/msan/%,$(MEMORY)))
MEMORY   = tests/model/test_forward.c tests/model/test_generate.c tests/model/test_chat.c tests/model/test_vision_session.c
ARM64    = $(if $(HAS_ARM64),$(addprefix build/arm64/,unit/test_numbers unit/test_json unit/test_safetensors unit/test_tokenizer ops/test_ops ops/test_screen model/test_forward))
HAS_ARM64 = $(shell echo 'int main(void) { return 0; }' | aarch64-linux-gnu-gcc -static -x c - -o /dev/null 2>/dev/null && command -v qemu-aarch64)
HAS_MSAN = $(shell echo 'int main(void) { return 0; }' | clang -fsanitize=memory -x c - -o /dev/null 2>/dev/null && echo yes)
# The emulated card and its tests. They want NVRTC, which is fetched where no toolkit is; the coverage gate looks at text and needs no sanitizer.
CARD    := $(patsubst tests/%.c,build/%,$(wildcard tests/fakecuda/test_*.c)) $(wildcard tests/fakecuda/test_*.sh tests/fakecuda/test_*.py)
CARDSAN := $(patsubst tests/%.c,build/asan/%,$(filter-out tests/fakecuda/test_coverage.c,$(wildcard tests/fakecuda/test_*.c))) build/tsan/fakecuda/test_threads
CARDLIB := $(patsubst tests/%.c,%.o,$(filter-out tests/fakecuda/test_% tests/fakecuda/bench_%,$(wildcard tests/fakecuda/*.c)))
# The CUDA backend on that card. Both are needed to build and to run.
CUDA    := $(patsubst tests/%.c,build/%,$(wildcard tests/cuda/test_*.c)) $(wildcard tests/cuda/test_*.sh tests/cuda/test_*.py) $(addprefix build/cuda/model/test_,forward probe session vision)
EXAMPLES := $(patsubst examples/%.c,build/%,$(wildcard examples/*.c))
ifneq ($(shell command -v $(firstword $(CXX)) 2>/dev/null),)
EXAMPLES += $(patsubst examples/%.cc,build/%,$(wildcard examples/*.cc))
endif
FIXTURES := $(patsubst tests/golden/%.tar.xz,build/golden/%.ok,$(wildcard tests/golden/*.tar.xz))
DEPS = -MMD -MP -MT $@ -MF $@.d

# ---- for everyone

## all: the example programs, and gemma3.h as a shared library for other languages, into build/
all: $(EXAMPLES) build/libgemma3.so

## model: fetches the real Gemma 3 270M (240 MB; Gemma's own terms apply) into build/gemma-3-270m and, in 4 bits, build/gemma-3-270m-nf4
model:
	@sh tests/tools/need.sh gcc libc6-dev
	@$(MAKE) -s build/import_gguf build/quantize
	@sh tests/tools/get_270m.sh

## demo: makes what is missing, then the real 270M writes on this machine's CPU
demo:
	@sh tests/tools/need.sh gcc libc6-dev
	@$(MAKE) -s $(PARALLEL) build/chat build/import_gguf build/quantize
	@$(MAKE) -s model
	@sh tests/tools/demo.sh

## demo-vision: the whole path of a picture on a model of the 4B's widths with random weights (2.2 GB, made here); what it says is nonsense
demo-vision:
	@sh tests/tools/need.sh gcc libc6-dev python3 python3-venv
	@sh tests/tools/need.sh --try libstb-dev
	@$(MAKE) -s $(PARALLEL) build/chat build/describe build/import_gguf build/quantize
	@$(MAKE) -s model
	@sh tests/tools/demo_vision.sh
.PHONY: demo-vision

## quick: all tests that need neither network nor weights (cc, make, xz and sh are enough; the rest skips)
quick:
	@sh tests/tools/need.sh gcc libc6-dev xz-utils
	@$(MAKE) $(PARALLEL) all $(FIXTURES)
	-@$(MAKE) -k $(PARALLEL) $(filter build/%,$(QUICK))
	@sh tests/run.sh quick $(QUICK)

## test: quick, everything that runs on the real 270M, the emulated card and the CUDA backend on it (test-fakecuda, test-cuda)
test: packages
	@$(MAKE) $(PARALLEL) all $(FIXTURES)
	@$(MAKE) model
	-@$(MAKE) -k $(PARALLEL) $(filter build/%,$(REAL) $(CARD) $(CUDA) $(QUICK))
	@sh tests/run.sh test $(REAL) $(CARD) $(CUDA) $(QUICK)

## clean: forgets what was built, but not the downloaded model; `make distclean` forgets that too
clean:
	@for f in build/*; do case $$f in build/gemma-*|build/download*|build/nvrtc-*|build/cuda-headers-*) ;; *) rm -rf "$$f" ;; esac; done
distclean:
	@rm -rf build

# ---- for those who change the header

## embed: copies gemma3_kernels.cuh into gemma3.h, between the markers; tests/unit/test_embed.c tells when it is due
embed:
	@LC_ALL=C awk -f tests/embed.awk gemma3_kernels.cuh gemma3.h > gemma3.h.tmp || { rm -f gemma3.h.tmp; exit 1; }
	@if cmp -s gemma3.h.tmp gemma3.h; then rm -f gemma3.h.tmp; else mv gemma3.h.tmp gemma3.h && echo "gemma3.h: kernels embedded"; fi

## matrix: the header under each compiler, standard and GEMMA3_NO_* option here; warnings are errors
matrix:
	@sh tests/run.sh matrix tests/compile/matrix.sh

## test-fakecuda: the emulated card (tests/fakecuda): its driver, its checks, its PTX interpreter; kernels are compiled by NVRTC, fetched if need be
test-fakecuda:
	@sh tests/tools/need.sh gcc libc6-dev
	@sh tests/tools/need.sh --try python3 python3-pip
	-@$(MAKE) -k $(PARALLEL) $(filter build/%,$(CARD))
	@sh tests/run.sh test-fakecuda $(CARD)
.PHONY: test-fakecuda

## test-cuda: the CUDA backend on the emulated card: every kernel, whole models, and all that can go wrong on the way
test-cuda: $(FIXTURES)
	@sh tests/tools/need.sh gcc libc6-dev xz-utils
	@sh tests/tools/need.sh --try python3 python3-pip
	-@$(MAKE) -k $(PARALLEL) $(filter build/%,$(CUDA))
	@sh tests/run.sh test-cuda $(CUDA)
.PHONY: test-cuda

## ptx: writes build/gemma3_kernels.sm_80.ptx, for kernel_path (chat --kernels) on machines without NVRTC; PRECISE=1: its kernels
ptx: build/gemma3_kernels.sm_80.ptx
build/gemma3_kernels.sm_80.ptx: build/tools/ptx
	@sh tests/tools/need.sh --try python3 python3-pip
	@nvrtc=$$(sh tests/tools/get_nvrtc.sh) && build/tools/ptx "$$(dirname "$$nvrtc")" $@ && ls -l $@
.PHONY: ptx

## lab: the 270M on the emulated card, a few tokens, then what each kernel asked of it; KERNELS=my.cuh tries other kernels, N, PROMPT, MODEL, CARD, FLAGS as in tests/tools/lab.sh
lab:
	@sh tests/tools/need.sh gcc libc6-dev
	@sh tests/tools/need.sh --try python3 python3-pip
	@$(MAKE) -s $(PARALLEL) build/chat build/fakecuda/libcuda.so.1
	@$(MAKE) -s model
	@sh tests/tools/lab.sh
.PHONY: lab

## sanitize: the tests that need no weights, and a few tokens of the 270M if it is here, under ASan and UBSan; threads under TSan, whole models under MSan
sanitize:
	@sh tests/tools/need.sh gcc libc6-dev xz-utils
	@$(MAKE) $(PARALLEL) $(FIXTURES)
	-@$(MAKE) -k $(PARALLEL) $(SAN)
	@sh tests/run.sh sanitize $(SAN)

## test-arm64: cross-compiles for ARM64 and runs units, operations and tiny models under qemu; their times mean nothing
test-arm64:
	@sh tests/tools/need.sh gcc libc6-dev xz-utils gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
	@$(MAKE) $(PARALLEL) $(FIXTURES)
	-@$(MAKE) -k $(PARALLEL) $(ARM64)
	@sh tests/run.sh arm64 $(ARM64)

## bench: how fast the 270M reads and writes beside this machine's own ceilings, then the parts; speed is printed, never tested
bench: model build/bench $(BENCH)
	@for m in gemma-3-270m-nf4 gemma-3-270m; do build/bench -m build/$$m && build/bench -m build/$$m --screened-head off && build/bench -m build/$$m --load || exit 1; done
	@build/bench -m build/gemma-3-270m-nf4 -p 128 -d 8000 -n 32 && build/bench -m build/gemma-3-270m-nf4 -p 128 -d 128 -n 32
	@for b in $(BENCH); do $$b || exit 1; done

## bench-peer: builds llama.cpp from the PyPI source package llama-cpp-python, then reads and writes the same in turns with it
bench-peer: model build/bench
	@sh tests/tools/need.sh gcc libc6-dev g++ cmake python3 python3-venv
	@python3 tests/tools/bench_peer.py

## sizes: the README's table of memory, planned from headers alone for the five published sizes
sizes: build/tools/sizes
	@build/tools/sizes

## ci: everything above on a fresh machine, with one sum at the end
ci: packages
	@$(MAKE) $(PARALLEL) all $(FIXTURES)
	@$(MAKE) model
	-@$(MAKE) -k $(PARALLEL) $(filter build/%,$(REAL) $(CARD) $(CUDA) $(QUICK)) $(SAN) $(ARM64)
	@sh tests/run.sh ci $(REAL) $(CARD) $(CUDA) $(QUICK) $(SAN) $(ARM64)

## help: this list
help:
	@sed -n 's/^## \([a-z0-9-]*\): /\1: /p' Makefile | awk -F': ' '{ name = $$1; sub(/^[a-z0-9-]*: /, ""); printf "make %-10s %s\n", name, $$0 }'

# ---- how

packages:
	@sh tests/tools/need.sh gcc libc6-dev xz-utils
	@sh tests/tools/need.sh --try g++ clang curl python3 python3-pip libstb-dev libreadline-dev gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user

PARALLEL = $(if $(findstring -j,$(MAKEFLAGS)),,-j$(JOBS))
READLINE = $(shell sh tests/tools/readline.sh)
build/chat: EXTRA = $(READLINE)

build/%: examples/%.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -I. $(DEPS) $< -o $@ $(LDFLAGS) $(EXTRA) $(LDLIBS)
build/%: examples/%.cc
	@mkdir -p $(@D)
	$(CXX) $(CXXFLAGS) -I. $(DEPS) $< -o $@ $(LDFLAGS) $(LDLIBS)
build/libgemma3.so: gemma3.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -fPIC -shared -DGEMMA3_IMPLEMENTATION -x c gemma3.h -o $@ $(LDFLAGS) $(LDLIBS)

# Tests compile for speed of compiling; what runs on the real model, and the benchmarks, as users do. Shared helpers may go unused.
TESTFLAGS = $(CFLAGS) -Wno-unused-function -g
build/unit/% build/model/%: TESTFLAGS += -O1
build/ops/%: TESTFLAGS = $(CFLAGS) -Wno-unused-function -g -O2
build/ops/bench_% build/model/bench_% build/model/test_real_%: TESTFLAGS = $(CFLAGS) -Wno-unused-function -g
build/unit/%: tests/unit/%.c
	@mkdir -p $(@D)
	$(CC) $(TESTFLAGS) -I. $(DEPS) $< -o $@ $(LDFLAGS) $(LDLIBS)
build/ops/%: tests/ops/%.c
	@mkdir -p $(@D)
	$(CC) $(TESTFLAGS) -I. $(DEPS) $< -o $@ $(LDFLAGS) $(LDLIBS)
build/model/%: tests/model/%.c
	@mkdir -p $(@D)
	$(CC) $(TESTFLAGS) -I. $(DEPS) $< -o $@ $(LDFLAGS) $(LDLIBS)
build/cuda/%: TESTFLAGS += -O1 -D_GNU_SOURCE
build/cuda/%: tests/cuda/%.c | build/fakecuda/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(TESTFLAGS) -I. $(DEPS) $< -o $@ $(LDFLAGS) $(LDLIBS)
# Tests of whole models, on the emulated card.
build/cuda/model/%: tests/model/%.c | build/fakecuda/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(TESTFLAGS) -include tests/cuda/on_card.h -I. $(DEPS) $< -o $@ $(LDFLAGS) $(LDLIBS)
build/tools/%: tests/tools/%.c
	@mkdir -p $(@D)
	$(CC) $(TESTFLAGS) -I. $(DEPS) $< -o $@ $(LDFLAGS) $(LDLIBS)

# The emulated card is a libcuda.so.1 that tests open by its path. Its arithmetic must stay as written: no contraction, no type-based aliasing.
CARDFLAGS = -std=gnu11 -g $(WARN) -fno-strict-aliasing -ffp-contract=off -fPIC -fvisibility=hidden -Itests/fakecuda
CARDTEST  = -std=gnu11 -g $(WARN) -Wno-unused-function -fno-strict-aliasing -ffp-contract=off -Itests/fakecuda
build/fakecuda/exec_mma.o build/asan/fakecuda/exec_mma.o build/tsan/fakecuda/exec_mma.o: CARDFLAGS += -ffp-contract=fast
build/fakecuda/%.o: tests/fakecuda/%.c
	@mkdir -p $(@D)
	$(CC) -O3 $(CARDFLAGS) $(DEPS) -c $< -o $@
build/asan/fakecuda/%.o: tests/fakecuda/%.c
	@mkdir -p $(@D)
	$(CC) $(CARDFLAGS) $(ASAN) $(DEPS) -c $< -o $@
build/tsan/fakecuda/%.o: tests/fakecuda/%.c
	@mkdir -p $(@D)
	$(CC) $(CARDFLAGS) $(TSAN) $(DEPS) -c $< -o $@
build/fakecuda/libcuda.so.1: $(addprefix build/,$(CARDLIB))
	$(CC) -shared -Wl,-soname,libcuda.so.1 $^ -o $@ -lpthread -lm
build/asan/fakecuda/libcuda.so.1: $(addprefix build/asan/,$(CARDLIB))
	$(CC) -shared $(ASAN) -Wl,-soname,libcuda.so.1 $^ -o $@ -lpthread -lm
build/tsan/fakecuda/libcuda.so.1: $(addprefix build/tsan/,$(CARDLIB))
	$(CC) -shared $(TSAN) -Wl,-soname,libcuda.so.1 $^ -o $@ -lpthread -lm
build/fakecuda/%: tests/fakecuda/%.c | build/fakecuda/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) -O2 $(CARDTEST) $(DEPS) $< -o $@ -ldl -lpthread -lm
build/asan/fakecuda/%: tests/fakecuda/%.c | build/asan/fakecuda/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) -DFAKECUDA_LIBRARY='"build/asan/fakecuda/libcuda.so.1"' $(CARDTEST) $(ASAN) $(DEPS) $< -o $@ -ldl -lpthread -lm

build/tsan/fakecuda/%: tests/fakecuda/%.c | build/tsan/fakecuda/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) -DFAKECUDA_LIBRARY='"build/tsan/fakecuda/libcuda.so.1"' $(CARDTEST) $(TSAN) $(DEPS) $< -o $@ -ldl -lpthread -lm

build/asan/%: tests/%.c
	@mkdir -p $(@D)
	$(CC) $(TESTFLAGS) $(ASAN) -I. $(DEPS) $< -o $@ $(LDFLAGS) $(LDLIBS)
build/tsan/%: tests/%.c
	@mkdir -p $(@D)
	$(CC) $(TESTFLAGS) $(TSAN) -I. $(DEPS) $< -o $@ $(LDFLAGS) $(LDLIBS)
build/arm64/%: tests/%.c
	@mkdir -p $(@D)
	aarch64-linux-gnu-gcc -O2 -std=c99 $(WARN) -Wno-unused-function -static -I. $(DEPS) $< -o $@ $(LDFLAGS) $(LDLIBS)
build/msan/%: tests/%.c
	@mkdir -p $(@D)
	clang -std=c99 -Wno-unused-function $(MSAN) -I. $(DEPS) $< -o $@ $(LDFLAGS) $(LDLIBS)
build/golden/%.ok: tests/golden/%.tar.xz
	@rm -rf build/golden/$* && mkdir -p build/golden/$*
	xz -dc $< | tar -xf - -C build/golden/$*
	@touch $@

-include $(wildcard build/*.d build/*/*.d build/*/*/*.d)
.PHONY: all model demo quick test clean distclean embed matrix sanitize test-arm64 bench bench-peer sizes ci help packages
.DELETE_ON_ERROR:
