#!/usr/bin/env bash
# Prints the directory that holds a Linux machine with Soft-RoCE for qemu:
# vmlinuz, and an initrd with rdma-core's programs. Builds it if it is not there
# for this kernel and this recipe. Debian's kernel package is unpacked, not
# installed. The packages that it needs are in tools/deps.sh.
set -euo pipefail
cd "$(dirname "$0")"
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

# As in "Depends: linux-image-6.1.0-57-amd64 (= 6.1.192-3)".
read -r kernel version < <(apt-cache show --no-all-versions linux-image-amd64 2>/dev/null |
	sed -n 's/^Depends: linux-image-\([^ ]*\) (= \([^)]*\)).*/\1 \2/p') || again "$@"
recipe=$({ cat build.sh init verbs.c; dpkg-query -W busybox-static iproute2 ibverbs-{providers,utils} rdmacm-utils libibverbs1 librdmacm1 libc6; } | sha256sum | cut -c1-12)
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
(mkdir "$work/deb" && cd "$work/deb" && apt-get -o APT::Sandbox::User=root download -qq "linux-image-$kernel=$version") >&2 || {
	rm -rf "$work"
	again "$@"
}
mkdir -p "$work"/{unpacked,peer} "$root"/{bin,usr/bin,lib/x86_64-linux-gnu/libibverbs,usr/lib/x86_64-linux-gnu,lib64,etc/libibverbs.d,proc,sys,dev,tmp,run}

dpkg -x "$work"/deb/*.deb "$work/unpacked"
cp "$work/unpacked/boot/vmlinuz-$kernel" "$work/peer/vmlinuz"
depmod -b "$work/unpacked" "$kernel"
for module in "${modules[@]}"; do
	modprobe -d "$work/unpacked" -S "$kernel" --show-depends "$module" | sed -n 's/^insmod *//p'
done | sort -u | while read -r ko; do
	install -D "$ko" "$root/${ko#"$work/unpacked/"}"
done
cp "$work/unpacked/lib/modules/$kernel"/modules.{order,builtin,builtin.modinfo} "$root/lib/modules/$kernel/"
depmod -b "$root" "$kernel"

gcc -O2 -Wall -Werror -o "$work/verbs" verbs.c -libverbs
cp "${programs[@]}" "$work/verbs" "$root/usr/bin/"
cp -L "${libraries[@]}" "$root/lib/x86_64-linux-gnu/"
ldd "${programs[@]}" | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p' | sort -u | xargs cp -Lt "$root/lib/x86_64-linux-gnu/"
mv "$root"/lib/x86_64-linux-gnu/librxe* "$root/lib/x86_64-linux-gnu/libibverbs/"
ln -s /lib/x86_64-linux-gnu/libibverbs "$root/usr/lib/x86_64-linux-gnu/libibverbs"
cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
cp /etc/libibverbs.d/rxe.driver "$root/etc/libibverbs.d/"
cp /bin/busybox "$root/bin/"
install -m 755 init "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet) | gzip -1 >"$work/peer/initrd"

# Another run may have been faster; its result is as good.
mv -T "$work/peer" "$peer" 2>/dev/null || [ -d "$peer" ]
echo "$peer"
