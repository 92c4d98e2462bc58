/* sink: the least that a server of large pushes must do.
 *
 *   sink FILE REQUEST_BYTES BODY_BYTES REPLY [synced]
 *
 * One thread and one epoll: it receives requests of a known length, writes a header line and the body of
 * each to FILE with one writev, and answers with the line REPLY. It parses nothing and checks nothing. If it is
 * to be synced, it answers after an fdatasync that all share who have arrived: everyone, or those who are there
 * when nothing more comes. Otherwise it never syncs. What a server loses against this is its own; what this loses against a plain writev is
 * the price of coming in over a socket. It runs until it is stopped.
 */
#define _GNU_SOURCE
#include "loopback.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/uio.h>

enum { MAX_CLIENTS = 1024 };

struct client {
    int fd;
    int is_due; /* written, and not answered yet */
    size_t have;
    char *request;
};

static int file, epoll_fd;
static size_t request_bytes, body_bytes;
static char reply[64];
static size_t reply_bytes;
static struct client *clients[MAX_CLIENTS];
static size_t client_count, due;
static int synced;

static void watch(int fd, void *who) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = who};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event)) die_errno("epoll_ctl");
}

static void welcome(int listener) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), on = 1;
    if (fd < 0) die_errno("accept");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct client *client = allocate(sizeof *client);
    client->fd = fd;
    client->request = allocate(request_bytes);
    if (client_count == MAX_CLIENTS) die("too many connections");
    clients[client_count++] = client;
    watch(fd, client);
}

static void answer(struct client *client) {
    if (send(client->fd, reply, reply_bytes, MSG_NOSIGNAL) != (ssize_t)reply_bytes) die_errno("send");
    client->is_due = 0;
}

static void sync_and_answer(void) {
    if (fdatasync(file)) die_errno("fdatasync");
    for (size_t i = 0; i < client_count; i++)
        if (clients[i]->is_due) answer(clients[i]);
    due = 0;
}

static void forget(struct client *client) {
    for (size_t i = 0; i < client_count; i++)
        if (clients[i] == client) clients[i] = clients[--client_count];
    close(client->fd);
    free(client->request);
    free(client);
}

static void store(struct client *client) {
    static char header[HEADER_BYTES];
    struct iovec parts[] = {{header, sizeof header},
                            {client->request + request_bytes - body_bytes, body_bytes}};
    if (writev(file, parts, 2) != (ssize_t)(sizeof header + body_bytes)) die_errno("writev");
    client->is_due = 1;
    due++;
    if (!synced) answer(client);
}

static void serve(struct client *client) {
    ssize_t got = recv(client->fd, client->request + client->have, request_bytes - client->have, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
        forget(client);
        return;
    }
    client->have += (size_t)got;
    if (client->have == request_bytes) {
        store(client);
        client->have = 0;
    }
}

int main(int argc, char **argv) {
    if (argc != 5 && (argc != 6 || strcmp(argv[5], "synced")))
        die("usage: sink FILE REQUEST_BYTES BODY_BYTES REPLY [synced]");
    synced = argc == 6;
    request_bytes = number("REQUEST_BYTES", argv[2], 1, 1 << 24);
    body_bytes = number("BODY_BYTES", argv[3], 1, request_bytes);
    reply_bytes = (size_t)snprintf(reply, sizeof reply, "%.60s\r\n", argv[4]);
    file = open(argv[1], O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
    if (file < 0) die_errno(argv[1]);
    if ((epoll_fd = epoll_create1(EPOLL_CLOEXEC)) < 0) die_errno("epoll_create1");
    uint16_t port;
    int listener = listen_anywhere(&port);
    watch(listener, NULL);
    fprintf(stderr, "ready tcp=127.0.0.1:%d\n", port);
    struct epoll_event events[MAX_CLIENTS];
    for (;;) {
        int ready = epoll_wait(epoll_fd, events, MAX_CLIENTS, synced && due ? 0 : -1);
        for (int i = 0; i < ready; i++)
            if (events[i].data.ptr)
                serve(events[i].data.ptr);
            else
                welcome(listener);
        if (synced && due && (!ready || due == client_count)) sync_and_answer();
    }
}
