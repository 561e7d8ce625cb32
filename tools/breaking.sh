#!/usr/bin/env bash
# Compares the contract with that of main, and fails on a change that breaks
# callers. The base is where this branch left main, or the commit before when
# this is main itself. BASE=COMMIT sets another one.
set -euo pipefail
cd "$(dirname "$0")/.."

base=${BASE:-}
if [ -z "$base" ]; then
	for main in origin/main main; do
		base=$(git merge-base HEAD "$main" 2>/dev/null) && break
	done
	if [ "$base" = "$(git rev-parse HEAD 2>/dev/null)" ]; then
		base=$(git rev-parse --verify -q HEAD^ || true)
	fi
fi
if [ -z "$base" ] || ! git cat-file -e "$base:proto/accelfab" 2>/dev/null; then
	echo "breaking: no earlier contract to compare with (base: ${base:-none}): passed"
	exit 0
fi

buf=$(tools/bin.sh github.com/bufbuild/buf github.com/bufbuild/buf/cmd/buf)
mkdir -p .build/protodeps
go run ./proto/protodeps .build/protodeps

# The base gets the imports of today: they are not what is compared.
rm -rf .build/base
mkdir -p .build/base/.build
git archive "$base" proto | tar -x -C .build/base
cp buf.yaml .build/base/
cp -r .build/protodeps .build/base/.build/
(cd .build/base && "$buf" build proto -o ../base.binpb)

"$buf" breaking proto --against .build/base.binpb
echo "breaking: compared with $(git rev-parse --short "$base")"
