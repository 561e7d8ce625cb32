#!/usr/bin/env bash
# Installs from Debian's packages what the tests need and is not there: a C
# compiler for the race detector, tools that make network namespaces and read
# captures, curl for the walk of the README, strace for system calls that fail,
# systemd-analyze for the units, and for root, who may make networks, qemu and
# what goes into the Linux machines of test/softroce and test/dmabuf. As another
# user it says what is missing.
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
need strace strace
need systemd-analyze systemd
[ -e /usr/include/stdlib.h ] || packages+=(libc6-dev)
if [ "$(id -u)" = 0 ]; then
	need qemu-system-x86_64 qemu-system-x86
	[ -e /bin/busybox ] && ! ldd /bin/busybox >/dev/null 2>&1 || packages+=(busybox-static)
	need cpio cpio
	need make make
	ldconfig -p | grep -q libelf.so.1 || packages+=(libelf1) # for a kernel module
	need modprobe kmod
	need rping rdmacm-utils
	need ibv_rc_pingpong ibverbs-utils
	[ -e /etc/libibverbs.d/rxe.driver ] || packages+=(ibverbs-providers)
	[ -e /usr/include/infiniband/verbs.h ] || packages+=(libibverbs-dev)
fi
[ ${#packages[@]} -gt 0 ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
	echo "missing for the tests: ${packages[*]}; install them as root" >&2
	exit 1
fi
echo "installing ${packages[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
