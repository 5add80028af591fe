/* SPDX-License-Identifier: Apache-2.0
 *
 * Which backend a flow gets: look-ups only, no loop over backends.
 *
 * What is inside a group is what was sent to its backends and has not ended, TCP only: `send` puts
 * a connection in before it is judged, so that two at once cannot both be the last that fits.
 */
#ifndef FAIRLEAD_CHOOSE_H
#define FAIRLEAD_CHOOSE_H

#define READ_ONCE(x) (*(volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, value) (*(volatile typeof(x) *)&(x) = (value))

/* A program may be interrupted on its own CPU by one that counts the same, so even per-CPU
 * counters are added to atomically: `admitted` is promised to be exact. */
#define COUNT(counter, number) __sync_fetch_and_add(&(counter), (number))

/* Each retry needs a flip between two of our reads. */
#define TRIES 4
/* One backend always has room, and about half of the slots belong to backends that have: mostly one
 * of the next few, for they are evenly apart. */
#define SLOTS_TRIED 8

enum verdict { UNTOUCHED, SENT, REFUSED_SOFT, REFUSED_HARD };

struct choice {
	struct backend *backend;
	__u32 index;
	__u32 group;
};

static __always_inline __u64 heartbeat_age(__u64 now)
{
	__u32 only = 0;
	__u64 *beat = bpf_map_lookup_elem(&heartbeat, &only);
	__u64 last = beat ? READ_ONCE(*beat) : 0;

	return now > last ? now - last : 0; /* another CPU may have beaten after we looked */
}

/* Refill, cap, test, subtract. Time that went backwards refills nothing. */
static __always_inline int take_token(__u32 at, const struct budget *budget, __u64 now)
{
	struct bucket *bucket = bpf_map_lookup_elem(&buckets, &at);
	__u64 now_us = now / 1000, level;
	int admitted = 0;

	if (!bucket)
		return 0;
	bpf_spin_lock(&bucket->lock);
	level = bucket->level;
	if (now_us > bucket->filled_us) {
		__u64 elapsed = now_us - bucket->filled_us;

		level = elapsed >= budget->full_us ? budget->cap : level + elapsed * budget->rate;
		bucket->filled_us = now_us;
	}
	if (level > budget->cap)
		level = budget->cap;
	if (level >= TOKEN) {
		level -= TOKEN;
		admitted = 1;
	}
	bucket->level = level;
	bpf_spin_unlock(&bucket->lock);
	return admitted;
}

/* A socket that is bound keeps its flow when it comes back; any other is a flow of its own. */
static __always_inline __u32 flow_bucket(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	__u64 mixed = 0;

	if (sk && sk->src_port)
		mixed = (__u64)sk->src_port << 32 ^ sk->src_ip4 ^ (__u64)sk->src_ip6[3] << 16;
	else
		mixed = bpf_get_socket_cookie(ctx);
	mixed ^= mixed >> 33;
	mixed *= 0xff51afd7ed558ccdULL;
	mixed ^= mixed >> 33;
	mixed *= 0xc4ceb9fe1a85ec53ULL;
	return (mixed >> 40) & (BUCKETS - 1);
}

static __always_inline int same_tuple(const struct tuple *a, const struct tuple *b)
{
	return a->addr[0] == b->addr[0] && a->addr[1] == b->addr[1] && a->addr[2] == b->addr[2] &&
	       a->addr[3] == b->addr[3] && a->port == b->port && a->proto == b->proto;
}

/* The group of a destination; 0 where none has it. */
static __always_inline struct group *find_group(const struct tuple *wanted, __u32 *at)
{
	__u32 *found = bpf_map_lookup_elem(&vips, wanted);
	struct group *group;

	if (!found)
		return 0;
	*at = *found;
	group = bpf_map_lookup_elem(&groups, at);
	if (!group || !group->live || !same_tuple(&group->vip, wanted))
		return 0;
	return group;
}

/* Whether a slot's backend holds less than its share of what is inside, the newcomer included. */
static __always_inline int has_room(__u64 slot, __u64 total, __u64 inside, __u32 least)
{
	__u32 index = slot & ((1 << INDEX_BITS) - 1);
	__u64 share = slot >> INDEX_BITS & ((1 << SHARE_BITS) - 1), open;
	struct load *load = bpf_map_lookup_elem(&loads, &index);

	if (!load)
		return 1;
	open = (__u32)READ_ONCE(load->word);
	return open < least || open * total < inside * share;
}

/* The next slot; of a bounded group (`least` is not 0) the next with room, as far as we look. A
 * backend that is passed over loses its turn: what it does not take goes to the others by slots. */
static __always_inline __u64 next_slot(struct group *group, struct table *table, __u32 stamp,
				       __u64 total, __u32 least, __u64 inside)
{
	__u64 slot = 0;

	for (int i = 0; i < SLOTS_TRIED; i++) {
		__u64 turn = __sync_fetch_and_add(&group->cursor, 1);

		slot = READ_ONCE(table->slots[(turn % total) & (SLOTS_MAX - 1)]);
		if (!least || slot >> 32 != stamp || has_room(slot, total, inside, least))
			break;
	}
	return slot;
}

/* How many may be inside without an agent: what the table left for that case, a step more or less
 * every period, by how many connections ended well (fairlead.core.traffic.alone). Of several CPUs
 * that find it due, the one that moves the time changes the bound. */
static __always_inline __u64 relax(__u32 at, const struct alone *alone, __u64 of, __u64 now)
{
	struct relaxed *relaxed = bpf_map_lookup_elem(&relaxations, &at);
	__u64 since, past_ms, done, bound;
	int begins;

	if (!relaxed)
		return alone->inside_max;
	since = READ_ONCE(relaxed->since_ns);
	begins = READ_ONCE(relaxed->of) != of;
	bound = begins ? alone->inside_max : READ_ONCE(relaxed->inside_max);
	past_ms = now > since ? (now - since) / 1000000 : 0;
	if ((!begins && past_ms < alone->every_ms) ||
	    __sync_val_compare_and_swap(&relaxed->since_ns, since, now) != since)
		return bound;
	done = READ_ONCE(relaxed->ended) - READ_ONCE(relaxed->before);
	if (!begins && done * alone->stay_ms >= bound * past_ms)
		bound += alone->step;
	else if (!begins)
		bound = bound > alone->step ? bound - alone->step : 0;
	if (bound > alone->most)
		bound = alone->most;
	if (bound < alone->inside_max)
		bound = alone->inside_max;
	WRITE_ONCE(relaxed->inside_max, bound);
	WRITE_ONCE(relaxed->before, READ_ONCE(relaxed->ended));
	WRITE_ONCE(relaxed->of, of);
	return bound;
}

/* The backend of a flow without an agent; one that holds too much is passed over for that of one of
 * the next buckets: a backend that stalls would otherwise fill the group. */
static __always_inline __u32 hashed(struct bpf_sock_addr *ctx, struct table *table,
				    __u32 members, __u32 percent, __u64 inside)
{
	__u32 bucket = flow_bucket(ctx), index = NONE;

	for (int i = 0; i < SLOTS_TRIED; i++) {
		struct load *load;

		index = READ_ONCE(table->rendezvous[(bucket + i) & (BUCKETS - 1)]);
		load = bpf_map_lookup_elem(&loads, &index);
		if (!load || 100 * (__u64)(__u32)READ_ONCE(load->word) * members < percent * inside)
			break;
	}
	return index;
}

/*
 * The active table is read whole or not at all: its head between two equal readings of the
 * selector, its slot by the stamp. The old table of a flip that happens meanwhile stays valid,
 * until the flip after that begins to write it. `others` are inside the group already.
 */
static __always_inline int choose(struct bpf_sock_addr *ctx, struct group *group, __u32 at,
				  __u64 others, struct choice *choice)
{
	__u64 now = bpf_ktime_get_ns();
	int dead = heartbeat_age(now) >= settings.fallback_after_ns;
	int paid = 0;

	for (int i = 0; i < TRIES; i++) {
		__u64 word = READ_ONCE(group->selector);
		__u32 side = at * 2 + (word & 1);
		struct table *table = bpf_map_lookup_elem(&tables, &side);
		struct budget budget;
		struct alone alone;
		__u32 mode, total, inside_max, least, members;

		if (!table)
			return REFUSED_HARD;
		mode = dead ? table->fallback_mode : table->mode;
		total = table->total;
		inside_max = table->inside_max;
		least = table->room_least;
		members = table->members;
		alone = table->alone;
		budget = dead ? table->fallback : table->budget;
		/* An atomic operation orders the reads before it on every architecture. */
		if (__sync_fetch_and_add(&group->selector, 0) != word)
			continue;
		choice->index = NONE;
		if (dead) {
			inside_max = relax(at, &alone, word + 1, now);
			choice->index = hashed(ctx, table, members, alone.balance_percent,
					       others + 1);
		}
		if (dead ? choice->index == NONE : !total)
			return REFUSED_HARD;
		if (inside_max && others >= inside_max)
			return REFUSED_SOFT;
		if (mode != NORMAL && !paid) {
			if (!take_token(at, &budget, now))
				return mode == HARD ? REFUSED_HARD : REFUSED_SOFT;
			paid = 1;
		}
		if (!dead) {
			/* Only the admitted move the cursor: otherwise a regular drip could meet
			 * the same few slots for ever. */
			__u32 stamp = (__u32)(word >> 1);
			__u64 slot = next_slot(group, table, stamp, total,
					       inside_max ? least : 0, others + 1);

			if (slot >> 32 != stamp)
				continue;
			choice->index = slot & ((1 << INDEX_BITS) - 1);
		}
		choice->backend = bpf_map_lookup_elem(&backends, &choice->index);
		if (choice->backend && choice->backend->group == at + 1)
			return SENT;
	}
	return REFUSED_SOFT; /* four flips in a microsecond: let it try again */
}

#endif
