/* SPDX-License-Identifier: Apache-2.0
 *
 * The agent's orders, carried out here: what they need to know is read and changed in one place.
 */
#ifndef FAIRLEAD_AGENT_H
#define FAIRLEAD_AGENT_H

/* The connections of a backend that leaves count no more, in it or in its group; the next backend in
 * its place begins at 0. Each connection is taken out here or by its own end, whichever finds its
 * generation first. The agent has seen to it that nothing leads here any more. */
static __always_inline void forget(__u32 index)
{
	struct backend *backend = bpf_map_lookup_elem(&backends, &index);
	struct load *load = bpf_map_lookup_elem(&loads, &index);
	__u64 word;

	if (!backend || !load)
		return;
	word = READ_ONCE(load->word); /* only this changes the generation */
	word = __sync_lock_test_and_set(&load->word, ((word >> 32) + 1) << 32);
	if (backend->group)
		count_inside(backend->group - 1, -(__s64)(__u32)word);
}

/*
 * A flip is one compare-and-swap of one word, and only a living agent may do it: whether it lives
 * is judged here and now, not when it began to think. A change of the backends (RESHAPE) is no
 * decision about traffic and is let through at any age; it cannot change the epoch.
 */
SEC("syscall")
int agent(struct order *order)
{
	__u64 now = bpf_ktime_get_ns(), age = heartbeat_age(now), current;
	__u32 at = order->group, only = 0;
	struct group *group;
	__u64 *beat;

	if (order->kind == BEAT) {
		beat = bpf_map_lookup_elem(&heartbeat, &only);
		if (beat)
			WRITE_ONCE(*beat, now);
		return DONE;
	}
	if (order->kind == LOOK) {
		order->word = age;
		return DONE;
	}
	if (order->kind == FORGET) {
		forget((__u32)order->word);
		return DONE;
	}
	group = bpf_map_lookup_elem(&groups, &at);
	if (!group)
		return LOST;
	current = READ_ONCE(group->selector);
	if (order->kind == FLIP && age >= settings.hold_after_ns)
		return HELD;
	if (order->kind == FLIP && order->word >> 16 <= current >> 16)
		return OUTDATED;
	if (order->kind == RESHAPE && order->word >> 16 != current >> 16)
		return OUTDATED;
	if (__sync_val_compare_and_swap(&group->selector, order->expected, order->word) !=
	    order->expected)
		return LOST;
	return DONE;
}

#endif
