/* SPDX-License-Identifier: Apache-2.0
 *
 * The maps, all pinned: they are the dataplane's memory, and outlive agent and upgrade alike.
 */
#ifndef FAIRLEAD_MAPS_H
#define FAIRLEAD_MAPS_H

#define MAP(map_type, entries, key_type, value_type)  \
	struct {                                      \
		__uint(type, map_type);               \
		__uint(max_entries, entries);         \
		__type(key, key_type);                \
		__type(value, value_type);            \
	}

MAP(BPF_MAP_TYPE_ARRAY, 1, __u32, __u32) schema SEC(".maps");
MAP(BPF_MAP_TYPE_ARRAY, 1, __u32, __u64) heartbeat SEC(".maps");
MAP(BPF_MAP_TYPE_HASH, GROUPS_MAX, struct tuple, __u32) vips SEC(".maps");
MAP(BPF_MAP_TYPE_ARRAY, GROUPS_MAX, __u32, struct group) groups SEC(".maps");
MAP(BPF_MAP_TYPE_ARRAY, 2 * GROUPS_MAX, __u32, struct table) tables SEC(".maps");
MAP(BPF_MAP_TYPE_ARRAY, GROUPS_MAX, __u32, struct bucket) buckets SEC(".maps");
MAP(BPF_MAP_TYPE_PERCPU_ARRAY, GROUPS_MAX, __u32, struct group_count) group_counts SEC(".maps");
MAP(BPF_MAP_TYPE_ARRAY, BACKENDS_MAX, __u32, struct backend) backends SEC(".maps");
MAP(BPF_MAP_TYPE_ARRAY, BACKENDS_MAX, __u32, struct health) healths SEC(".maps");
MAP(BPF_MAP_TYPE_PERCPU_ARRAY, BACKENDS_MAX, __u32, struct backend_count) backend_counts SEC(".maps");
MAP(BPF_MAP_TYPE_ARRAY, BACKENDS_MAX, __u32, struct load) loads SEC(".maps");
MAP(BPF_MAP_TYPE_ARRAY, GROUPS_MAX, __u32, struct inside) insides SEC(".maps");
MAP(BPF_MAP_TYPE_ARRAY, GROUPS_MAX, __u32, struct relaxed) relaxations SEC(".maps");
MAP(BPF_MAP_TYPE_ARRAY, CONNECTIONS_MAX, __u32, struct origin) origins SEC(".maps");
MAP(BPF_MAP_TYPE_LRU_HASH, REPLIES_MAX, struct reply, struct tuple) replies SEC(".maps");

/* It is never read. The kernel waits for all running programs when a map inside a map is replaced,
 * and that is how the agent knows that no program still holds an index before it is reused. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, MAP(BPF_MAP_TYPE_ARRAY, 1, __u32, __u64));
} barrier SEC(".maps");

#endif
