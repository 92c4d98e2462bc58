/* Latencies in buckets that double, each split in 64: a percentile is off by 1.6 % at most. */
#ifndef BENCH_LATENCIES_H
#define BENCH_LATENCIES_H

#include <stdint.h>

enum {
    SUB_BITS = 6,
    BUCKETS = 64 << SUB_BITS,
};

struct latencies {
    uint64_t count, buckets[BUCKETS];
};

static inline unsigned bucket_of(uint64_t ns) {
    if (ns < 1u << SUB_BITS) return (unsigned)ns;
    unsigned shift = 63u - (unsigned)__builtin_clzll(ns) - SUB_BITS;
    unsigned bucket = ((shift + 1) << SUB_BITS) + (unsigned)((ns >> shift) - (1u << SUB_BITS));
    return bucket < BUCKETS ? bucket : BUCKETS - 1;
}

static inline double bucket_middle_us(unsigned bucket) {
    if (bucket < 1u << SUB_BITS) return bucket / 1e3;
    unsigned shift = (bucket >> SUB_BITS) - 1;
    uint64_t low = (uint64_t)((1u << SUB_BITS) + (bucket & ((1u << SUB_BITS) - 1))) << shift;
    return ((double)low + (double)(1ull << shift) / 2) / 1e3;
}

static inline void note_latency(struct latencies *latencies, uint64_t ns) {
    latencies->buckets[bucket_of(ns)]++;
    latencies->count++;
}

static inline double percentile_us(const struct latencies *latencies, double share) {
    uint64_t wanted = (uint64_t)((double)latencies->count * share), seen = 0;
    for (unsigned bucket = 0; bucket < BUCKETS; bucket++)
        if ((seen += latencies->buckets[bucket]) > wanted) return bucket_middle_us(bucket);
    return 0;
}

#endif
