# What loadgen.h and the system headers offer. Part of _loadgen.pyx.

cdef extern from "loadgen.h":
    ctypedef unsigned int socklen_t
    struct sockaddr_storage:
        pass
    union epoll_data:
        uint32_t u32
    struct epoll_event:
        uint32_t events
        epoll_data data
    enum:
        EPOLLIN
        EPOLLOUT
        EPOLL_CTL_ADD
        EPOLL_CTL_MOD
        EPOLL_CLOEXEC
        MSG_NOSIGNAL
        MSG_DONTWAIT
    int epoll_create1(int flags) nogil
    int epoll_wait(int set, epoll_event* events, int count, int timeout_ms) nogil
    ssize_t send(int fd, const void* data, size_t size, int flags) nogil
    ssize_t recv(int fd, void* data, size_t size, int flags) nogil
    uint64_t loadgen_now() nogil
    void loadgen_sleep(int set, uint64_t ns) nogil
    socklen_t loadgen_address(sockaddr_storage* out, const char* host, int port) nogil
    int loadgen_connect(
        const sockaddr_storage* to, socklen_t to_size, const sockaddr_storage* source, socklen_t source_size, int buffer
    ) nogil
    int loadgen_socket_error(int fd) nogil
    int loadgen_watch(int set, int operation, int fd, uint32_t events, uint32_t index) nogil
    void loadgen_copy(uint8_t* out, const uint8_t* data, size_t size) nogil
    int loadgen_log2(uint64_t value) nogil
    bint loadgen_likely(bint condition) nogil
