// Package wire holds a test of what two nodes put on a wire between them: two
// network namespaces, a veth pair that cuts datagrams as a network card does,
// tcpdump in the middle, and tshark and our own check as readers. It needs root
// and Debian's tshark, tcpdump, iproute2 and ethtool.
package wire
