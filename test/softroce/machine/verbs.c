// A queue pair of rxe0 that is worked by lines: what a test has Linux do to the
// other end's memory, and have done to its own. Arguments: rc or uc, the index
// in the GID table, the size of its memory. It says
//
//   local QPN PSN GID ADDRESS RKEY
//
// and answers each of these lines with one (numbers as C writes them):
//
//   connect QPN PSN GID MTU                      ok
//   put OFFSET HEX                               ok
//   get OFFSET LENGTH                            HEX
//   post OPCODE OFFSET LENGTH [ADDRESS RKEY [A B]]   ok (A, B: of atomics; A: immediate data)
//   poll                                         STATUS BYTES IMMEDIATE TEXT, or "nothing" after 30 s
//
// What fails is said with "error". It ends with its input.
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PORT = 1, PSN = 0xfffffe }; // the PSN wraps soon
static const struct { const char *name; enum ibv_wr_opcode code; } opcodes[] = {
	{"write", IBV_WR_RDMA_WRITE}, {"write-imm", IBV_WR_RDMA_WRITE_WITH_IMM}, {"read", IBV_WR_RDMA_READ},
	{"send", IBV_WR_SEND}, {"send-imm", IBV_WR_SEND_WITH_IMM},
	{"cas", IBV_WR_ATOMIC_CMP_AND_SWP}, {"add", IBV_WR_ATOMIC_FETCH_AND_ADD},
};

static unsigned char *memory;
static size_t size;
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static int gid_index;

static void die(const char *what) { printf("error %s: %s\n", what, strerror(errno)); exit(1); }

static void create(enum ibv_qp_type type) {
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);
	struct ibv_context *context = n ? ibv_open_device(list[0]) : NULL;
	struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
	union ibv_gid gid;
	char text[INET6_ADDRSTRLEN];
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

	if (!pd || posix_memalign((void **)&memory, 4096, size))
		die("device");
	memset(memory, 0, size);
	mr = ibv_reg_mr(pd, memory, size, access);
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	if (!mr || !cq)
		die("memory");
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = type, .sq_sig_all = 1,
		.cap = {.max_send_wr = 32, .max_recv_wr = 32, .max_send_sge = 1, .max_recv_sge = 1}};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = PORT,
		.qp_access_flags = type == IBV_QPT_RC ? access : IBV_ACCESS_REMOTE_WRITE};
	if (!(qp = ibv_create_qp(pd, &init)) ||
	    ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		die("queue pair");
	if (ibv_query_gid(context, PORT, gid_index, &gid))
		die("GID");
	inet_ntop(AF_INET6, &gid, text, sizeof text);
	printf("local %u %u %s %llu %u\n", qp->qp_num, PSN, text, (unsigned long long)memory, mr->rkey);
}

static const char *connect_to(unsigned qpn, unsigned psn, const char *gid, unsigned bytes) {
	int rc = qp->qp_type == IBV_QPT_RC;
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .dest_qp_num = qpn, .rq_psn = psn,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = PORT, .grh = {.sgid_index = gid_index, .hop_limit = 64}}};
	for (attr.path_mtu = IBV_MTU_256; 128u << attr.path_mtu < bytes; attr.path_mtu++)
		;
	if (inet_pton(AF_INET6, gid, &attr.ah_attr.grh.dgid) != 1)
		return "error GID";
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
	                  (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)))
		return "error RTR";
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .sq_psn = PSN, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
	if (ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN |
	                  (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0)))
		return "error RTS";
	return "ok";
}

static const char *post(const char *name, size_t offset, size_t length, uint64_t address, uint32_t rkey, uint64_t a, uint64_t b) {
	struct ibv_sge sge = {(uintptr_t)memory + offset, length, mr->lkey};
	if (!strcmp(name, "recv")) {
		struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
		return ibv_post_recv(qp, &wr, &bad) ? "error post" : "ok";
	}
	for (size_t i = 0; i < sizeof opcodes / sizeof *opcodes; i++) {
		if (strcmp(name, opcodes[i].name))
			continue;
		struct ibv_send_wr wr = {.opcode = opcodes[i].code, .sg_list = &sge, .num_sge = 1, .imm_data = htonl(a)}, *bad;
		if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
			wr.wr.atomic.remote_addr = address;
			wr.wr.atomic.rkey = rkey;
			wr.wr.atomic.compare_add = a;
			wr.wr.atomic.swap = b;
		} else {
			wr.wr.rdma.remote_addr = address;
			wr.wr.rdma.rkey = rkey;
		}
		return ibv_post_send(qp, &wr, &bad) ? "error post" : "ok";
	}
	return "error opcode";
}

static void poll_one(void) {
	struct ibv_wc wc = {0};
	for (time_t end = time(NULL) + 30; time(NULL) < end; usleep(200)) {
		if (ibv_poll_cq(cq, 1, &wc) == 1) {
			printf("%d %u %u %s\n", wc.status, wc.byte_len, wc.wc_flags & IBV_WC_WITH_IMM ? ntohl(wc.imm_data) : 0, ibv_wc_status_str(wc.status));
			return;
		}
	}
	puts("nothing");
}

static void put(size_t offset, const char *hex) {
	char byte[3] = {0};
	for (; offset < size && hex[0] && hex[1]; hex += 2) {
		memcpy(byte, hex, 2);
		memory[offset++] = strtoul(byte, NULL, 16);
	}
	puts("ok");
}

static void get(size_t offset, size_t length) {
	static const char digits[] = "0123456789abcdef";

	for (; length && offset < size; length--, offset++) {
		putchar_unlocked(digits[memory[offset] >> 4]);
		putchar_unlocked(digits[memory[offset] & 15]);
	}
	puts("");
}

int main(int argc, char **argv) {
	enum { WORDS = 8 };
	char *line = NULL, *word[WORDS], *rest;
	unsigned long long number[WORDS];
	size_t room = 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc != 4)
		return 2;
	gid_index = atoi(argv[2]);
	size = atol(argv[3]);
	create(strcmp(argv[1], "uc") ? IBV_QPT_RC : IBV_QPT_UC);
	while (getline(&line, &room, stdin) > 0) {
		rest = line;
		for (int i = 0; i < WORDS; i++) {
			if (!(word[i] = strsep(&rest, " \n")))
				word[i] = "";
			number[i] = strtoull(word[i], NULL, 0);
		}
		if (!strcmp(word[0], "connect"))
			puts(connect_to(number[1], number[2], word[3], number[4]));
		else if (!strcmp(word[0], "put"))
			put(number[1], word[2]);
		else if (!strcmp(word[0], "get"))
			get(number[1], number[2]);
		else if (!strcmp(word[0], "post"))
			puts(post(word[1], number[2], number[3], number[4], number[5], number[6], number[7]));
		else if (!strcmp(word[0], "poll"))
			poll_one();
		else
			puts("error line");
	}
	return 0;
}
