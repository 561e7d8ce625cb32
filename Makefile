.PHONY: generate lint

# Go and OpenAPI from the contract in proto/. Offline once modules are there.
generate:
	tools/generate.sh

# Contract and Go code. BASE=COMMIT compares the contract with another commit.
lint:
	tools/lint.sh
