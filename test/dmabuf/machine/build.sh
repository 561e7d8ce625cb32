#!/usr/bin/env bash
# Prints the directory that holds a Linux machine with /dev/udmabuf and an importer
# of dma-bufs in its kernel, for qemu: vmlinuz, and an initrd that runs what a
# second initrd brings along (see init). Builds it if it is not there for this
# kernel and this recipe. The kernel is that of Debian's backports, whose packages
# are unpacked, not installed.
set -euo pipefail
cd "$(dirname "$0")"
. ../../machine/build.sh
cache=$(realpath -m ../../../.build/dmabuf)
mkdir -p "$cache"
recipe=$(cat build.sh ../../machine/build.sh init importer.c | sha256sum | cut -c1-12)

# The newest that was built does, so that a second run asks nobody.
for machine in "$cache"/*-"$recipe"; do
	[ -d "$machine" ] || break
	echo "$machine"
	exit
done

backports "$cache/apt"
apt-get update -qq >&2
read -r kernel version < <(newest_kernel) || { echo "apt gives no kernel of backports" >&2; exit 1; }
echo "building a Linux $version with an importer of dma-bufs" >&2
work=$(mktemp -d "$cache/tmp.XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$work/root
fetch "linux-image-$kernel=$version" "linux-headers-$kernel=$version" "linux-headers-${kernel%-amd64}-common=$version" "linux-kbuild-${kernel%-amd64}=$version"

mkdir "$work/module"
cp importer.c "$work/module/"
echo 'obj-m := importer.o' >"$work/module/Makefile"
headers=$work/unpacked/usr/src/linux-headers-$kernel
sed -i "s|include /usr/src/|include $work/unpacked/usr/src/|" "$headers/Makefile"
make -s -C "$headers" M="$work/module" PAHOLE=true modules >&2 # no type information

filesystem
cp "$work/module/importer.ko" "$root/"
install -m 755 init "$root/init"
keep "$cache/$version-$recipe"
