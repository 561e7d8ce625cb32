#!/usr/bin/env bash
# Generates Go and the OpenAPI document from the contract in proto/, below the
# directory given (default: in place). All versions are those of go.mod and
# tools/go.mod; with a warm module cache no network is needed.
set -euo pipefail
out=$(realpath -m "${1:-$(dirname "$0")/..}")
cd "$(dirname "$0")/.."

buf=$(tools/bin.sh github.com/bufbuild/buf github.com/bufbuild/buf/cmd/buf)
mkdir -p .build/protodeps
go run ./proto/protodeps .build/protodeps

rm -rf "$out/.build/openapi"
"$buf" generate -o "$out"

# The first document gives title and description.
document=$out/proto/accelfab/v1/openapi.json
go tool openapiv3-merge proto/openapi.head.json "$out"/.build/openapi/accelfab/v1/*.json > "$document.new"
mv "$document.new" "$document"
