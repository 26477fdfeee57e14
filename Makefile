# telapi: run `make` to list the targets.

SHELL         := bash
.SHELLFLAGS   := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS     += --no-print-directory

ifeq ($(shell command -v go),)
$(error Go is not on PATH: install the version named in go.mod, or a newer one)
endif

VERSION ?= $(shell cat VERSION)
TOOLS   := bin/tools

# File names contain the version, so that a new pin builds a new file.
GOLANGCI := $(TOOLS)/golangci-lint-v2.13.0
GOVULNCHECK := $(TOOLS)/govulncheck-v1.8.0

# VCS stamping fails in clones with another owner, for example in containers. The
# version comes from the VERSION file.
export GOFLAGS := $(strip $(shell go env GOFLAGS) -buildvcs=false)
export PATH := $(CURDIR)/$(TOOLS)/node/bin:$(PATH)

# Packages with golden files: their tests register a flag -update.
GOLDEN = $(shell grep -rl --include='*_test.go' 'flag\.Bool.*"update"' --exclude-dir=node_modules . | xargs -r -n1 dirname | sort -u)

LDFLAGS := -s -w -X main.version=$(VERSION)

# All builds but those of releases have these flags, so that everything is compiled
# once. Compilers need a sixth less CPU time without debug information, which LDFLAGS drop.
BUILD := CGO_ENABLED=0 GOFLAGS='$(GOFLAGS) -trimpath -gcflags=all=-dwarf=false'

STEP := scripts/step.sh
SDK  := sdk/js
WEB  := web
REDOCLY := env REDOCLY_TELEMETRY=off REDOCLY_SUPPRESS_UPDATE_NOTICE=true npx --yes @redocly/cli@2.73.0
NPM  := npm --no-audit --no-fund --no-update-notifier --prefix

.PHONY: node help run phone build test check simulate simulate-fixed simulate-commit bench fuzz mutate campaign audit release lint fmt generate clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: build ## Build, then run everything on embedded stores, with a demo bot
	bin/telapi dev $(ARGS)

# ARGS are those of telapi dev.
phone: build ## Run everything and a call runtime that speaks SIP: call the printed address
	$(BUILD) go -C examples/phone build -o $(CURDIR)/bin/phone .
	@scripts/phone.sh $(ARGS)

build: ## Build bin/telapi, a static binary
	$(BUILD) go build -ldflags '$(LDFLAGS)' -o bin/telapi ./cmd/telapi

# Tests of built programs and of texts, which only `make check` runs, without the race
# detector.
CHECKED  := $(addprefix telapi/test/,campaign docs hostile operations phone)
# The packages that take longest start first.
SLOWEST  := $(addprefix telapi/,test/libraries test/e2e internal/redisstore internal/sqlstore test/demo)
PACKAGES  = $(SLOWEST) $(filter-out $(CHECKED) $(SLOWEST),$(shell go list ./...)) telapi/test/docs
# The commands on the pages need a load balancer and more.
NOT_CHECKED := -skip='^TestCommandsInDocsWork$$'

# Tests that miss a server fail. Four packages and tests run at a time, because most of them
# wait for servers.
PROGRAMS := $(CURDIR)/bin/test
TESTS    := $(BUILD) STRICT_TESTS=true TEST_PROGRAMS=$(PROGRAMS)
# Compilers that use one thread each, and collect garbage only above 1 GiB, need a quarter less
# CPU time. Tests keep the defaults.
BUILD_WITH := -toolexec='env GOGC=off GOMEMLIMIT=1GiB GOMAXPROCS=1'
GOTEST   := go run ./test/suite -servers -vet=off -p=4 -parallel=4 -timeout=20m $(BUILD_WITH)

# A stale generated file fails its golden test; `make generate` rewrites it.
test: ## Test the code, the SDK and the playground; installs missing servers
	@$(STEP) 'servers' scripts/install-servers.sh test
	@$(TESTS) $(STEP) 'programs' go build $(BUILD_WITH) -ldflags '$(LDFLAGS)' -o $(PROGRAMS)/ ./cmd/telapi ./test/echo
	@$(STEP) 'sdk: npm ci' $(MAKE) -s $(SDK)/node_modules/.package-lock.json
	@$(STEP) 'sdk: build' $(NPM) $(SDK) run --silent build
	@$(TESTS) $(STEP) 'Go tests' $(GOTEST) $(NOT_CHECKED) -ldflags='-s -w' $(PACKAGES)
	@$(STEP) 'sdk: Python' python3 -m unittest discover -s sdk/python/tests
	@$(STEP) 'sdk: types' $(NPM) $(SDK) run --silent typecheck
	@$(TESTS) $(STEP) 'sdk: tests' $(NPM) $(SDK) run --silent test
	@$(STEP) 'playground: npm ci' $(MAKE) -s $(WEB)/node_modules/.package-lock.json
	@$(STEP) 'playground: types' $(NPM) $(WEB) run --silent typecheck
	@$(TESTS) $(STEP) 'playground: tests in Chromium' $(NPM) $(WEB) run --silent test

# Fail with a diff instead of changing go.mod and go.sum. -e ignores modules that
# only the tests of dependencies import: a proxy may not have them.
TIDY := -diff -e

# SQLite, which is translated from C, is not checked for races: it would need four
# times as much CPU time, most of the time of all tests. The packages around it are.
RACE := -race -gcflags=modernc.org/sqlite/lib=-race=false
# These have no goroutines, or test programs and texts.
NO_RACES := telapi/callruntime/wire telapi/web $(addprefix telapi/internal/,command fault filelock page redact strictjson team) \
	$(addprefix telapi/test/,contract docs media mutate suite)

check: ## Run what `make test` leaves out: linters, race detector, faults under load, deployment
	@$(STEP) 'servers' scripts/install-servers.sh check
	@$(STEP) 'go mod tidy' go mod tidy $(TIDY)
	@for module in examples/runtime-go examples/phone; do $(STEP) "$$module: go mod tidy" go -C $$module mod tidy $(TIDY); done
	@$(MAKE) lint
	@$(STEP) 'interface descriptions' $(REDOCLY) lint --config api/redocly.yaml api/openapi.yaml api/asyncapi.yaml
	@$(STEP) 'simulation' $(MAKE) -j2 simulate-fixed simulate-commit
	@$(TESTS) $(STEP) 'programs' go build $(BUILD_WITH) -ldflags '$(LDFLAGS)' -o $(PROGRAMS)/ ./cmd/telapi ./test/echo
	@$(TESTS) $(STEP) 'tests of programs' $(GOTEST) $(filter-out telapi/test/phone,$(CHECKED))
	@$(TESTS) $(STEP) 'phone: units' go -C examples/phone test -count=1 ./...
	@$(TESTS) $(STEP) 'phone' $(GOTEST) -parallel=8 telapi/test/phone
	@$(STEP) 'sdk: npm ci' $(MAKE) -s $(SDK)/node_modules/.package-lock.json
	@$(STEP) 'sdk: build' $(NPM) $(SDK) run --silent build
	@$(TESTS) CGO_ENABLED=1 GOFLAGS='$(GOFLAGS)' $(STEP) 'race detector' $(GOTEST) $(RACE) $(filter-out $(NO_RACES),$(PACKAGES))
	@$(STEP) 'Helm chart' go -C test/helm test -count=1 ./...

# The overlay makes the Go runtime of the test deterministic, so that a seed replays
# exactly.
OVERLAY := bin/overlay/overlay.json
SIMULATION := bin/simulation.test
SIMULATE = cd test/simulation && ../../$(SIMULATION) -test.timeout 20m
.PHONY: $(OVERLAY) $(SIMULATION)
$(OVERLAY):
	@go run ./test/simulation/overlay $(@D)
$(SIMULATION): $(OVERLAY)
	@go test -c -vet=off -tags=simulation -overlay=$(OVERLAY) -o $@ ./test/simulation

# A simulation uses one processor, so make check runs these two at a time.
simulate-fixed: $(SIMULATION)
	$(SIMULATE) -seeds=300

# Seeds that are new with every commit, so a failure can be older than the commit. A tree
# without git uses a digest of its code.
simulate-commit: $(SIMULATION) ## Simulate 300 seeds that are derived from the commit
	$(SIMULATE) -test.run '^TestSeeds$$' -seeds=300 -commit=$(COMMIT)
COMMIT = $(shell git rev-parse HEAD 2>/dev/null || cat $$(find callruntime internal -name '*.go' -o -name '*.lua' | sort) | sha1sum | cut -c1-40)

# Every run uses new seeds. A failing seed is printed with its trace.
simulate: $(SIMULATION) ## Simulate faults until one is found; SEED=n replays a seed
	$(SIMULATE) -test.run '^TestSeeds$$' -test.v -test.timeout 0 $(if $(SEED),-seed=$(SEED),-forever)

bench: ## Compare with baselines in one run and print ratios
	go run ./test/bench $(ARGS)

# 1,000 browsers, 100,000 operations, about 30 minutes on two cores. SCALE=0.1 runs a tenth of it.
SCALE ?= 1
campaign: ## Inject faults under load and write the results to docs/campaign.md
	@STRICT_TESTS=true go test ./test/campaign -run '^TestCampaign$$' -count=1 -v -timeout 3h \
		-args -scale $(SCALE) -write ../../docs/campaign.md $(ARGS)

FUZZTIME ?= 10s

fuzz: ## Run every fuzz target for FUZZTIME (10s)
	@grep -rl --include='*_test.go' --exclude-dir=node_modules '^func Fuzz' . | xargs -n1 dirname | sort -u | while read -r dir; do \
		go -C "$$dir" test -list '^Fuzz' . | grep '^Fuzz' | while read -r target; do \
			echo "$$dir $$target"; \
			go -C "$$dir" test . -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) </dev/null; \
		done; \
	done

# Takes about four hours. ARGS='-only internal/auth' runs one package or script, and
# ARGS='-sample 10' every tenth mutant.
mutate: ## Change auth, policies, limits, channels and scripts: do tests notice?
	@$(BUILD) STRICT_TESTS=true go run ./test/mutate $(ARGS)

# Needs the network, so it is not part of make test. GOVULNDB can name a copy of the Go
# database, such as file:///srv/vulndb.
audit: $(GOVULNCHECK) ## Look for known vulnerabilities in Go modules and npm packages
	@for module in . examples/runtime-go examples/phone; do \
		$(STEP) "govulncheck $$module" $(GOVULNCHECK) -C $$module $(if $(GOVULNDB),-db '$(GOVULNDB)') ./...; \
	done
	@for package in $(SDK) $(WEB); do \
		$(STEP) "npm audit $$package" npm --prefix $$package audit --audit-level=low; \
	done

release: audit ## Audit, then build reproducible archives and packages in dist/
	scripts/release.sh

lint: ## Run golangci-lint, and shellcheck where it is installed
	@$(STEP) 'golangci-lint: install' $(MAKE) -s $(GOLANGCI)
	@$(BUILD) $(STEP) 'golangci-lint' $(GOLANGCI) run --allow-parallel-runners ./...
	@$(BUILD) $(STEP) 'golangci-lint: phone' sh -c 'cd examples/phone && ../../$(GOLANGCI) run --allow-parallel-runners ./...'
	@if command -v shellcheck >/dev/null; then \
		$(STEP) 'shellcheck' shellcheck .ci/run scripts/*.sh deploy/docker/*.sh examples/*/*.sh; \
	else \
		echo 'shellcheck is not installed: the scripts were not checked'; \
	fi

fmt: $(GOLANGCI) ## Format all Go files
	$(GOLANGCI) fmt ./...

generate: ## Rewrite golden and generated files
	@if [ -n '$(GOLDEN)' ]; then go test $(GOLDEN) -count=1 -update; else echo 'no package has golden files'; fi

clean: ## Remove build results; keeps bin/tools and data
	rm -rf bin/telapi bin/phone bin/test dist $(SDK)/dist test-artifacts coverage.out

# npm writes this file at the end of an installation.
%/node_modules/.package-lock.json: %/package-lock.json | node
	@$(NPM) $* ci

# Debian 12 has Node 18, which is too old. npm has newer ones.
node:
	@node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' || npm install --silent --global --prefix $(TOOLS)/node node@20

$(GOVULNCHECK):
	$(call install,golang.org/x/vuln/cmd/govulncheck)

$(GOLANGCI):
	$(call install,github.com/golangci/golangci-lint/v2/cmd/golangci-lint)

# install PACKAGE: build the tool of this target at the version in its name.
define install
	@mkdir -p $(TOOLS)
	@GOBIN='$(abspath $(TOOLS))' go install $(1)@$(lastword $(subst -v, v,$(notdir $@)))
	@mv $(TOOLS)/$(notdir $(1)) $@
endef
