/* follow: one who pushes and many who follow, and how long a message takes to reach them.
 *
 * One process, one thread, one epoll. A message leaves when its time has come (`--pace`, so many a second,
 * whether or not the ones before were answered) or, without a pace, once every follower has had the one
 * before. Two latencies are taken from the moment at which it was sent: to the acknowledgement, and to each
 * follower. The topic must be new: its messages are counted from 0.
 *
 * Three kinds of servers: `logd` (FOLLOW), `redis` (XREAD BLOCK), and `echo`, a bare one that
 * acknowledges and hands every message on to all other connections without being asked. Without followers an
 * echo's acknowledgement is the shortest round trip that its event loop can make.
 */
#define _GNU_SOURCE
#include "latencies.h"
#include "loopback.h"

#include <fcntl.h>
#include <getopt.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/timerfd.h>

enum {
    MAX_FOLLOWERS = 2000,
    BUFFER_BYTES = 64 * 1024,
    SENT = 1 << 16, /* messages whose time is remembered */
    LINE_BYTES = 512,
    PATIENCE_SECONDS = 10, /* without anything heard */
};

enum kind { LOGD, REDIS, ECHO };

struct line { /* a connection; the first one pushes */
    int fd;
    uint64_t next; /* the message that it waits for: to be acknowledged, or to come */
    size_t buffered;
    char buffer[BUFFER_BYTES];
};

static enum kind kind;
static unsigned followers, pace, message_bytes = 100;
static uint64_t milliseconds = 1000, warmup_milliseconds;
static const char *topic = "follow";
static uint16_t port;

static struct line *lines[MAX_FOLLOWERS + 1];
static struct latencies acknowledged, followed;
static uint64_t pushed, delivered, sent_ns[SENT];
static unsigned still_without; /* followers that have not had the newest message */
static char *message;
static int epoll_fd, timer_fd = -1;

static void send_whole(int fd, const char *text, size_t bytes) {
    if (send(fd, text, bytes, MSG_NOSIGNAL) != (ssize_t)bytes) die_errno("send");
}

/* ---- what is sent ---- */

static void push(void) {
    char head[LINE_BYTES];
    static char *request;
    size_t bytes = message_bytes - (kind == REDIS), at;
    if (!request) request = allocate(LINE_BYTES + message_bytes + 2);
    if (kind == REDIS)
        at = (size_t)snprintf(head, sizeof head, "*5\r\n$4\r\nXADD\r\n$%zu\r\n%s\r\n$3\r\n1-*\r\n$1\r\nv\r\n$%zu\r\n",
                              strlen(topic), topic, bytes);
    else
        at = (size_t)snprintf(head, sizeof head, "PUSH %s %zu\r\n", topic, bytes);
    memcpy(request, head, at);
    memcpy(request + at, message, bytes);
    memcpy(request + at + bytes, "\r\n", 2);
    still_without = followers;
    sent_ns[pushed++ % SENT] = now_ns();
    send_whole(lines[0]->fd, request, at + bytes + (kind == REDIS ? 2 : 0));
}

static void start_stream(struct line *line) {
    char text[LINE_BYTES];
    int bytes = snprintf(text, sizeof text, "FOLLOW %s %llu\r\n", topic, (unsigned long long)line->next);
    send_whole(line->fd, text, (size_t)bytes);
}

static void ask_for_next(struct line *line) { /* behind the last one it has had */
    char text[LINE_BYTES], id[32];
    snprintf(id, sizeof id, "1-%llu", (unsigned long long)line->next - 1);
    int bytes = snprintf(text, sizeof text,
                         "*6\r\n$5\r\nXREAD\r\n$5\r\nBLOCK\r\n$5\r\n60000\r\n$7\r\nSTREAMS\r\n$%zu\r\n%s\r\n$%zu\r\n%s\r\n",
                         strlen(topic), topic, strlen(id), id);
    send_whole(line->fd, text, (size_t)bytes);
}

/* ---- what comes back: the length of the first reply, 0 if it is not all there ---- */

static size_t first_line(const char *text, size_t bytes) {
    const char *end = memchr(text, '\n', bytes);
    return end ? (size_t)(end - text) + 1 : 0;
}

static size_t resp_bytes(const char *text, size_t bytes) {
    size_t whole = first_line(text, bytes);
    if (!whole || text[0] == ':' || text[0] == '+') return whole;
    if (text[0] != '$' && text[0] != '*') die("redis: %.*s", (int)whole, text);
    long count = strtol(text + 1, NULL, 10);
    if (count < 0 || count > BUFFER_BYTES) die("redis: %.*s", (int)whole, text);
    if (text[0] == '$') return bytes < whole + (size_t)count + 2 ? 0 : whole + (size_t)count + 2;
    while (count--) {
        size_t part = resp_bytes(text + whole, bytes - whole);
        if (!part) return 0;
        whole += part;
    }
    return whole;
}

static size_t cut_acknowledgement(const char *text, size_t bytes) {
    if (kind == REDIS) return resp_bytes(text, bytes);
    size_t whole = first_line(text, bytes);
    if (whole && memcmp(text, "OK ", 3)) die("not acknowledged: %.*s", (int)whole, text);
    return whole;
}

/* What Redis sends is a list of one stream: its name, and a list of entries. How many is what is wanted. */
static size_t cut_entries(const char *text, size_t bytes, uint64_t *count) {
    size_t whole = resp_bytes(text, bytes);
    if (!whole) return 0;
    if (memcmp(text, "*1\r\n*2\r\n", 8)) die("not an answer to XREAD: %.*s", (int)first_line(text, bytes), text);
    size_t name = resp_bytes(text + 8, bytes - 8);
    *count = strtoull(text + 8 + name + 1, NULL, 10);
    return whole;
}

static size_t cut_batches(const char *text, size_t bytes, uint64_t expected, uint64_t *count) {
    unsigned long long offset, messages, body;
    size_t head = first_line(text, bytes);
    if (!head) return 0;
    if (sscanf(text, "BATCHES %llu %llu %llu", &offset, &messages, &body) != 3 || offset != expected || !messages)
        die("a follower at %llu got: %.*s", (unsigned long long)expected, (int)head, text);
    *count = messages;
    return bytes < head + body ? 0 : head + (size_t)body;
}

static size_t cut_delivery(struct line *line, const char *text, size_t bytes, uint64_t *count) {
    if (kind == LOGD) return cut_batches(text, bytes, line->next, count);
    if (kind == REDIS) return cut_entries(text, bytes, count);
    size_t request_bytes = message_bytes + (size_t)snprintf(NULL, 0, "PUSH %s %u\r\n", topic, message_bytes);
    *count = 1;
    return bytes < request_bytes ? 0 : request_bytes;
}

/* ---- the run ---- */

static void note_delivered(struct line *line, uint64_t count, uint64_t now) {
    for (; count--; line->next++) {
        if (line->next >= pushed) die("a follower got what was not pushed");
        note_latency(&followed, now - sent_ns[line->next % SENT]);
        delivered++;
    }
    if (line->next == pushed) still_without--;
}

static void hear(struct line *line) {
    ssize_t got = recv(line->fd, line->buffer + line->buffered, BUFFER_BYTES - line->buffered, 0);
    if (got <= 0) die("the server closed a connection");
    uint64_t now = now_ns(), count = 1;
    size_t bytes = line->buffered + (size_t)got, done = 0, length;
    bool is_pusher = line == lines[0], heard = false;
    while ((length = is_pusher ? cut_acknowledgement(line->buffer + done, bytes - done)
                               : cut_delivery(line, line->buffer + done, bytes - done, &count))) {
        done += length;
        heard = true;
        if (is_pusher)
            note_latency(&acknowledged, now - sent_ns[line->next++ % SENT]);
        else
            note_delivered(line, count, now);
        if (done == bytes) break;
    }
    line->buffered = bytes - done;
    if (line->buffered == BUFFER_BYTES) die("a reply longer than the buffer");
    memmove(line->buffer, line->buffer + done, line->buffered);
    if (heard && !is_pusher && kind == REDIS) ask_for_next(line);
}

static void start_counting(uint64_t *start_ns) {
    memset(&acknowledged, 0, sizeof acknowledged);
    memset(&followed, 0, sizeof followed);
    delivered = 0;
    *start_ns = now_ns();
}

static void watch(int fd, void *who) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = who};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event)) die_errno("epoll_ctl");
}

static void start_timer(void) {
    struct itimerspec every = {0};
    every.it_interval.tv_nsec = every.it_value.tv_nsec = 1000000000 / pace;
    prctl(PR_SET_TIMERSLACK, 1);
    timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (timer_fd < 0 || timerfd_settime(timer_fd, 0, &every, NULL)) die_errno("timerfd");
    watch(timer_fd, NULL);
}

static bool all_heard(void) { return !still_without && lines[0]->next == pushed; }

static void listen_once(bool may_push) {
    struct epoll_event events[256];
    int ready = epoll_wait(epoll_fd, events, 256, PATIENCE_SECONDS * 1000);
    if (ready == 0) die("nothing was heard for %d s", PATIENCE_SECONDS);
    for (int i = 0; i < ready; i++) {
        uint64_t due = 0;
        if (events[i].data.ptr)
            hear(events[i].data.ptr);
        else if (read(timer_fd, &due, sizeof due) == sizeof due)
            for (; may_push && due; due--) push();
    }
}

static uint64_t run(void) {
    uint64_t start_ns, now;
    start_counting(&start_ns);
    uint64_t warm_ns = start_ns + warmup_milliseconds * 1000000;
    uint64_t end_ns = warm_ns + milliseconds * 1000000;
    bool warm = false;
    if (pace) start_timer();
    while ((now = now_ns()) < end_ns) {
        if (!warm && now >= warm_ns && all_heard()) {
            start_counting(&start_ns);
            warm = true;
        }
        if (!pace && all_heard()) push();
        listen_once(true);
    }
    while (!all_heard()) listen_once(false);
    return now_ns() - start_ns;
}

static struct line *open_line(void) {
    struct line *line = allocate(sizeof *line);
    line->fd = dial(port);
    line->next = pushed;
    char greeting[8]; /* a bare one that hands on must have taken up everyone before the first message */
    if (kind == ECHO && followers && recv(line->fd, greeting, sizeof greeting, MSG_WAITALL) != sizeof greeting)
        die("the echo did not greet");
    watch(line->fd, line);
    return line;
}

static void open_all(void) {
    lines[0] = open_line();
    push(); /* makes the topic */
    still_without = 0;
    while (!all_heard()) hear(lines[0]);
    for (unsigned i = 1; i <= followers; i++) {
        lines[i] = open_line();
        if (kind == LOGD) start_stream(lines[i]);
        if (kind == REDIS) ask_for_next(lines[i]);
    }
}

static void print_result(double seconds) {
    printf("{\"messages\": %llu, \"deliveries\": %llu, \"seconds\": %.4f, \"per_second\": %.1f, "
           "\"ack_p50_us\": %.1f, \"ack_p99_us\": %.1f, \"ack_p999_us\": %.1f, "
           "\"follow_p50_us\": %.1f, \"follow_p99_us\": %.1f, \"follow_p999_us\": %.1f}\n",
           (unsigned long long)acknowledged.count, (unsigned long long)delivered, seconds,
           (double)delivered / seconds, percentile_us(&acknowledged, 0.5), percentile_us(&acknowledged, 0.99),
           percentile_us(&acknowledged, 0.999), percentile_us(&followed, 0.5), percentile_us(&followed, 0.99),
           percentile_us(&followed, 0.999));
}

static enum kind kind_of(const char *name) {
    if (!strcmp(name, "logd")) return LOGD;
    if (!strcmp(name, "redis")) return REDIS;
    if (!strcmp(name, "echo")) return ECHO;
    die("--protocol is logd, redis or echo, not %s", name);
}

static void read_options(int argc, char **argv) {
    static const struct option known[] = {
        {"protocol", 1, 0, 'p'}, {"port", 1, 0, 'P'}, {"followers", 1, 0, 'f'}, {"pace", 1, 0, 'a'}, {"size", 1, 0, 's'},
        {"topic", 1, 0, 't'},    {"ms", 1, 0, 'm'},   {"warmup-ms", 1, 0, 'w'}, {0, 0, 0, 0},
    };
    for (int flag; (flag = getopt_long(argc, argv, "", known, NULL)) != -1;) switch (flag) {
        case 'p': kind = kind_of(optarg); break;
        case 'P': port = (uint16_t)number("--port", optarg, 1, 65535); break;
        case 'f': followers = (unsigned)number("--followers", optarg, 0, MAX_FOLLOWERS); break;
        case 'a': pace = (unsigned)number("--pace", optarg, 0, 10000); break;
        case 's': message_bytes = (unsigned)number("--size", optarg, 2, 16 * 1024); break;
        case 't': topic = optarg; break;
        case 'm': milliseconds = number("--ms", optarg, 1, 600000); break;
        case 'w': warmup_milliseconds = number("--warmup-ms", optarg, 0, 60000); break;
        default: exit(2);
        }
    if (!port) die("--port is needed");
    if (strlen(topic) > 124) die("--topic is too long");
}

int main(int argc, char **argv) {
    read_options(argc, argv);
    message = allocate(message_bytes);
    memset(message, 'm', message_bytes - 1);
    message[message_bytes - 1] = '\n';
    if ((epoll_fd = epoll_create1(EPOLL_CLOEXEC)) < 0) die_errno("epoll_create1");
    open_all();
    print_result((double)run() / 1e9);
    return 0;
}
