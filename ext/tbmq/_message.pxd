# cython: language_level=3
"""A published message that has to outlive the read that brought it: in flight, queued or retained.

    Message  [refs | expiry | received | sizes | flags]  data: topic | properties | payload

One allocation, shared by all who hold it and counted by `refs`; a worker is one thread, so the count needs no lock. A QoS 0
message that is delivered at once never becomes a Message.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy
from tbmq._wire cimport Span

cdef enum:
    NO_EXPIRY = 0xFFFFFFFF

cdef struct Message:
    uint64_t received_ms        # wall clock
    uint32_t refs               # freed with the last one
    uint32_t expiry_s           # as received; NO_EXPIRY when there is none
    uint32_t payload_bytes
    uint32_t properties_bytes   # MQTT 5 properties that are forwarded as they are: no alias, expiry or identifiers
    uint16_t topic_bytes
    uint8_t qos                 # as published
    uint8_t retain              # as published
    uint8_t data[0]             # topic, properties, payload


cdef inline uint8_t* message_topic(Message* message) noexcept nogil:
    return message.data


cdef inline uint8_t* message_properties(Message* message) noexcept nogil:
    return message.data + message.topic_bytes


cdef inline uint8_t* message_payload(Message* message) noexcept nogil:
    return message.data + message.topic_bytes + message.properties_bytes


cdef inline size_t message_bytes(const Message* message) noexcept nogil:
    return sizeof(Message) + message.topic_bytes + message.properties_bytes + message.payload_bytes


cdef inline Message* new_message(const Span* topic, const Span* properties, const Span* payload) noexcept nogil:
    """A message with one reference, or NULL when memory is out. The caller fills the other fields."""
    cdef Message* message = <Message*>malloc(sizeof(Message) + topic.size + properties.size + payload.size)
    if message == NULL:
        return NULL
    message.refs = 1
    message.topic_bytes = <uint16_t>topic.size
    message.properties_bytes = properties.size
    message.payload_bytes = payload.size
    memcpy(message.data, topic.data, topic.size)
    if properties.size:
        memcpy(message_properties(message), properties.data, properties.size)
    if payload.size:
        memcpy(message_payload(message), payload.data, payload.size)
    return message


cdef inline void release(Message* message) noexcept nogil:
    message.refs -= 1
    if message.refs == 0:
        free(message)


cdef inline uint32_t remaining_expiry_s(const Message* message, uint64_t now_ms) noexcept nogil:
    """Seconds left, at least 1; 0 when the message has expired; NO_EXPIRY when it never does."""
    cdef uint64_t age_ms
    if message.expiry_s == NO_EXPIRY:
        return NO_EXPIRY
    age_ms = now_ms - message.received_ms if now_ms > message.received_ms else 0
    if age_ms >= <uint64_t>message.expiry_s * 1000:
        return 0
    return <uint32_t>max(<uint64_t>1, <uint64_t>message.expiry_s - age_ms // 1000)
