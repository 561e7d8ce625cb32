#!/usr/bin/env bash
# Runs all tests with the race detector and prints how many ran, and how each
# program of Linux fared with the software device. Arguments go to go test.
# ACCELFAB_NO_SKIP=1 makes a skipped test a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

tools/deps.sh
gotestsum=$(tools/bin.sh gotest.tools/gotestsum gotest.tools/gotestsum)
events=$(mktemp)
export ACCELFAB_SOFTROCE_TABLE=$(mktemp)
trap 'rm -f "$events" "$ACCELFAB_SOFTROCE_TABLE"' EXIT
status=0
"$gotestsum" --format pkgname --format-hide-empty-pkg --jsonfile "$events" -- \
	-race -timeout 20m "$@" ./... || status=$?

if [ -s "$ACCELFAB_SOFTROCE_TABLE" ]; then
	echo "programs of Linux against the software device:"
	cat "$ACCELFAB_SOFTROCE_TABLE"
fi
skipped=$(grep -c '"Action":"skip","Package":"[^"]*","Test"' "$events" || true)
if [ "$skipped" != 0 ]; then
	echo "skipped:"
	grep -o '"Action":"skip","Package":"[^"]*","Test":"[^"]*"' "$events" | cut -d'"' -f8,12 --output-delimiter=' '
	[ "${ACCELFAB_NO_SKIP:-}" != 1 ] || { echo "ACCELFAB_NO_SKIP=1: no test may be skipped" >&2; status=1; }
fi
exit "$status"
