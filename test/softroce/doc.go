// Package softroce holds tests of the software device against Linux's own RoCE
// v2, rdma_rxe, and the programs that come with rdma-core: a small virtual
// machine with Debian's kernel on a bridge in a network namespace, accelfabd at
// the other end of the bridge.
//
// The machine (machine/build.sh makes it) boots once for all
// tests. qemu emulates its processor, so that the tests run where there is no
// virtualization; retransmissions are normal there, and no test counts packets.
//
// The tests need root, Linux, and what tools/deps.sh installs; without they skip.
package softroce
