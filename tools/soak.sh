#!/usr/bin/env bash
# What takes long, bounded: ACCELFAB_KILLS kills (1,000) of a daemon under load
# and of the store alone, ACCELFAB_CUTS power cuts (1,000), ACCELFAB_ROUNDS rounds
# (100,000) of an export and its import, ACCELFAB_MODEL random lives of a node
# (20,000), then each fuzz target for ACCELFAB_FUZZTIME (60s; FuzzReceive, which takes
# what comes from the wire, 10m).
# Seeds are printed; ACCELFAB_SEED repeats a run.
set -euo pipefail
cd "$(dirname "$0")/.."

export ACCELFAB_KILLS=${ACCELFAB_KILLS:-1000} ACCELFAB_CUTS=${ACCELFAB_CUTS:-1000} ACCELFAB_ROUNDS=${ACCELFAB_ROUNDS:-100000} ACCELFAB_MODEL=${ACCELFAB_MODEL:-20000}
fuzztime() {
	case $1 in
	FuzzReceive) echo "${ACCELFAB_FUZZTIME:-10m}" ;;
	*) echo "${ACCELFAB_FUZZTIME:-60s}" ;;
	esac
}
tools/deps.sh

go test -count=1 -timeout 4h -v -run 'Kill|PowerCuts' ./test/faults ./fabric/boltstore | grep -v 'level='
go test -count=1 -timeout 1h -v -run AgainstAModel ./fabric
go test -count=1 -timeout 1h -v -run Rounds ./test/exports
grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u | while read -r package; do
	for target in $(grep -ho '^func Fuzz[A-Za-z0-9_]*' "$package"/*_test.go | cut -d' ' -f2); do
		echo "== $package $target"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$(fuzztime "$target")" -fuzzminimizetime 200x "$package"
	done
done
