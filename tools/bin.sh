#!/usr/bin/env bash
# Prints the path of a build tool, built from tools/go.mod if that was not done
# before for this version of it. Usage: tools/bin.sh MODULE PACKAGE
set -euo pipefail
cd "$(dirname "$0")/.."

module=$1 package=$2
version=$(go -C tools list -m -f '{{.Version}}' "$module")
bin=$PWD/.build/bin/$(basename "$package")-$version
if [ ! -x "$bin" ]; then
	echo "building $package $version" >&2
	mkdir -p "$(dirname "$bin")"
	# Under another name first: a build that is cut off leaves nothing behind.
	go -C tools build -o "$bin.$$" "$package"
	mv "$bin.$$" "$bin"
fi
echo "$bin"
