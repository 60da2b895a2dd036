"""TopicTrie: concrete topics -> numbers, the index of the retained store. `_topic_index.pxd` draws the structure."""


@cython.final
cdef class TopicTrie:
    """Concrete topic -> opaque number (0 to 2**64 - 1), matched by a topic filter."""

    def __cinit__(self):
        if not index_init(&self.index, SEED):
            raise MemoryError()

    def __dealloc__(self):
        tree_destroy(&self.index.tree)  # no walk is left: each holds a reference to this object

    cdef int put(self, const uint8_t* topic, size_t size, uint64_t value, uint64_t* old) noexcept:
        cdef uint32_t place
        return index_put(&self.index, topic, size, value, old, &place)

    cdef bint look_up(self, const uint8_t* topic, size_t size, uint64_t* value) noexcept:
        cdef uint32_t node = index_find(&self.index, topic, size)
        if node == NONE:
            return False
        value[0] = topic_node(&self.index, node).value
        return True

    cdef bint take(self, const uint8_t* topic, size_t size, uint64_t* old) noexcept:
        cdef uint32_t node = index_find(&self.index, topic, size)
        if node == NONE:
            return False
        old[0] = index_take(&self.index, node)
        return True

    def __len__(self):
        return self.index.size

    def set(self, topic, uint64_t value):
        """The number that was there, or None. ValueError: empty, longer than 65,535 bytes, or with a wildcard."""
        cdef Text text
        cdef uint64_t old
        view(topic, &text)
        return old if check(self.put(text.data, text.size, value, &old)) == REPLACED else None

    def get(self, topic):
        """The number, or None."""
        cdef Text text
        cdef uint64_t value
        view(topic, &text)
        return value if self.look_up(text.data, text.size, &value) else None

    def remove(self, topic):
        """The number that was there, or None."""
        cdef Text text
        cdef uint64_t old
        view(topic, &text)
        return old if self.take(text.data, text.size, &old) else None

    def match(self, topic_filter):
        """The numbers of all topics that the filter matches, at once; `walk` gives them in pages."""
        cdef Text text
        cdef Walk walk
        cdef uint64_t visits = <uint64_t>-1
        cdef uint32_t node
        cdef list values = []
        view(topic_filter, &text)
        check(walk_begin(&self.index, &walk, text.data, text.size))
        try:
            while True:
                node = walk_next(&self.index, &walk, &visits)
                if node == NONE:
                    return values
                values.append(topic_node(&self.index, node).value)
        finally:
            walk_end(&self.index, &walk)

    def walk(self, topic_filter):
        """The same with the topics, page by page, while the trie may change between the pages."""
        cdef Text text
        cdef TopicWalk walk = TopicWalk.__new__(TopicWalk)
        view(topic_filter, &text)
        check(walk_begin(&self.index, &walk.walk, text.data, text.size))
        walk.trie = self
        walk_register(&self.index, &walk.walk)
        return walk

    def clear(self):
        """Remove every topic; walks are then at their end. MemoryError: nothing has changed."""
        cdef TopicIndex empty
        if not index_init(&empty, SEED):
            tree_destroy(&empty.tree)
            raise MemoryError()
        while self.index.walks != NULL:
            walk_end(&self.index, self.index.walks)
            walk_unregister(&self.index, self.index.walks)
        tree_destroy(&self.index.tree)
        self.index = empty

    def statistics(self):
        return {
            "topics": self.index.size,
            "nodes": self.index.tree.nodes.live - 1,
            "words": self.index.tree.words.live - 1,
            "bytes": tree_bytes(&self.index.tree),
        }


@cython.final
@cython.no_gc_clear  # the trie must still be there when the walk gives back its words
cdef class TopicWalk:
    """Made by TopicTrie.walk. A topic that is there during the whole walk comes exactly once, others at most once."""

    def __dealloc__(self):
        if self.trie is not None:
            self.finish()

    cdef void finish(self) noexcept:
        if self.walk.words != NULL:
            walk_end(&self.trie.index, &self.walk)
        if self.walk.previous != NULL or self.trie.index.walks == &self.walk:
            walk_unregister(&self.trie.index, &self.walk)

    @property
    def done(self):
        return self.walk.node == ROOT

    def next(self, uint32_t limit, uint64_t max_visits=0):
        """Up to `limit` (at least 1) pairs of topic and number, in no particular order; an empty list is the end.

        With `max_visits` the call also ends after so many nodes, for filters that match little of what they must look
        at; an empty list is then the end only if `done` says so.
        """
        cdef TopicIndex* index = &self.trie.index
        cdef uint64_t visits = max_visits if max_visits else <uint64_t>-1
        cdef uint64_t value
        cdef uint32_t node
        cdef size_t size
        cdef bytes topic
        cdef list page = []
        if limit == 0:
            raise ValueError("a page has at least one topic")
        while <uint32_t>len(page) < limit:
            node = walk_next(index, &self.walk, &visits)
            if node == NONE:
                break
            walk_rest(index, &self.walk)
            size = topic_size(index, node)
            topic = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)
            write_topic(index, node, <uint8_t*>PyBytes_AS_STRING(topic), size)
            value = topic_node(index, node).value
            page.append((topic, value))  # a new tuple may run the collector, and that anything: the walk rests
        if self.walk.node == ROOT:
            self.finish()
        else:
            walk_rest(index, &self.walk)
        return page
