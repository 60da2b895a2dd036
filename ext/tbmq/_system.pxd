# What the engine asks of the kernel that Cython does not declare itself.

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t

cdef extern from "<sys/epoll.h>" nogil:
    enum: EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP, EPOLLRDHUP, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CLOEXEC
    const uint32_t EPOLLET
    ctypedef union epoll_data_t:
        void* ptr
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int op, int fd, epoll_event* event)
    int epoll_wait(int epfd, epoll_event* events, int maxevents, int timeout)

cdef extern from "<sys/prctl.h>" nogil:
    enum: PR_SET_TIMERSLACK
    int prctl(int option, unsigned long value)

cdef extern from "<sys/socket.h>" nogil:
    enum: MSG_DONTWAIT, MSG_NOSIGNAL, SHUT_WR
    struct iovec:
        void* iov_base
        size_t iov_len
    struct msghdr:
        iovec* msg_iov
        size_t msg_iovlen
    ssize_t recv(int fd, void* data, size_t size, int flags)
    ssize_t send(int fd, const void* data, size_t size, int flags)
    ssize_t sendmsg(int fd, const msghdr* message, int flags)
    int shutdown(int fd, int how)
