# The C interface of tbmq._batch, for the other modules of ext/. Contracts are at the definitions in _batch.pyx.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t


cdef struct MessageView:
    # One message, in or on its way into a batch. The pointers belong to somebody else: after BatchReader.next() to the
    # batch that is read, for a writer to the caller, who keeps them valid until the call returns. A piece of size 0
    # may have any pointer. (tbmq._message.Message is the one that owns its bytes.)
    const uint8_t* publisher        # client id of the publisher
    const uint8_t* topic            # never empty
    const uint8_t* properties       # raw MQTT 5 properties without their length; see docs/batch-format.md for which
    const uint8_t* payload
    uint64_t time_ms                # receipt, milliseconds since the epoch, UTC
    uint32_t properties_bytes
    uint32_t payload_bytes
    uint32_t expiry_s               # Message Expiry Interval as received; only with has_expiry
    uint16_t publisher_bytes
    uint16_t topic_bytes
    uint16_t packet_id              # the publisher's; always 0 with QoS 0
    uint8_t qos
    uint8_t retain
    uint8_t dup
    uint8_t has_expiry


cdef class BatchWriter:
    cdef uint8_t* _data             # header, then records; owned; NULL until the first message
    cdef size_t _capacity           # bytes at _data
    cdef readonly size_t size       # bytes of the batch so far, its header included
    cdef readonly size_t max_bytes  # size never exceeds this
    cdef readonly uint32_t count    # messages so far
    cdef uint64_t _base_time_ms     # time of the first message

    cdef uint8_t* reserve(self, const MessageView* message) except? NULL nogil
    cdef int append_message(self, const MessageView* message) except -1 nogil
    cdef const uint8_t* seal(self, size_t* size) except NULL nogil
    cpdef bint full(self, size_t limit_bytes) noexcept nogil
    cpdef void reset(self) noexcept nogil
    cdef int _grow(self, size_t needed) except -1 nogil


cdef class BatchReader:
    cdef Py_buffer _view            # keeps a Python buffer alive; view.obj is NULL when open() was given memory
    cdef const uint8_t* _data       # the batch from its header on; NULL when nothing is open
    cdef size_t _offset             # where next() reads
    cdef uint32_t _index            # messages that next() has given
    cdef readonly size_t size       # bytes of the whole batch
    cdef readonly uint32_t count    # messages announced by the header; size always has room for that many
    cdef readonly uint64_t base_time_ms

    cdef int open(self, const uint8_t* data, size_t size, bint verify) except -1 nogil
    cdef int next(self, MessageView* message) except -1 nogil
    cdef void rewind(self) noexcept nogil
    cdef int _read(self, size_t* offset, uint32_t index, MessageView* message) except -1 nogil
    cdef int _check_records(self) except -1 nogil


cdef BatchReader new_reader()
