# Two commands do everything: `make run` starts the server, `make test` proves it. `make help` lists the rest.
GO          ?= go
VERSION     := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS     := -s -w -X main.version=$(VERSION)
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
FUZZ_TIME   ?= 2m
CHAOS_TIME  ?= 2m
CHAOS_FLAGS ?=
SOAK_TIME   ?= 1h
TEST_FLAGS  ?= -timeout 15m

export CGO_ENABLED ?= 0

.DEFAULT_GOAL := help
.PHONY: help build run test clients race lint fmt bench chaos soak fuzz mutants sim test-zookeeper test-galera docs deps clean model

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

build: ## bin/redleaf, static
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/redleaf .

run: build ## the server on its embedded default: 127.0.0.1:6380, state in ./data
	./bin/redleaf

deps: ## what the tests need, from Debian's packages (needs root where something is missing)
	@sh scripts/deps.sh all

test: deps ## every test, on real services started in temporary folders
	$(GO) test $(TEST_FLAGS) ./...

clients: ## client libraries of six languages against a real server; part of make test
	@sh scripts/deps.sh clients
	@# The compiled test itself, so that its count is the last line.
	$(GO) test -c -o bin/clients.test ./scripts/clients
	cd scripts/clients && ../../bin/clients.test -test.v -test.timeout=10m -test.run '^TestMatrix$$'

race: deps ## the same under the race detector, with the assertions of DESIGN.md compiled in
	CGO_ENABLED=1 $(GO) test -race -tags invariants $(TEST_FLAGS) ./...

lint: ## gofmt, go vet, staticcheck
	@bad=$$(gofmt -l . ); if [ -n "$$bad" ]; then echo "gofmt would change:"; echo "$$bad"; exit 1; fi
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...

fmt: ## gofmt -w
	gofmt -w .

BENCH_FLAGS ?=
bench: build ## ratios to redis-server in one run on this machine, and Go's benchmarks with allocations
	@sh scripts/deps.sh base
	$(GO) test -run '^$$' -bench . -benchmem ./segment ./snowflake ./server
	$(GO) run ./scripts/bench -redleaf bin/redleaf $(BENCH_FLAGS)

MODEL_SEEDS ?= 3000
model: ## worlds of instances on a database that goes back, MODEL_SEEDS of each kind (minutes)
	$(GO) test ./segment -run TestModel -segment.seeds=$(MODEL_SEEDS) -timeout 60m

SIM_SEEDS ?= 25
SIM_MINUTES ?= 10
sim: ## worker numbers in a simulated fleet, SIM_SEEDS × 10 minutes of faults: the table of duplicates per scheme
	SIM_SEEDS=$(SIM_SEEDS) SIM_MINUTES=$(SIM_MINUTES) $(GO) test ./snowflake/zookeeper -run 'TestSimulation$$' -v -timeout 60m

test-zookeeper: deps ## 2,000 instances with a new identity each, killed at 15 a second, on a real server (minutes)
	CRASH_IDENTITIES=2000 $(GO) test ./snowflake/zookeeper -run TestCrashLoop -v -timeout 30m

test-galera: deps ## a synchronous cluster of three nodes, one of them killed and brought back (about a minute)
	$(GO) test -tags galera -run Galera -v ./scripts/services ./segment/mysql

chaos: build deps ## three instances and all they stand on, broken in every way for CHAOS_TIME (2m; CHAOS_FLAGS='-seed N' repeats)
	$(GO) build -o bin/chaos ./scripts/chaos
	./bin/chaos -redleaf bin/redleaf -time $(CHAOS_TIME) $(CHAOS_FLAGS)

soak: build deps ## moderate load and few faults for SOAK_TIME (1h): memory, goroutines, descriptors and logs stay flat
	$(GO) build -o bin/chaos ./scripts/chaos
	./bin/chaos -redleaf bin/redleaf -soak -rate 0.3 -most 1 -time $(SOAK_TIME) $(CHAOS_FLAGS)

mutants: deps ## break our own promises one at a time: each must be caught by a test
	$(GO) run ./scripts/mutants

fuzz: ## every fuzz target, FUZZ_TIME (2m) shared out among them
	$(GO) run ./scripts/fuzz -time $(FUZZ_TIME)

docs: ## write conf/redleaf.toml and README's tables anew from the code
	$(GO) test ./conf -update
	$(GO) test . -run Documented -update

clean: ## remove what build made
	rm -rf bin
