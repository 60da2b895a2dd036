# cython: language_level=3
"""WebSocket frames (RFC 6455), server's side, no I/O: a stream of frames in, a stream of plain bytes out.

MQTT is a byte stream over binary frames [MQTT-6.0.0-2]: where a frame or message ends means nothing to it. So nothing
is collected. A read is turned, in its own buffer, into the payloads that it holds, one behind the other, and one call
gives them all to the engine, however many frames there were:

    before   [head payload][head payload][head pay        one read, masked
    after    [payload|payload|pay]                        unmasked; read() answers how many bytes

What stays between two reads is a partial head (14 bytes at most), how much of a payload is still to come, and the
payload of a control frame (125 bytes at most). A length that a peer announces is compared with a bound and allocates
nothing.

Rejected: picows. It hands each frame to Python, one call per MQTT packet for most clients; here it is one per read.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy, memmove

cdef enum:
    FIN = 0x80
    RESERVED_BITS = 0x70
    MASKED = 0x80
    CONTROL = 0x08               # opcodes from here on are control frames
    OP_CONTINUATION = 0x0
    OP_TEXT = 0x1
    OP_BINARY = 0x2
    OP_CLOSE = 0x8
    OP_PING = 0x9
    OP_PONG = 0xA
    MAX_HEAD_BYTES = 14          # 2, then 0, 2 or 8 of length, then 4 of mask
    MAX_CONTROL_BYTES = 125

BINARY = OP_BINARY
CLOSE = OP_CLOSE
PING = OP_PING
PONG = OP_PONG

NORMAL = 1000
PROTOCOL_ERROR = 1002
UNSUPPORTED_DATA = 1003
INVALID_TEXT = 1007
TOO_LARGE = 1009


@cython.final
cdef class FrameReader:
    """The frames of one client. Once `close_code` is set nothing more is read."""

    cdef public uint64_t max_frame_bytes  # a data frame over this is refused
    cdef readonly int close_code          # 0: goes on; else what to close with
    cdef readonly bint is_closed_by_peer  # its close frame came; close_code is the answer
    cdef readonly str fault               # what the peer did wrong; empty when nothing
    cdef bytes ping                       # payload of the last ping that was not answered; None: there is none
    cdef uint8_t head[MAX_HEAD_BYTES]
    cdef int head_size                    # bytes of the head that are here
    cdef int head_needed                  # 2 until these tell how long it is
    cdef uint8_t mask[4]
    cdef int phase                        # which byte of the mask is next
    cdef uint64_t missing                 # bytes of the payload still to come
    cdef bint in_message                  # a message began whose last fragment has not come
    cdef uint8_t control[MAX_CONTROL_BYTES]
    cdef int control_size

    def __cinit__(self, uint64_t max_frame_bytes):
        self.max_frame_bytes = max_frame_bytes
        self.head_needed = 2
        self.fault = ""

    def read(self, buffer not None, Py_ssize_t size):
        """Turns the first `size` bytes of a writable buffer into plain bytes; answers how many there are.

        They are valid even when `close_code` is set: they came before the bad frame.
        """
        cdef Py_buffer view
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        try:
            if size > view.len:
                raise ValueError("size is over the buffer's")
            return read_frames(self, <uint8_t*>view.buf, size)
        finally:
            PyBuffer_Release(&view)

    def take_ping(self):
        """The payload to answer with a pong, or None. Of several pings only the last needs an answer (RFC 6455, 5.5.3),
        so pings cannot make us collect pongs."""
        ping, self.ping = self.ping, None
        return ping


def encode_frame(int opcode, bytes payload not None):
    """One whole, unmasked frame."""
    cdef size_t size = len(payload)
    cdef size_t head_size = 2 if size < 126 else 4 if size < 65_536 else 10
    cdef bytes frame = PyBytes_FromStringAndSize(NULL, head_size + size)
    cdef uint8_t* out = <uint8_t*>PyBytes_AS_STRING(frame)
    cdef int i
    out[0] = <uint8_t>(FIN | opcode)
    if head_size == 2:
        out[1] = <uint8_t>size
    elif head_size == 4:
        out[1], out[2], out[3] = 126, <uint8_t>(size >> 8), <uint8_t>size
    else:
        out[1] = 127
        for i in range(8):
            out[2 + i] = <uint8_t>(<uint64_t>size >> (56 - 8 * i))
    memcpy(out + head_size, PyBytes_AS_STRING(payload), size)
    return frame


cdef Py_ssize_t read_frames(FrameReader reader, uint8_t* data, Py_ssize_t size) except -1:
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t out = 0
    cdef size_t part
    while at < size and not reader.close_code:
        if reader.head_size < reader.head_needed:
            part = min(reader.head_needed - reader.head_size, size - at)
            memcpy(reader.head + reader.head_size, data + at, part)
            reader.head_size += <int>part
            at += part
            if reader.head_size == 2 and reader.head_needed == 2:
                check_opcode(reader)  # tells how many more are needed
            if reader.head_size == reader.head_needed and not reader.close_code:
                begin_payload(reader)
        else:
            part = <size_t>min(reader.missing, <uint64_t>(size - at))
            if reader.head[0] & CONTROL:
                unmask(reader, reader.control + reader.control_size, data + at, part)
                reader.control_size += <int>part
            else:
                unmask(reader, data + out, data + at, part)
                out += part
            at += part
            reader.missing -= part
        if reader.head_size == reader.head_needed and not reader.missing and not reader.close_code:
            end_frame(reader)
    return out


cdef void refuse(FrameReader reader, int code, str fault) noexcept:
    reader.close_code = code
    reader.fault = fault


cdef void check_opcode(FrameReader reader) noexcept:
    """The first two bytes are here: opcode, flags, and how long the head is."""
    cdef int opcode = reader.head[0] & 0x0F
    cdef int length = reader.head[1] & 0x7F
    cdef bint is_last = reader.head[0] & FIN
    if reader.head[0] & RESERVED_BITS:
        refuse(reader, PROTOCOL_ERROR, "a reserved bit is set")
    elif not reader.head[1] & MASKED:
        refuse(reader, PROTOCOL_ERROR, "a frame is not masked")
    elif opcode == OP_TEXT:
        refuse(reader, UNSUPPORTED_DATA, "a text frame: MQTT is binary")  # [MQTT-6.0.0-1]
    elif opcode & CONTROL:
        if opcode > OP_PONG:
            refuse(reader, PROTOCOL_ERROR, "an unknown control frame")
        elif not is_last:
            refuse(reader, PROTOCOL_ERROR, "a control frame in fragments")
        elif length > MAX_CONTROL_BYTES:
            refuse(reader, PROTOCOL_ERROR, "a control frame is over 125 bytes")
    elif opcode > OP_BINARY:
        refuse(reader, PROTOCOL_ERROR, "an unknown data frame")
    elif (opcode == OP_CONTINUATION) != reader.in_message:
        refuse(
            reader,
            PROTOCOL_ERROR,
            "a message begins inside another" if reader.in_message else "a fragment without a beginning"
        )
    reader.head_needed = 6 if length < 126 else 8 if length == 126 else 14


cdef void begin_payload(FrameReader reader) noexcept:
    """The head is whole: length and mask."""
    cdef uint64_t length = reader.head[1] & 0x7F
    cdef int i
    if length >= 126:
        length = 0
        for i in range(2, reader.head_needed - 4):
            length = length << 8 | reader.head[i]
        if length < (126 if reader.head_needed == 8 else 65_536) or length >> 63:
            refuse(reader, PROTOCOL_ERROR, "a length is not in its shortest form")
            return
    if length > reader.max_frame_bytes and not reader.head[0] & CONTROL:
        refuse(reader, TOO_LARGE, "a frame is over the largest packet")
        return
    memcpy(reader.mask, reader.head + reader.head_needed - 4, 4)
    reader.phase = 0
    reader.missing = length
    reader.control_size = 0


cdef int end_frame(FrameReader reader) except -1:
    cdef int opcode = reader.head[0] & 0x0F
    if opcode == OP_CLOSE:
        take_close(reader)
    elif opcode == OP_PING:
        reader.ping = PyBytes_FromStringAndSize(<char*>reader.control, reader.control_size)
    elif not opcode & CONTROL:
        reader.in_message = not reader.head[0] & FIN
    reader.head_size = 0
    reader.head_needed = 2
    return 0


cdef int take_close(FrameReader reader) except -1:
    cdef int code
    if reader.control_size == 0:
        code = NORMAL
    elif reader.control_size == 1:
        refuse(reader, PROTOCOL_ERROR, "a close frame holds half a code")
        return 0
    else:
        code = reader.control[0] << 8 | reader.control[1]
        if not (1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999):
            refuse(reader, PROTOCOL_ERROR, "a close frame holds a code that nobody may send")
            return 0
        try:
            PyBytes_FromStringAndSize(<char*>reader.control + 2, reader.control_size - 2).decode()
        except UnicodeDecodeError:
            refuse(reader, INVALID_TEXT, "the reason of a close frame is not UTF-8")
            return 0
    reader.is_closed_by_peer = True
    reader.close_code = code
    return 0


cdef void unmask(FrameReader reader, uint8_t* out, const uint8_t* data, size_t size) noexcept:
    """Eight bytes at a time. `out` may be `data` or lie before it: a word is read before anything is written there."""
    cdef uint8_t pattern[8]
    cdef uint64_t key, word
    cdef size_t i = 0
    cdef int k
    for k in range(8):
        pattern[k] = reader.mask[(reader.phase + k) & 3]
    memcpy(&key, pattern, 8)
    if key == 0:
        memmove(out, data, size)  # a client that masks with zeros, as load generators do
    else:
        while i + 8 <= size:
            memcpy(&word, data + i, 8)
            word ^= key
            memcpy(out + i, &word, 8)
            i += 8
        while i < size:
            out[i] = data[i] ^ pattern[i & 7]
            i += 1
    reader.phase = (reader.phase + <int>(size & 3)) & 3
