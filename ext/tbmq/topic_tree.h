/* What the topic tree needs from C itself: hashing, prefetching and memory.
 *
 * Hashing is keyed: a peer that does not know the seed cannot choose words or topics that collide. `tree_hash` follows
 * wyhash (public domain): sixteen bytes per 64 x 64 -> 128 bit multiplication, its two constants replaced by the seed.
 *
 * Memory: every allocation of the tree goes through `tree_new`, so that a test can make the n-th one fail
 * (`tree_fail_after`). Blocks of a megabyte and more are mapped on their own, aligned to huge pages: a look-up in a
 * large tree is a chain of cache misses, and huge pages save the second miss, that of the page table. Such blocks also
 * go back to the system when freed. The first block of an arena is mapped without huge pages, so that a small tree
 * stays small.
 */
#ifndef TBMQ_TOPIC_TREE_H
#define TBMQ_TOPIC_TREE_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__linux__) && !defined(TBMQ_ASAN)
#define TREE_MAPS 1
#include <sys/mman.h>
#else
#define TREE_MAPS 0 /* AddressSanitizer watches only what malloc gave */
#endif

#define TREE_MAP_FROM ((size_t)1 << 20)  /* bytes; smaller blocks come from malloc */
#define TREE_HUGE_PAGE ((size_t)1 << 21) /* bytes */

/* Marks in the place of a word id. Arenas hand out no id above 0xFFFEFFFF. */
#define TREE_NO_ID 0xFFFFFFFFu /* "no memory" */
#define TREE_PLUS 0xFFFFFFFEu  /* the level `+` */
#define TREE_HASH 0xFFFFFFFDu  /* the level `#` */

#define tree_prefetch(address) __builtin_prefetch(address)

static inline uint64_t tree_mix(uint64_t a, uint64_t b)
{
    __uint128_t product = (__uint128_t)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t tree_read8(const uint8_t *p)
{
    uint64_t value;
    memcpy(&value, p, 8);
    return value;
}

static inline uint64_t tree_read4(const uint8_t *p)
{
    uint32_t value;
    memcpy(&value, p, 4);
    return value;
}

static inline uint64_t tree_hash(const uint8_t *p, size_t n, const uint64_t *seed)
{
    uint64_t state = seed[0], a, b;
    if (n <= 16) {
        if (n >= 4) {
            size_t middle = (n >> 3) << 2;
            a = (tree_read4(p) << 32) | tree_read4(p + middle);
            b = (tree_read4(p + n - 4) << 32) | tree_read4(p + n - 4 - middle);
        } else if (n > 0) {
            a = ((uint64_t)p[0] << 16) | ((uint64_t)p[n >> 1] << 8) | p[n - 1];
            b = 0;
        } else {
            a = b = 0;
        }
    } else {
        size_t left = n;
        while (left > 16) {
            state = tree_mix(tree_read8(p) ^ seed[1], tree_read8(p + 8) ^ state);
            p += 16;
            left -= 16;
        }
        a = tree_read8(p + left - 16);
        b = tree_read8(p + left - 8);
    }
    return tree_mix(seed[1] ^ n, tree_mix(a ^ seed[1], b ^ state));
}

static long tree_fail_after = -1; /* allocations that still succeed before one fails; -1: none fails */

static inline int tree_must_fail(void)
{
    if (__builtin_expect(tree_fail_after < 0, 1))
        return 0;
    return tree_fail_after-- == 0;
}

/* `size` zeroed bytes or NULL. Give it back with tree_delete and the same size. */
static inline void *tree_new(size_t size, int may_be_huge)
{
    if (tree_must_fail())
        return NULL;
#if TREE_MAPS
    if (size >= TREE_MAP_FROM) {
        size_t whole = (size + 4095) & ~(size_t)4095, before;
        uint8_t *block = mmap(NULL, whole + TREE_HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (block == MAP_FAILED)
            return NULL;
        before = (TREE_HUGE_PAGE - ((uintptr_t)block & (TREE_HUGE_PAGE - 1))) & (TREE_HUGE_PAGE - 1);
        if (before)
            munmap(block, before);
        munmap(block + before + whole, TREE_HUGE_PAGE - before);
#ifdef MADV_HUGEPAGE
        if (may_be_huge)
            madvise(block + before, whole, MADV_HUGEPAGE);
#endif
        return block + before;
    }
#endif
    (void)may_be_huge;
    return calloc(1, size);
}

static inline void tree_delete(void *block, size_t size)
{
#if TREE_MAPS
    if (size >= TREE_MAP_FROM) {
        munmap(block, (size + 4095) & ~(size_t)4095);
        return;
    }
#endif
    (void)size;
    free(block);
}

/* As realloc: the old block stays when NULL comes back. Not for blocks of tree_new. */
static inline void *tree_resize(void *block, size_t size)
{
    return tree_must_fail() ? NULL : realloc(block, size);
}

#endif
