// Package dmabuf holds a test of exports that are real dma-bufs, on a kernel that
// makes them (/dev/udmabuf): a small virtual machine with the kernel of Debian's
// backports and an importer in it (machine/importer.c), which attaches, maps and
// reads what a daemon in the machine exports. What runs in the machine is in
// inside.
//
// The test needs root, Linux, and what tools/deps.sh installs; without it skips.
package dmabuf
