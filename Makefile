PYTHON ?= python

.PHONY: help check test slow docs serve examples bench

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

check:  ## lint, format, types, contracts
	ruff check .
	ruff format --check .
	mypy
	lint-imports

test:  ## all tests but the slow ones
	$(PYTHON) -m pytest --quiet -n 2 --dist loadscope

slow:  ## the slow tests
	$(PYTHON) -m pytest --quiet -m "slow and not gpu"

docs:  ## build the documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet

serve:  ## show the documentation while you write
	NO_MKDOCS_2_WARNING=1 mkdocs serve

examples:  ## run every command and every block of Python in README and docs, and every config
	$(PYTHON) -m pytest --quiet tests/test_docs.py tests/test_configs.py

bench:  ## accuracy, bytes and seconds of the methods, in one table
	$(PYTHON) -m tools.papers.compare
