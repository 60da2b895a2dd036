# What outlives a connection, as far as the hot path needs it. Part of _engine.pyx.


@cython.final
cdef class Session:
    """The part of a client's state that the hot path needs; policy hangs its own on `state`."""

    cdef readonly Engine engine
    cdef readonly uint32_t number        # subscriber in the trie; index in engine.sessions
    cdef readonly str client_id
    cdef public object state             # whatever the policy keeps with the session
    cdef public bint keeps_messages      # QoS 1 and 2 are queued while the client is away
    cdef public uint32_t max_queued
    cdef Connection connection           # None while the client is away
    cdef Window window                   # sent, not acknowledged
    cdef Queue queue                     # waiting
    cdef IdSet received                  # QoS 2 ids between PUBLISH and PUBREL
    cdef uint32_t held_back              # entries of the window that are not sent again yet
    cdef uint64_t* resend_entries        # these, oldest first, from resend_at on; see resend(). Owned
    cdef uint32_t resend_at

    def __cinit__(self, Engine engine, uint32_t number, str client_id):
        self.engine = engine
        self.number = number
        self.client_id = client_id
        self.max_queued = 1000

    def __dealloc__(self):
        free(self.resend_entries)
        window_clear(&self.window)
        queue_clear(&self.queue)
        ids_clear(&self.received)

    @property
    def current_connection(self):
        return self.connection

    @property
    def queued(self):
        return self.queue.count

    @property
    def inflight(self):
        return self.window.count

    @property
    def received_ids(self):
        return self.received.count

    def drop_messages(self, is_denied) -> int:
        """Drops what waits for the client, or is in flight to it, on topics of which `is_denied(topic)` is true. Answers
        how many."""
        return drop_denied(self.engine, self, is_denied)

    def forget_flows(self):
        """Clean start: what was in flight or queued is gone."""
        forget_held_back(self)
        window_clear(&self.window)
        queue_clear(&self.queue)
        ids_clear(&self.received)
