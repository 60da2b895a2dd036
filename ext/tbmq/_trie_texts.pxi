"""Texts of topics and filters: what Python hands in, what a filter may look like, and whether it matches one topic."""


cdef struct Text:
    const uint8_t* data  # into the Python object
    size_t size


cdef int view(object text, Text* out) except -1:
    """The bytes of a `bytes` or `str`, valid as long as the object. ValueError: a str that UTF-8 cannot say."""
    cdef Py_ssize_t size
    if type(text) is bytes:
        out.data = <const uint8_t*>PyBytes_AS_STRING(text)
        out.size = <size_t>PyBytes_GET_SIZE(text)
        return 0
    if isinstance(text, str):
        out.data = <const uint8_t*>PyUnicode_AsUTF8AndSize(text, &size)
        out.size = <size_t>size
        return 0
    raise TypeError(f"bytes or str wanted, not {type(text).__name__}")


cdef int check(int answer) except? -1:
    """The answer of a C call, or its exception."""
    if answer == INVALID:
        raise ValueError("not a valid topic or topic filter")
    if answer == NO_MEMORY:
        raise MemoryError()
    return answer


cdef bint has_misplaced_wildcard(const uint8_t* topic_filter, size_t size) noexcept nogil:
    """[MQTT-4.7.1-1, MQTT-4.7.1-2]: `#` is a whole level and the last one, `+` is a whole level."""
    cdef size_t i
    for i in range(size):
        if topic_filter[i] == c"+" or topic_filter[i] == c"#":
            if i > 0 and topic_filter[i - 1] != c"/":
                return True
            if i + 1 < size and (topic_filter[i] == c"#" or topic_filter[i + 1] != c"/"):
                return True
    return False


cdef bint filter_matches(
        const uint8_t* topic_filter, size_t filter_size, const uint8_t* topic, size_t topic_size) noexcept nogil:
    """Both are read once, side by side. The filter is valid."""
    cdef size_t f = 0
    cdef size_t t = 0
    if topic_size > 0 and topic[0] == c"$" and (topic_filter[0] == c"+" or topic_filter[0] == c"#"):
        return False  # [MQTT-4.7.2-1]
    while True:  # both stand at the start of a level
        if f < filter_size and topic_filter[f] == c"#":
            return True
        if f < filter_size and topic_filter[f] == c"+":
            f += 1
            while t < topic_size and topic[t] != c"/":
                t += 1
        else:
            while f < filter_size and topic_filter[f] != c"/":
                if t == topic_size or topic[t] != topic_filter[f]:
                    return False
                f += 1
                t += 1
            if t < topic_size and topic[t] != c"/":
                return False
        if f == filter_size:
            return t == topic_size
        if t == topic_size:  # `a/#` matches `a`
            return f + 2 == filter_size and topic_filter[f + 1] == c"#"
        f += 1
        t += 1


def check_topic_filter(topic_filter, uint32_t max_topic_levels=128):
    """0, or 0x8F (Topic Filter invalid). Linear. A prefix such as `$share/group/` has been taken off before."""
    cdef Text text
    try:
        view(topic_filter, &text)
    except UnicodeEncodeError:
        return 0x8F
    if (text.size == 0 or text.size > MAX_TOPIC_BYTES or not is_mqtt_utf8(text.data, text.size)
            or has_misplaced_wildcard(text.data, text.size) or has_more_levels(text.data, text.size, max_topic_levels)):
        return 0x8F
    return 0


def topic_matches(topic_filter, topic):
    """Does this one filter match this one topic? ValueError: not a filter. Linear."""
    cdef Text pattern, name
    view(topic_filter, &pattern)
    view(topic, &name)
    if pattern.size == 0 or pattern.size > MAX_TOPIC_BYTES or has_misplaced_wildcard(pattern.data, pattern.size):
        raise ValueError("not a valid topic filter")
    return filter_matches(pattern.data, pattern.size, name.data, name.size)
