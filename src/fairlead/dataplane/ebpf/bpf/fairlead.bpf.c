/* SPDX-License-Identifier: Apache-2.0
 *
 * The eBPF dataplane: an application connects to a group's address and reaches one of its backends.
 *
 *   connect4, connect6          the address is exchanged once, before the first packet
 *   sendmsg4, sendmsg6          the same for each datagram of an unconnected UDP socket
 *   recvmsg*, getpeername*      and back again: the application sees the address it asked for
 *   sockops, sock_release       what became of the connection: failed, established, srtt, closed
 *   agent                       the agent's orders, judged here: it flips only while it is alive
 *
 * Any other address, and every process outside the cgroup, is not touched. Compile
 * with `fairlead traffic build-ebpf`; only the kernel's UAPI headers are needed.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "layout.h"
#include "maps.h"

const volatile struct settings settings = {
	.hold_after_ns = 3000000000ULL,
	.fallback_after_ns = 15000000000ULL,
	.errno_soft = 11,  /* EAGAIN */
	.errno_hard = 111, /* ECONNREFUSED */
};

#define TCP 6
#define UDP 17

#include "choose.h"
#include "origins.h"

#define MAPPED bpf_htonl(0xffff)
#define REFUSE 0
#define PROCEED 1

static __always_inline struct tuple tuple4(struct bpf_sock_addr *ctx)
{
	struct tuple tuple = {};

	tuple.addr[2] = MAPPED;
	tuple.addr[3] = ctx->user_ip4;
	tuple.port = (__u16)ctx->user_port;
	tuple.proto = (__u8)ctx->protocol;
	return tuple;
}

static __always_inline struct tuple tuple6(struct bpf_sock_addr *ctx)
{
	struct tuple tuple = {};

	tuple.addr[0] = ctx->user_ip6[0];
	tuple.addr[1] = ctx->user_ip6[1];
	tuple.addr[2] = ctx->user_ip6[2];
	tuple.addr[3] = ctx->user_ip6[3];
	tuple.port = (__u16)ctx->user_port;
	tuple.proto = (__u8)ctx->protocol;
	return tuple;
}

static __always_inline void write4(struct bpf_sock_addr *ctx, const struct tuple *tuple)
{
	ctx->user_ip4 = tuple->addr[3];
	ctx->user_port = tuple->port;
}

static __always_inline void write6(struct bpf_sock_addr *ctx, const struct tuple *tuple)
{
	ctx->user_ip6[0] = tuple->addr[0];
	ctx->user_ip6[1] = tuple->addr[1];
	ctx->user_ip6[2] = tuple->addr[2];
	ctx->user_ip6[3] = tuple->addr[3];
	ctx->user_port = tuple->port;
}

static __always_inline int ours(struct bpf_sock_addr *ctx)
{
	return ctx->protocol == TCP || ctx->protocol == UDP;
}

/* Choose, count, and set the errno of a refusal. What is sent by TCP is counted inside its group,
 * and stays there as long as its socket is remembered. */
static __always_inline int send(struct bpf_sock_addr *ctx, const struct tuple *wanted,
				struct choice *choice)
{
	struct group_count *count;
	struct backend_count *backend;
	__u32 at = 0;
	struct group *group = find_group(wanted, &at);
	struct inside *inside;
	__s64 others = 0;
	int verdict;

	if (!group)
		return UNTOUCHED;
	count = bpf_map_lookup_elem(&group_counts, &at);
	inside = bpf_map_lookup_elem(&insides, &at);
	if (!count || !inside)
		return UNTOUCHED; /* arrays of the same size: they cannot miss */
	if (wanted->proto == TCP)
		others = __sync_fetch_and_add(&inside->open, 1);
	choice->group = at;
	verdict = choose(ctx, group, at, others > 0 ? others : 0, choice);
	if (verdict != SENT && wanted->proto == TCP)
		COUNT(inside->open, -1);
	if (verdict == SENT) {
		COUNT(count->admitted, 1);
		backend = bpf_map_lookup_elem(&backend_counts, &choice->index);
		if (backend)
			COUNT(backend->admitted, 1);
		return SENT;
	}
	if (verdict == REFUSED_HARD) {
		COUNT(count->refused_hard, 1);
		if (settings.has_retval)
			bpf_set_retval(-(int)settings.errno_hard);
	} else {
		COUNT(count->refused_soft, 1);
		if (settings.has_retval)
			bpf_set_retval(-(int)settings.errno_soft);
	}
	return verdict;
}

/* It is remembered how a socket was sent; one that now goes elsewhere is forgotten. */
static __always_inline int connect_to(struct bpf_sock_addr *ctx, const struct tuple *wanted,
				      struct choice *choice)
{
	__u64 cookie = bpf_get_socket_cookie(ctx);
	struct origin *origin = find_origin(cookie);
	int verdict;

	/* Only a TCP socket without a connection comes here: an earlier attempt is over. */
	if (origin)
		leave(origin);
	verdict = send(ctx, wanted, choice);
	if (verdict == SENT) {
		if (!origin)
			origin = free_origin(cookie);
		if (origin) {
			WRITE_ONCE(origin->phase, FILLING);
			fill_origin(origin, wanted, choice);
		} else if (wanted->proto == TCP) {
			/* No room: the connection stands, its telemetry is lost, and as its
			 * end will not be seen it does not count as inside. */
			count_inside(choice->group, -1);
		}
	} else if (verdict == UNTOUCHED && origin) {
		drop_origin(origin);
	}
	return verdict;
}

static __always_inline int send_datagram(struct bpf_sock_addr *ctx, const struct tuple *wanted,
					 struct choice *choice)
{
	int verdict = send(ctx, wanted, choice);
	struct reply reply = {};
	struct origin *origin;
	struct tuple *known;

	if (verdict != SENT)
		return verdict;
	reply.cookie = bpf_get_socket_cookie(ctx);
	reply.peer = choice->backend->to;
	origin = take_origin(reply.cookie);
	if (origin && fits_origin(origin, wanted, choice))
		return SENT;
	known = bpf_map_lookup_elem(&replies, &reply);
	if (!known || !same_tuple(known, wanted)) /* reading is cheaper than writing */
		bpf_map_update_elem(&replies, &reply, wanted, BPF_ANY);
	return SENT;
}

/* What the application asked for when it reached `peer`; 0 if it asked for just that. */
static __always_inline struct tuple *asked(struct bpf_sock_addr *ctx, const struct tuple *peer)
{
	struct origin *origin = find_origin(bpf_get_socket_cookie(ctx));

	return origin && READ_ONCE(origin->phase) >= CHOSEN && same_tuple(&origin->peer, peer)
		       ? &origin->vip
		       : 0;
}

static __always_inline struct tuple *asked_datagram(struct bpf_sock_addr *ctx,
						    const struct tuple *peer)
{
	struct tuple *vip = asked(ctx, peer);
	struct reply reply = {};

	if (vip)
		return vip;
	reply.cookie = bpf_get_socket_cookie(ctx);
	reply.peer = *peer;
	return bpf_map_lookup_elem(&replies, &reply);
}

#define HOOK_OUT(hook, family, how)                                       \
	SEC("cgroup/" #hook #family)                                      \
	int hook##family(struct bpf_sock_addr *ctx)                       \
	{                                                                 \
		struct choice choice = {};                                \
		struct tuple wanted;                                      \
		int verdict;                                              \
                                                                          \
		if (!ours(ctx))                                           \
			return PROCEED;                                   \
		wanted = tuple##family(ctx);                              \
		verdict = how(ctx, &wanted, &choice);                     \
		if (verdict == SENT && choice.backend)                    \
			write##family(ctx, &choice.backend->to);          \
		return verdict == REFUSED_SOFT || verdict == REFUSED_HARD \
			       ? REFUSE                                   \
			       : PROCEED;                                 \
	}

#define HOOK_BACK(hook, family, how)                            \
	SEC("cgroup/" #hook #family)                            \
	int hook##family(struct bpf_sock_addr *ctx)             \
	{                                                       \
		struct tuple peer = tuple##family(ctx), *vip;   \
                                                                \
		vip = how(ctx, &peer);                          \
		if (vip)                                        \
			write##family(ctx, vip);                \
		return PROCEED;                                 \
	}

HOOK_OUT(connect, 4, connect_to)
HOOK_OUT(connect, 6, connect_to)
HOOK_OUT(sendmsg, 4, send_datagram)
HOOK_OUT(sendmsg, 6, send_datagram)
HOOK_BACK(recvmsg, 4, asked_datagram)
HOOK_BACK(recvmsg, 6, asked_datagram)
HOOK_BACK(getpeername, 4, asked)
HOOK_BACK(getpeername, 6, asked)

static __always_inline void on_rtt(struct bpf_sock_ops *ctx, struct health *health)
{
	__u32 sample = ctx->srtt_us, mean = READ_ONCE(health->srtt_eighths_us);
	__u32 off = READ_ONCE(health->off_eighths_us);

	if (!sample)
		return;
	/* Two CPUs at once lose one sample of an average; these are not counted. */
	if (mean)
		off = off - off / 4 + (sample > mean ? sample - mean : mean - sample) / 4;
	WRITE_ONCE(health->off_eighths_us, off);
	WRITE_ONCE(health->srtt_eighths_us, mean ? mean - mean / 8 + sample / 8 : sample);
}

static __always_inline void on_state(struct bpf_sock_ops *ctx, struct origin *origin,
				     struct backend_count *count, struct health *health)
{
	__u32 new = ctx->args[1];

	if (new == BPF_TCP_ESTABLISHED) {
		origin->phase = ESTABLISHED;
		COUNT(count->established, 1);
		if (health->failures_in_a_row)
			WRITE_ONCE(health->failures_in_a_row, 0);
		on_rtt(ctx, health); /* the handshake's, which came too early for the callback */
	} else if (new == BPF_TCP_CLOSE && origin->phase != ESTABLISHED) {
		COUNT(count->failed, 1);
		COUNT(health->failures_in_a_row, 1);
	}
}

SEC("sockops")
int telemetry(struct bpf_sock_ops *ctx)
{
	struct backend_count *count;
	struct health *health;
	struct origin *origin;
	struct load *load;
	__u32 op = ctx->op, index;

	if (op != BPF_SOCK_OPS_TCP_CONNECT_CB && op != BPF_SOCK_OPS_STATE_CB &&
	    op != BPF_SOCK_OPS_RTT_CB && op != BPF_SOCK_OPS_RETRANS_CB)
		return 1;
	origin = find_origin(bpf_get_socket_cookie(ctx));
	if (!origin)
		return 1;
	index = origin->backend;
	load = bpf_map_lookup_elem(&loads, &index);
	count = bpf_map_lookup_elem(&backend_counts, &index);
	health = bpf_map_lookup_elem(&healths, &index);
	if (!load || !count || !health)
		return 1;
	if (op == BPF_SOCK_OPS_TCP_CONNECT_CB) {
		origin->phase = BEGUN;
		/* Beside what programs of others on this cgroup or above it have asked for. */
		bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags |
						       BPF_SOCK_OPS_STATE_CB_FLAG |
						       BPF_SOCK_OPS_RTT_CB_FLAG |
						       BPF_SOCK_OPS_RETRANS_CB_FLAG);
	} else if (READ_ONCE(load->word) >> 32 != origin->generation) {
		; /* its backend left the group while it lived: it counts no more */
	} else if (op == BPF_SOCK_OPS_STATE_CB) {
		on_state(ctx, origin, count, health);
	} else if (op == BPF_SOCK_OPS_RTT_CB) {
		on_rtt(ctx, health);
	} else {
		COUNT(count->retransmitted, ctx->args[1]);
	}
	if (op == BPF_SOCK_OPS_STATE_CB && ctx->args[1] == BPF_TCP_CLOSE)
		drop_origin(origin);
	return 1;
}

/* What never began to connect, and UDP, ends here. Other TCP is seen until its last state, but it is
 * not inside any more: no client waits for it. */
SEC("cgroup/sock_release")
int release(struct bpf_sock *sk)
{
	struct origin *origin = find_origin(bpf_get_socket_cookie(sk));

	if (origin) {
		leave(origin);
		if (origin->phase == CHOSEN)
			drop_origin(origin);
	}
	return 1;
}

#include "agent.h"

/* No helper above is reserved for GPL programs, so this says what the file says. */
char _license[] SEC("license") = "Apache-2.0";
