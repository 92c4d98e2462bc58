/* What the programs share: a clock, an exit with a reason, and numbers and sockets made the same way.
 * Connections only ever go to 127.0.0.1. */
#ifndef BENCH_LOOPBACK_H
#define BENCH_LOOPBACK_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HEADER_BYTES = 90 }; /* about what a batch header takes */

__attribute__((noreturn, format(printf, 1, 2))) static inline void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

__attribute__((noreturn)) static inline void die_errno(const char *what) {
    die("%s: %s", what, strerror(errno));
}

static inline uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static inline uint64_t number(const char *name, const char *text, uint64_t least, uint64_t most) {
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno || end == text || *end || *text == '-' || value < least || value > most)
        die("%s must be a number from %llu to %llu, not '%s'", name, (unsigned long long)least,
            (unsigned long long)most, text);
    return value;
}

static inline void *allocate(size_t bytes) {
    void *memory = calloc(1, bytes);
    if (!memory) die("no memory for %zu bytes", bytes);
    return memory;
}

static inline struct sockaddr_in loopback(uint16_t port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

/* Without TCP_NODELAY the kernel would hold small requests back to merge them. */
static inline int dial(uint16_t port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) die_errno("socket");
    struct sockaddr_in address = loopback(port);
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) die_errno("connect");
    int on = 1;
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on)) die_errno("TCP_NODELAY");
    return fd;
}

static inline int listen_anywhere(uint16_t *port) {
    struct sockaddr_in address = loopback(0);
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, length) || listen(fd, 1024) ||
        getsockname(fd, (struct sockaddr *)&address, &length))
        die_errno("listen");
    *port = ntohs(address.sin_port);
    return fd;
}

#endif
