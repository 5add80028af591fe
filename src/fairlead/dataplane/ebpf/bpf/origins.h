/* SPDX-License-Identifier: Apache-2.0
 *
 * Remembering how a socket was sent: for its telemetry, and for the name of its peer.
 */
#ifndef FAIRLEAD_ORIGINS_H
#define FAIRLEAD_ORIGINS_H

#define PROBES 4

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

/* A socket's own place, or a free one made its own; 0 where all are taken. */
static __always_inline struct origin *take_origin(__u64 cookie)
{
	struct origin *origin = find_origin(cookie);

	if (origin)
		return origin;
	for (int probe = 0; probe < PROBES; probe++) {
		origin = origin_at(cookie, probe);
		if (origin && !__sync_val_compare_and_swap(&origin->cookie, 0, cookie))
			return origin;
	}
	return 0;
}

/* A free place is EMPTY before it is nobody's: its next owner finds nothing of the last one. */
static __always_inline void drop_origin(struct origin *origin)
{
	WRITE_ONCE(origin->phase, EMPTY);
	__sync_lock_test_and_set(&origin->cookie, 0);
}

static __always_inline void fill_origin(struct origin *origin, const struct tuple *wanted,
					const struct choice *choice)
{
	origin->vip = *wanted;
	origin->peer = choice->backend->to;
	origin->backend = choice->index;
	origin->generation = choice->backend->generation;
	/* Two threads may use one UDP socket: whoever sees CHOSEN must see the rest. */
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
