/* What the load generator needs from the system: sockets, the clock, and epoll.
 *
 * Linux only. Elsewhere the module shall compile too, so that the rest of the package can be used; an engine cannot be
 * made there: epoll_create1 answers ENOSYS.
 */
#ifndef TBMQ_LOADGEN_H
#define TBMQ_LOADGEN_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#if defined(__linux__)
#include <sys/epoll.h>
#else
#define EPOLLIN 1u
#define EPOLLOUT 4u
#define EPOLL_CTL_ADD 1
#define EPOLL_CTL_MOD 3
#define EPOLL_CLOEXEC 0
#define SOCK_NONBLOCK 0
#define SOCK_CLOEXEC 0
#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif
#define IP_BIND_ADDRESS_NO_PORT 0
struct epoll_event {
    uint32_t events;
    union { uint32_t u32; } data;
};
static inline int epoll_create1(int flags) { (void)flags; errno = ENOSYS; return -1; }
#define epoll_ctl(set, operation, fd, event) ((void)(event), -1)
#define epoll_wait(set, events, count, timeout_ms) (-1)
#define ppoll(entries, count, span, mask) poll(entries, count, (int)((span)->tv_nsec / 1000000))
#endif

static inline uint64_t loadgen_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Sleeps until the set has events, at most `ns`; finer than the milliseconds of epoll_wait. */
static inline void loadgen_sleep(int set, uint64_t ns)
{
    struct pollfd entry = {.fd = set, .events = POLLIN};
    struct timespec span = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    ppoll(&entry, 1, &span, NULL);
}

/* The address of a listener or of a source; 0 when `host` is not a numeric address. */
static inline socklen_t loadgen_address(struct sockaddr_storage *out, const char *host, int port)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)out;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
    memset(out, 0, sizeof *out);
    if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons((uint16_t)port);
        return sizeof *v4;
    }
    if (inet_pton(AF_INET6, host, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons((uint16_t)port);
        return sizeof *v6;
    }
    return 0;
}

/* A non-blocking socket on its way to `to`: its descriptor, or -errno. */
static inline int loadgen_connect(const struct sockaddr_storage *to, socklen_t to_size,
                                  const struct sockaddr_storage *from, socklen_t from_size, int buffer_bytes)
{
    int one = 1, problem;
    int fd = socket(to->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (buffer_bytes)
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof buffer_bytes);
    if (from_size) {
        setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
        if (bind(fd, (const struct sockaddr *)from, from_size) != 0)
            goto failed;
    }
    if (connect(fd, (const struct sockaddr *)to, to_size) == 0 || errno == EINPROGRESS)
        return fd;
failed:
    problem = errno;
    close(fd);
    return -problem;
}

static inline int loadgen_socket_error(int fd)
{
    int problem = 0;
    socklen_t size = sizeof problem;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &problem, &size) == 0 ? problem : errno;
}

static inline int loadgen_watch(int set, int operation, int fd, uint32_t events, uint32_t index)
{
    struct epoll_event event = {.events = events, .data = {.u32 = index}};
    return epoll_ctl(set, operation, fd, &event);
}

/* Copies 16 bytes at a time and may write up to 15 bytes past `size`: the caller has room and overwrites them. */
static inline void loadgen_copy(uint8_t *out, const uint8_t *from, size_t size)
{
    size_t at;
    if (size > 1024)
        memcpy(out, from, size);
    else
        for (at = 0; at < size; at += 16)
            memcpy(out + at, from + at, 16);
}
#define loadgen_log2(value) (63 - __builtin_clzll(value))
#define loadgen_likely(condition) __builtin_expect(!!(condition), 1)

#endif
