# To be sourced by scripts that build a machine for qemu, with set -euo pipefail:
# $work is a directory of their own, $root the machine's file system, $kernel the
# release of its kernel, which is unpacked in $work/unpacked.

# backports makes apt look at Debian's backports as well, with lists of its own:
# the machine's sources stay as they are. $1 is a directory to keep them in.
backports() {
	local mirror
	mkdir -p "$1"/{lists,cache/archives}/partial
	mirror=$(apt-cache policy bash | awk '/\/main /{print $2 " " $3; exit}') # as "http://host/debian bookworm/main"
	[ -n "$mirror" ] || { apt-get update -qq >&2; mirror=$(apt-cache policy bash | awk '/\/main /{print $2 " " $3; exit}'); }
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${mirror%% *} $(cut -d/ -f1 <<<"${mirror##* }")-backports main" >"$1/sources.list"
	cat >"$1/apt.conf" <<-EOF
		Dir::Etc::sourcelist "$1/sources.list";
		Dir::Etc::sourceparts "/dev/null";
		Dir::State::lists "$1/lists";
		Dir::Cache "$1/cache";
	EOF
	export APT_CONFIG=$1/apt.conf
}

# newest_kernel prints the release and the version of the newest kernel that apt
# knows, as in "Depends: linux-image-6.1.0-57-amd64 (= 6.1.192-3)".
newest_kernel() {
	apt-cache show --no-all-versions linux-image-amd64 2>/dev/null | sed -n 's/^Depends: linux-image-\([^ ]*\) (= \([^)]*\)).*/\1 \2/p'
}

# fetch downloads packages into $work/deb and unpacks them into $work/unpacked.
fetch() {
	mkdir -p "$work"/{deb,unpacked}
	(cd "$work/deb" && apt-get -o APT::Sandbox::User=root download -qq "$@") >&2 || return
	for deb in "$work"/deb/*.deb; do dpkg -x "$deb" "$work/unpacked"; done
}

# filesystem makes $root with a busybox, and with these modules and what they need.
filesystem() {
	local modules=$work/unpacked/lib/modules/$kernel
	mkdir -p "$root"/{bin,usr/bin,lib64,proc,sys,dev,tmp,run,"lib/modules/$kernel"}
	cp /bin/busybox "$root/bin/"
	depmod -b "$work/unpacked" "$kernel"
	for module in "$@"; do
		modprobe -d "$work/unpacked" -S "$kernel" --show-depends "$module" | sed -n 's/^insmod *//p'
	done | sort -u | while read -r ko; do
		install -D "$ko" "$root/${ko#"$work/unpacked/"}"
	done
	cp "$modules"/modules.{order,builtin,builtin.modinfo} "$root/lib/modules/$kernel/"
	depmod -b "$root" "$kernel"
}

# keep puts the kernel and the packed file system into the directory $1, unless
# another run was faster; its result is as good.
keep() {
	mkdir -p "$work/machine"
	cp "$work/unpacked/boot/vmlinuz-$kernel" "$work/machine/vmlinuz"
	(cd "$root" && find . | cpio -o -H newc --quiet) | gzip -1 >"$work/machine/initrd"
	mv -T "$work/machine" "$1" 2>/dev/null || [ -d "$1" ]
	echo "$1"
}
