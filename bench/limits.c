/* limits: what the kernel alone can do, and a reader that costs as little.
 *
 *   limits writev FILE BYTES BODY [GROUP]        header line and body, over and over, into a new file
 *   limits sendfile FILE...                      the files over one loopback connection, plainly
 *   limits drain PORT TOPIC READ_BYTES           the whole topic out of logd, over one connection
 *
 * sendfile and drain throw away what they receive in the same way, through one buffer of the same size,
 * so that what differs between them is the sender. Each prints one line of JSON.
 */
#define _GNU_SOURCE
#include "loopback.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>

enum {
    RECEIVE_BYTES = 1 << 20,
    SEND_BYTES = 1 << 20,
    SEND_BUFFER_BYTES = 400 * 1000,
    LINE_BYTES = 256,
};

static char receive_buffer[RECEIVE_BYTES];

static void print_rate(uint64_t bytes, uint64_t messages, uint64_t start_ns) {
    double seconds = (double)(now_ns() - start_ns) / 1e9;
    printf("{\"bytes\": %llu, \"messages\": %llu, \"seconds\": %.4f, \"mb_per_second\": %.2f}\n",
           (unsigned long long)bytes, (unsigned long long)messages, seconds, (double)bytes / seconds / 1e6);
}

static size_t receive(int fd) {
    ssize_t got = recv(fd, receive_buffer, RECEIVE_BYTES, 0);
    if (got < 0) die_errno("recv");
    return (size_t)got;
}

/* ---- writev ---- */

static void write_whole(int fd, char *header, char *body, size_t body_bytes) {
    struct iovec parts[] = {{header, HEADER_BYTES}, {body, body_bytes}};
    ssize_t wrote = writev(fd, parts, 2);
    if (wrote < 0) die_errno("writev");
    if ((size_t)wrote != HEADER_BYTES + body_bytes) die("short write: is the disk full?");
}

/* The rate counts bodies only, as the rate of pushes does. */
static void run_writev(const char *path, uint64_t bytes, size_t body_bytes, uint64_t group) {
    char header[HEADER_BYTES], *body = allocate(body_bytes);
    memset(header, 'h', sizeof header);
    memset(body, 'b', body_bytes);
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
    if (fd < 0) die_errno(path);
    uint64_t start_ns = now_ns(), writes = 0;
    for (; writes * body_bytes < bytes; writes++) {
        write_whole(fd, header, body, body_bytes);
        if (group && (writes + 1) % group == 0 && fdatasync(fd)) die_errno("fdatasync");
    }
    print_rate(writes * body_bytes, writes, start_ns);
}

/* ---- sendfile ---- */

/* Up to a megabyte whenever there is room, and never much on its way: of all that was tried the quickest.
 * With a send buffer that the kernel chooses, or whole files in one call, it had half the rate here. */
static void send_some(int fd, int file, off_t *at, off_t end) {
    off_t left = end - *at < SEND_BYTES ? end - *at : SEND_BYTES;
    struct pollfd room = {.fd = fd, .events = POLLOUT};
    ssize_t sent = sendfile(fd, file, at, (size_t)left);
    if (sent == 0) die("a file became shorter");
    if (sent < 0 && (errno != EAGAIN || poll(&room, 1, -1) < 0)) die_errno("sendfile");
}

static void send_files(int fd, char **paths) {
    for (; *paths; paths++) {
        int file = open(*paths, O_RDONLY | O_CLOEXEC);
        struct stat facts;
        if (file < 0 || fstat(file, &facts)) die_errno(*paths);
        for (off_t at = 0; at < facts.st_size;) send_some(fd, file, &at, facts.st_size);
        close(file);
    }
}

/* The sender is a process of its own, as a server is. It waits for one byte, which stands for a request. */
static void run_sendfile(char **paths) {
    uint16_t port;
    int listener = listen_anywhere(&port);
    pid_t sender = fork();
    if (sender < 0) die_errno("fork");
    if (sender == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* never outlive the one who asks */
        int fd = accept(listener, NULL, NULL);
        char byte;
        int on_its_way = SEND_BUFFER_BYTES;
        if (fd < 0 || recv(fd, &byte, 1, 0) != 1 || fcntl(fd, F_SETFL, O_NONBLOCK) ||
            setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &on_its_way, sizeof on_its_way))
            die_errno("accept");
        send_files(fd, paths);
        _exit(0);
    }
    close(listener);
    int fd = dial(port), status;
    uint64_t start_ns = now_ns(), bytes = 0;
    if (send(fd, "x", 1, MSG_NOSIGNAL) != 1) die_errno("send");
    for (size_t got; (got = receive(fd));) bytes += got;
    if (waitpid(sender, &status, 0) != sender || status) die("the sender failed");
    print_rate(bytes, 0, start_ns);
}

/* ---- drain ---- */

struct drain {
    int fd;
    const char *topic;
    uint64_t read_bytes, bytes, messages, body_left;
    char line[LINE_BYTES];
    size_t line_bytes;
    int finished;
};

static void ask_read(struct drain *drain, const char *where) {
    char command[LINE_BYTES + 256];
    int bytes = snprintf(command, sizeof command, "READ %s %s 1000000000 bytes=%llu\r\n", drain->topic, where,
                         (unsigned long long)drain->read_bytes);
    if (send(drain->fd, command, (size_t)bytes, MSG_NOSIGNAL) != bytes) die_errno("send");
}

/* The header alone tells where the next read starts. It is asked for before this reply's body has come in,
 * so the server always has its next command at hand. */
static void take_header(struct drain *drain) {
    unsigned long long offset, messages, bytes;
    char where[32];
    drain->line[drain->line_bytes] = 0;
    if (sscanf(drain->line, "BATCHES %llu %llu %llu", &offset, &messages, &bytes) != 3)
        die("not a reply to READ: %s", drain->line);
    drain->line_bytes = 0;
    drain->messages += messages;
    drain->body_left = bytes;
    if (messages == 0) {
        drain->finished = 1;
        return;
    }
    snprintf(where, sizeof where, "%llu", offset + messages);
    ask_read(drain, where);
}

static void take_bytes(struct drain *drain, const char *text, size_t bytes) {
    while (bytes) {
        size_t body = drain->body_left < bytes ? drain->body_left : bytes;
        drain->body_left -= body;
        drain->bytes += body;
        text += body;
        bytes -= body;
        while (bytes && !drain->body_left && !drain->finished) {
            if (drain->line_bytes == LINE_BYTES - 1) die("a header line without an end");
            drain->line[drain->line_bytes++] = *text++;
            bytes--;
            if (text[-1] == '\n') take_header(drain);
        }
        if (drain->finished && bytes) die("bytes behind the last reply");
    }
}

static void run_drain(uint16_t port, const char *topic, uint64_t read_bytes) {
    struct drain drain = {.topic = topic, .read_bytes = read_bytes, .fd = dial(port)};
    uint64_t start_ns = now_ns();
    ask_read(&drain, "first");
    while (!drain.finished) {
        size_t got = receive(drain.fd);
        if (!got) die("the server closed the connection");
        take_bytes(&drain, receive_buffer, got);
    }
    print_rate(drain.bytes, drain.messages, start_ns);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    if (!strcmp(mode, "writev") && (argc == 5 || argc == 6))
        run_writev(argv[2], number("BYTES", argv[3], 1, 1ull << 40), number("BODY", argv[4], 1, 1 << 24),
                   argc == 6 ? number("GROUP", argv[5], 0, UINT32_MAX) : 0);
    else if (!strcmp(mode, "sendfile") && argc > 2)
        run_sendfile(argv + 2);
    else if (!strcmp(mode, "drain") && argc == 5 && strlen(argv[3]) <= 128)
        run_drain((uint16_t)number("PORT", argv[2], 1, 65535), argv[3],
                  number("READ_BYTES", argv[4], 1, 1 << 30));
    else
        die("usage: limits writev FILE BYTES BODY [GROUP] | sendfile FILE... | drain PORT TOPIC READ_BYTES");
    return 0;
}
