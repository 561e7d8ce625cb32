.PHONY: all build generate lint test soak bench demo clean

all: build

# Static binaries, in bin/.
build:
	CGO_ENABLED=0 go build -o bin/ ./cmd/...

# Go and OpenAPI from the contract in proto/. Offline once modules are there.
generate:
	tools/generate.sh

# Contract and Go code. BASE=COMMIT compares the contract with another commit.
lint:
	tools/lint.sh

# All tests, with the race detector. Installs what they need.
test:
	tools/test.sh

# What takes long: kills by the thousand, long fuzzing. Bounded; seeds are printed.
soak:
	tools/soak.sh

# Figures for BENCHMARKS.md.
bench:
	go run ./test/bench

# The whole job on two software nodes of this machine.
demo: build
	bin/accelfab demo

clean:
	rm -rf bin .build
