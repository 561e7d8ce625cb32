#!/usr/bin/env bash
# Checks the contract and the Go code. Every check runs; the exit status is 1
# if any found something.
set -uo pipefail
cd "$(dirname "$0")/.."

failed=()
check() {
	local name=$1
	shift
	"$@" || { echo "lint: $name failed" >&2; failed+=("$name"); }
}

# What make generate writes, written elsewhere, is what is committed.
generated() {
	local fresh=.build/fresh status=0 file
	rm -rf "$fresh"
	tools/generate.sh "$fresh" || return 1
	for file in $(cd "$fresh" && find proto -type f); do
		cmp -s "$fresh/$file" "$file" || { echo "$file: not as make generate writes it"; status=1; }
	done
	for file in $(find proto -name '*.pb.go' -o -name '*.pb.gw.go'); do
		[ -e "$fresh/$file" ] || { echo "$file: make generate does not write it"; status=1; }
	done
	return $status
}

go_format() {
	local files
	files=$(git ls-files -co --exclude-standard -- '*.go' | while read -r f; do [ ! -e "$f" ] || echo "$f"; done | xargs gofmt -l)
	[ -z "$files" ] || { echo "run gofmt -w on: $files"; return 1; }
}

# Both modules; the tools module may have no package of its own.
each_module() {
	"$@" ./... || return 1
	[ -z "$(go -C tools list ./... 2>/dev/null)" ] || (cd tools && "$@" ./...)
}

buf=$(tools/bin.sh github.com/bufbuild/buf github.com/bufbuild/buf/cmd/buf) || exit 1
staticcheck=$(tools/bin.sh honnef.co/go/tools honnef.co/go/tools/cmd/staticcheck) || exit 1

check "generated code" generated
check "buf format" "$buf" format -d --exit-code proto
check "buf lint" "$buf" lint
check "buf breaking" tools/breaking.sh
check gofmt go_format
check "go vet" each_module go vet
check staticcheck each_module "$staticcheck"

[ ${#failed[@]} -eq 0 ] || { echo "lint: failed: ${failed[*]}" >&2; exit 1; }
echo "lint: nothing found"
