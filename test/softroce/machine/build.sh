#!/usr/bin/env bash
# Prints the directory that holds a Linux machine with Soft-RoCE for qemu:
# vmlinuz, and an initrd with rdma-core's programs. Builds it if it is not there
# for this kernel and this recipe. Debian's kernel package is unpacked, not
# installed. The packages that it needs are in tools/deps.sh.
set -euo pipefail
cd "$(dirname "$0")"
. ../../machine/build.sh
cache=$(realpath -m ../../../.build/softroce)

# What the machine runs. The kernel of Debian's -cloud- flavour has no rdma_rxe.
# rping ends its threads, for which libc loads libgcc_s by itself.
modules=(virtio_pci virtio_net ib_uverbs rdma_ucm rdma_rxe crc32_generic)
programs=(/usr/bin/ibv_{rc,uc,ud,srq}_pingpong /usr/bin/ibv_devinfo /usr/bin/rping /usr/bin/rdma /usr/bin/ip)
libraries=(/lib/x86_64-linux-gnu/libgcc_s.so.1 /usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so)

# again starts over with new lists, once.
again() {
	[ "${1:-}" != again ] || { echo "apt gives no kernel" >&2; exit 1; }
	apt-get update -qq >&2
	exec ./build.sh again
}

read -r kernel version < <(newest_kernel) || again "$@"
recipe=$({ cat build.sh ../../machine/build.sh init verbs.c; dpkg-query -W busybox-static iproute2 ibverbs-{providers,utils} rdmacm-utils libibverbs1 librdmacm1 libc6; } | sha256sum | cut -c1-12)
peer=$cache/$version-$recipe
if [ -d "$peer" ]; then
	echo "$peer"
	exit
fi

echo "building a Linux $version with Soft-RoCE" >&2
mkdir -p "$cache"
work=$(mktemp -d "$cache/tmp.XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$work/root
fetch "linux-image-$kernel=$version" || {
	rm -rf "$work"
	again "$@"
}
filesystem "${modules[@]}"
mkdir -p "$root"/{lib/x86_64-linux-gnu/libibverbs,usr/lib/x86_64-linux-gnu,etc/libibverbs.d}

gcc -O2 -Wall -Werror -o "$work/verbs" verbs.c -libverbs
cp "${programs[@]}" "$work/verbs" "$root/usr/bin/"
cp -L "${libraries[@]}" "$root/lib/x86_64-linux-gnu/"
ldd "${programs[@]}" | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p' | sort -u | xargs cp -Lt "$root/lib/x86_64-linux-gnu/"
mv "$root"/lib/x86_64-linux-gnu/librxe* "$root/lib/x86_64-linux-gnu/libibverbs/"
ln -s /lib/x86_64-linux-gnu/libibverbs "$root/usr/lib/x86_64-linux-gnu/libibverbs"
cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
cp /etc/libibverbs.d/rxe.driver "$root/etc/libibverbs.d/"
install -m 755 init "$root/init"
keep "$peer"
