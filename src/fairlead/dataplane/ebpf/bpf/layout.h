/* SPDX-License-Identifier: Apache-2.0
 *
 * What the agent and the programs share: every map's key and value. `layout.py` says the same in
 * Python; `SCHEMA_VERSION` of fairlead.ports.dataplane rises with every change of either.
 */
#ifndef FAIRLEAD_LAYOUT_H
#define FAIRLEAD_LAYOUT_H

#define SLOTS_MAX 1024    /* of one table; a power of two, so that one AND bounds an index */
#define BUCKETS 1024      /* of flow hashes in fallback; likewise */
#define NAME_BYTES 128
#define NONE 0xffffffff   /* as an index: no backend */
#define TOKEN 1000000000000ULL /* one admission, in the bucket's unit of 1e-12 */

/* A slot: stamp << 32 | share << INDEX_BITS | backend. */
#define INDEX_BITS 20
#define SHARE_BITS 12

/* How many there may be; the agent sets its own figures before it loads the object. */
#define GROUPS_MAX 256
#define BACKENDS_MAX 4096
#define CONNECTIONS_MAX 65536
#define REPLIES_MAX 65536

enum mode { NORMAL, SOFT, HARD };

/* One end of a flow. IPv4 is written ::ffff:a.b.c.d, so that a v4 address is the same key
 * whether a v4 socket or a dual-stack v6 socket asks for it. All in network order. */
struct tuple {
	__u32 addr[4];
	__u16 port;
	__u8 proto; /* IPPROTO_TCP or IPPROTO_UDP */
	__u8 zero;
};

/* A budget as the bucket counts: 1e-12 admissions per microsecond are 1e-6 per second. */
struct budget {
	__u64 rate;    /* 1e-12 admissions per microsecond */
	__u64 cap;     /* 1e-12 admissions */
	__u64 full_us; /* after so long the bucket is full, whatever it held: no overflow */
};

/* How many may be inside a group without an agent, and by what that is relaxed. */
struct alone {
	__u32 inside_max;
	__u32 most;
	__u32 step;
	__u32 every_ms;
	__u32 stay_ms; /* how long a connection is to stay */
	__u32 balance_percent; /* of an even share: a backend that holds more is passed over */
};

/* One decision for one group; a group has two, A and B, at group * 2 + side. */
struct table {
	__u64 word;  /* the selector's word under which it is read */
	__u64 decision; /* one more than the recorded decision it carries out; 0: none */
	__u32 total; /* slots in use; 0: no backend may be sent anything */
	__u32 mode;
	__u32 fallback_mode; /* with `fallback`: admission when the agent is dead */
	__u32 inside_max; /* connections in the group at once; 0: no bound */
	__u32 room_least; /* a backend may hold this many, whatever its share of what is inside */
	__u32 members; /* backends that flows are hashed to in fallback */
	struct budget budget;
	struct budget fallback;
	struct alone alone;
	/* Stamp (bits 1 to 32 of the word) above, below it how many slots its backend has in all,
	 * and the backend. A reader that was put to sleep while the table was written anew sees the
	 * wrong stamp and starts again. */
	__u64 slots[SLOTS_MAX];
	/* Flow hash to backend, by highest random weight: when a backend leaves, only its own
	 * buckets change. Written by the agent, because a loop over backends has no place here. */
	__u32 rendezvous[BUCKETS];
};

struct group {
	/* epoch << 16 | turn << 1 | side: which table is active, and which decision it is, in one
	 * word. `turn` counts every flip, also those that a change of the backends needs. */
	__u64 selector;
	__u64 cursor; /* admissions so far: the next one takes slot cursor % total */
	struct tuple vip; /* in full: an index that was given to another group does not match */
	__u32 live;
	char name[NAME_BYTES];
};

struct backend {
	struct tuple to;
	__u32 group; /* one more than the index of the only group that may send here; 0: none */
	char name[NAME_BYTES];
};

struct bucket {
	struct bpf_spin_lock lock;
	__u32 zero;
	__u64 level;     /* 1e-12 admissions */
	__u64 filled_us; /* when it was last refilled */
};

/* Per CPU. */
struct group_count {
	__u64 admitted;
	__u64 refused_soft;
	__u64 refused_hard;
};

/* Per CPU. */
struct backend_count {
	__u64 admitted;
	__u64 established;
	__u64 failed;
	__u64 retransmitted; /* segments */
};

/* Shared between CPUs: a run of failures has an order. */
struct health {
	__u32 failures_in_a_row;
	__u32 srtt_eighths_us; /* as the kernel keeps it; moving average, gain 1/8; 0: none yet */
	__u32 off_eighths_us; /* how far from it the next one was; moving average, gain 1/4 */
	__u32 zero;
};

/* TCP connections in a backend, from the choice to the end, and which backend that is: sockets
 * remember the generation they were sent in, and those of an older one count no more. One word, so
 * that both are compared and changed at once. Only programs write it. */
struct load {
	__u64 word; /* generation << 32 | open */
};

/* The sum of a group's loads, and for an instant more or less. Only programs write it. */
struct inside {
	__s64 open;
};

/* The bound of a group without an agent, as it is relaxed now. Only programs write it. */
struct relaxed {
	__u64 ended; /* connections that were established and are over, ever */
	__u64 of; /* one more than the selector's word of the table it began with; 0: of none */
	__u64 since_ns;
	__u64 before; /* `ended` at that time */
	__u32 inside_max;
	__u32 zero;
};

enum phase { EMPTY, FILLING, CHOSEN, BEGUN, ESTABLISHED };

/* How a socket was sent. The place is the socket's cookie modulo the size of the array, or
 * one of the next three: cookies are handed out in a row, so neighbours in time are neighbours in
 * memory, and one cache line is all that a connect pays. The kernel's own per-socket storage
 * costs 550 ns more for its allocations, a hash map 300 ns for its cache misses. */
struct origin {
	__u64 cookie;      /* whose this is; 0: free */
	struct tuple vip;  /* what the application asked for */
	struct tuple peer; /* what it got */
	__u32 backend;
	__u32 generation;
	__u32 phase;
	__u32 inside; /* one more than the group it counts in; 0: in none (UDP, or over) */
};

/* An unconnected UDP socket may be sent to several backends, and only the first is in `origins`:
 * one entry per other answer to expect. */
struct reply {
	__u64 cookie; /* of the socket */
	struct tuple peer;
	__u32 zero;
};

/* Told by the agent before the object is loaded; the verifier sees constants. */
struct settings {
	__u64 hold_after_ns;
	__u64 fallback_after_ns;
	__u32 errno_soft;
	__u32 errno_hard;
	__u32 has_retval; /* bpf_set_retval in these hooks: Linux 6.1 */
	__u32 origins_mask; /* one less than the places in `origins`, a power of two */
};

/* What the agent asks of the kernel, and the answers. */
enum order_kind { BEAT, FLIP, RESHAPE, LOOK, FORGET };
enum order_answer { DONE, HELD, OUTDATED, LOST };

struct order {
	__u32 kind;
	__u32 group;
	__u64 expected; /* the selector as the agent knows it */
	/* FLIP, RESHAPE: its new word. LOOK: the heartbeat's age in ns comes back. FORGET: the
	 * backend whose connections count no more. */
	__u64 word;
};

#endif
