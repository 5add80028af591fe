/* SPDX-License-Identifier: Apache-2.0
 *
 * Remembering how a socket was sent: for its telemetry, for the name of its peer, and to count it
 * out of its group when it ends.
 */
#ifndef FAIRLEAD_ORIGINS_H
#define FAIRLEAD_ORIGINS_H

#define PROBES 4
/* Each needs another CPU that counted the same backend between our reading and our writing. */
#define LEAVE_TRIES 16

static __always_inline struct origin *origin_at(__u64 cookie, int probe)
{
	__u32 at = (__u32)(cookie + probe) & settings.origins_mask;

	return bpf_map_lookup_elem(&origins, &at);
}

/* A socket's own place, filled in or not; 0 where it was not sent by us, or found no room. */
static __always_inline struct origin *find_origin(__u64 cookie)
{
	for (int probe = 0; probe < PROBES; probe++) {
		struct origin *origin = origin_at(cookie, probe);

		if (origin && READ_ONCE(origin->cookie) == cookie)
			return origin;
	}
	return 0;
}

/* A free place made a socket's own; 0 where all are taken. */
static __always_inline struct origin *free_origin(__u64 cookie)
{
	struct origin *origin;

	for (int probe = 0; probe < PROBES; probe++) {
		origin = origin_at(cookie, probe);
		if (origin && !__sync_val_compare_and_swap(&origin->cookie, 0, cookie))
			return origin;
	}
	return 0;
}

/* A socket's own place, or a free one made its own. */
static __always_inline struct origin *take_origin(__u64 cookie)
{
	struct origin *origin = find_origin(cookie);

	return origin ? origin : free_origin(cookie);
}

static __always_inline void count_inside(__u32 at, __s64 change)
{
	struct inside *inside = bpf_map_lookup_elem(&insides, &at);

	if (inside)
		COUNT(inside->open, change);
}

static __always_inline void count_ended(__u32 at)
{
	struct relaxed *relaxed = bpf_map_lookup_elem(&relaxations, &at);

	if (relaxed)
		COUNT(relaxed->ended, 1);
}

/* One more in a backend, whose group has counted it already; returns the generation it is of, which
 * cannot end just now: the agent waits until no program is on the way to a place. */
static __always_inline __u32 enter(__u32 index)
{
	struct load *load = bpf_map_lookup_elem(&loads, &index);

	return load ? __sync_fetch_and_add(&load->word, 1) >> 32 : 0;
}

/*
 * The connection is over: the first to see that, the application's close or the last state of TCP,
 * takes it out of backend and group. Where its backend left before, the agent's FORGET has done
 * so for all of its connections.
 */
static __always_inline void leave(struct origin *origin)
{
	struct load *load;
	__u32 group, index;

	if (!READ_ONCE(origin->inside)) /* reading is cheaper than writing */
		return;
	group = __sync_lock_test_and_set(&origin->inside, 0);
	index = origin->backend;
	load = bpf_map_lookup_elem(&loads, &index);
	if (!group || !load)
		return;
	if (origin->phase == ESTABLISHED)
		count_ended(group - 1);
	for (int i = 0; i < LEAVE_TRIES; i++) {
		__u64 word = READ_ONCE(load->word);

		if (word >> 32 != origin->generation)
			return;
		if (__sync_val_compare_and_swap(&load->word, word, word - 1) == word)
			break;
	}
	/* Also if all others were faster: the backend then seems to hold one too many, and the
	 * group, which admits by it, one too few when that backend leaves. */
	count_inside(group - 1, -1);
}

/* A free place is EMPTY before it is given up: its next owner finds nothing of the last one. */
static __always_inline void drop_origin(struct origin *origin)
{
	leave(origin);
	WRITE_ONCE(origin->phase, EMPTY);
	__sync_lock_test_and_set(&origin->cookie, 0);
}

static __always_inline void fill_origin(struct origin *origin, const struct tuple *wanted,
					const struct choice *choice)
{
	origin->vip = *wanted;
	origin->peer = choice->backend->to;
	origin->backend = choice->index;
	if (wanted->proto == TCP) {
		origin->generation = enter(choice->index);
		__sync_lock_test_and_set(&origin->inside, choice->group + 1);
	}
	/* Two threads may use one UDP socket: a thread that sees CHOSEN must see the rest. */
	__sync_lock_test_and_set(&origin->phase, CHOSEN);
}

/* Put a datagram's way into its socket's place, if that is empty or of the same backend: a backend
 * that was reached through another group before now answers for this one. */
static __always_inline int fits_origin(struct origin *origin, const struct tuple *wanted,
				       const struct choice *choice)
{
	__u32 phase = READ_ONCE(origin->phase);

	if (phase == CHOSEN) {
		if (!same_tuple(&origin->peer, &choice->backend->to))
			return 0;
		if (same_tuple(&origin->vip, wanted))
			return 1;
	} else if (phase != EMPTY) {
		return 0;
	}
	if (__sync_val_compare_and_swap(&origin->phase, phase, FILLING) != phase)
		return 0;
	fill_origin(origin, wanted, choice);
	return 1;
}

#endif
