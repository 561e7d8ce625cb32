#!/usr/bin/env bash
# Installs from Debian's packages what the tests need and is not there: a C
# compiler for the race detector, tools that make network namespaces and read
# captures, curl for the walk of the README. As another user than root it says
# what is missing.
set -euo pipefail

need() { command -v "$1" >/dev/null || packages+=("$2"); }
packages=()
need gcc gcc
need git git
need ip iproute2
need ethtool ethtool
need tcpdump tcpdump
need tshark tshark
need curl curl
[ -e /usr/include/stdlib.h ] || packages+=(libc6-dev)
[ ${#packages[@]} -gt 0 ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
	echo "missing for the tests: ${packages[*]}; install them as root" >&2
	exit 1
fi
echo "installing ${packages[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
