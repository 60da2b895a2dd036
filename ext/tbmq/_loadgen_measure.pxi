# Latencies and sequence numbers. Part of _loadgen.pyx.
#
# Histogram: 128 buckets per power of two, so a value is known to better than 1 %.
#
#     value   0 1 2 ... 127 | 128 ... 255 | 256,257  258,259 ... | 512-515 ... |      up to 2^64 - 1
#     bucket  0 1 2 ... 127 | 128 ... 255 | 256      257     ... | 384     ... |
#
# Stream: what one subscriber has of one publisher. A ring of bits remembers which of the last numbers have arrived:
#
#     bits    [ 1 1 1 1 0 1 1 . . . . . ]      . : older numbers, until `next` comes round and clears the word
#                       ^late   ^next          next: one above the highest that has arrived
#
#     number == next                    arrived in order: the common case, one word touched
#     number >  next                    those between are missing so far
#     number <  next, bit not set       late: arrived, out of order
#     number <  next, bit set           duplicate; also what is older than the ring (told so in docs/benchmarking.md)
#
# Lost is what was sent and never arrived: known only at the end, by whoever knows what was sent.

cdef enum:
    SUB_BITS = 7
    SUB_BUCKETS = 1 << SUB_BITS
    BUCKETS = (65 - SUB_BITS) * SUB_BUCKETS

HISTOGRAM_BUCKETS = BUCKETS


cdef inline uint32_t bucket_of(uint64_t value) noexcept nogil:
    cdef int shift
    if value < SUB_BUCKETS:
        return <uint32_t>value
    shift = loadgen_log2(value) - SUB_BITS
    return <uint32_t>((shift << SUB_BITS) + (value >> shift))


cdef uint64_t highest_in(uint32_t bucket) noexcept nogil:
    """The highest value that falls into the bucket."""
    cdef int shift
    if bucket < 2 * SUB_BUCKETS:
        return bucket
    shift = (bucket >> SUB_BITS) - 1
    return (((<uint64_t>(bucket & (SUB_BUCKETS - 1)) + SUB_BUCKETS + 1) << shift) - 1)


@cython.final
cdef class Histogram:
    """Counts 64-bit values. Histograms of several processes are merged by their counts."""

    cdef uint64_t counts[BUCKETS]
    cdef uint64_t maximum

    cdef inline void put(self, uint64_t value) noexcept nogil:
        self.counts[bucket_of(value)] += 1
        if value > self.maximum:
            self.maximum = value

    cdef void clear(self) noexcept nogil:
        memset(self.counts, 0, sizeof(self.counts))
        self.maximum = 0

    def record(self, uint64_t value):
        self.put(value)

    @property
    def max(self):
        return self.maximum

    @property
    def count(self):
        cdef uint64_t total = 0
        cdef int i
        for i in range(BUCKETS):
            total += self.counts[i]
        return total

    def percentile(self, double percent):
        """The smallest value that `percent` of all values do not exceed, to better than 1 %; 0 when there are none."""
        cdef uint64_t total = self.count, seen = 0
        cdef double wanted = total * percent / 100.0
        cdef int i
        for i in range(BUCKETS):
            seen += self.counts[i]
            if seen and seen >= wanted:
                return min(highest_in(i), self.maximum)
        return self.maximum

    def dump(self):
        """Counts as pairs of bucket and count, and the maximum: what `merge` takes, fit for JSON."""
        return {"max": self.maximum, "counts": [[i, self.counts[i]] for i in range(BUCKETS) if self.counts[i]]}

    def merge(self, dumped):
        cdef uint32_t bucket
        for bucket, count in dumped["counts"]:
            if bucket >= BUCKETS:
                raise ValueError(f"there is no bucket {bucket}")
            self.counts[bucket] += <uint64_t>count
        self.maximum = max(self.maximum, <uint64_t>dumped["max"])


cdef struct Stream:
    uint64_t next                # one above the highest number that has arrived
    uint64_t arrived             # distinct numbers
    uint64_t duplicates
    uint64_t late                # arrived after a higher one
    uint64_t* bits               # ring of `words` words


cdef inline void arrive(Stream* stream, uint64_t number, uint64_t words) noexcept nogil:
    cdef uint64_t* word
    if loadgen_likely(number == stream.next):
        word = &stream.bits[(number >> 6) & (words - 1)]
        # The first bit of a word clears what the ring held there before.
        word[0] = (word[0] if number & 63 else 0) | (<uint64_t>1 << (number & 63))
        stream.next = number + 1
        stream.arrived += 1
    else:
        arrive_out_of_order(stream, number, words)


cdef void arrive_out_of_order(Stream* stream, uint64_t number, uint64_t words) noexcept nogil:
    cdef uint64_t bit = <uint64_t>1 << (number & 63)
    cdef uint64_t* word = &stream.bits[(number >> 6) & (words - 1)]
    cdef uint64_t i, newest
    if number >= stream.next:
        newest = number >> 6
        i = (stream.next + 63) >> 6  # the first word that has not been entered
        if newest >= i + words:
            i = newest - words + 1
        while i <= newest:
            stream.bits[i & (words - 1)] = 0
            i += 1
        word[0] |= bit
        stream.next = number + 1
        stream.arrived += 1
    elif ((stream.next - 1) >> 6) - (number >> 6) >= words or word[0] & bit:
        stream.duplicates += 1
    else:
        word[0] |= bit
        stream.arrived += 1
        stream.late += 1


@cython.final
cdef class StreamChecker:
    """One stream for Python: tests compare it with a slow, obvious one."""

    cdef Stream stream
    cdef uint64_t words

    def __init__(self, uint64_t window=4096):
        self.words = words_for(window)
        self.stream.bits = <uint64_t*>calloc(self.words, 8)
        if self.stream.bits == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.stream.bits)

    def arrive(self, uint64_t number):
        arrive(&self.stream, number, self.words)

    def statistics(self):
        return {"arrived": self.stream.arrived, "duplicates": self.stream.duplicates, "late": self.stream.late}


cdef uint64_t words_for(uint64_t window) except 0:
    """Words of a ring that remembers `window` numbers: a power of two."""
    if window < 64 or window & (window - 1):
        raise ValueError("a window is a power of two, at least 64")
    return window // 64
