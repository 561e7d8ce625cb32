// Package machine boots a small Linux of its own under qemu, for tests of what
// this machine's kernel may lack. build.sh, which is for the scripts that make
// such machines, unpacks kernels of Debian's packages and packs what shall run.
// qemu emulates the processor, so that it runs where there is no virtualization.
package machine
