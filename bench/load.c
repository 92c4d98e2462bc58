/* load: many requests over a few connections, and how long the replies took.
 *
 * One process, one thread, one epoll. Every connection keeps `depth` requests in flight: when k replies
 * have come in, k new requests leave in one send. All requests are built before the clock starts, into a ring
 * in which any k of them are one run of bytes. They have one length, unless `any-size` asks for messages of
 * half to one and a half times the size. The same loop drives every kind of server; what differs between them
 * is in dialects.h.
 *
 * It ends by itself: after `seconds`, or after `count` requests, whichever is first. It then asks nothing
 * more, waits a bounded time for what is still in flight, and prints one line of JSON.
 */
#define _GNU_SOURCE
#include "dialects.h"
#include "latencies.h"

#include <fcntl.h>
#include <getopt.h>
#include <sys/epoll.h>
#include <sys/resource.h>

enum {
    REPLY_BUFFER_BYTES = 256 * 1024,
    MAX_CONNECTIONS = 1024,
    MAX_DEPTH = 10000,
    MAX_TOPICS = 1000,
    MIN_RING = 16,       /* so that neighbours differ even with one request in flight */
    ANY_SIZE_RING = 256, /* with so many sizes */
    DRAIN_SECONDS = 10,  /* for the last replies: an `always` server may be in a slow sync */
};

struct options {
    const struct dialect *dialect;
    uint16_t port;
    unsigned connections, depth, topics;
    bool any_size;
    size_t message_bytes, batch_bytes;
    uint64_t milliseconds, warmup_milliseconds, count, seed;
    const char *topic;
};

struct connection {
    int fd;
    bool awaits_room;  /* EPOLLOUT is asked for */
    const char *ring;
    size_t cursor;     /* byte in the ring that leaves next */
    size_t next;       /* request in the ring that is asked next */
    size_t unsent_bytes;
    unsigned in_flight, oldest;
    uint64_t *asked_ns; /* ring of `depth`: when each request in flight was handed over */
    size_t buffered;
    char buffer[REPLY_BUFFER_BYTES];
};

static struct options options = {
    .connections = 1, .depth = 1, .topics = 1, .message_bytes = 100, .milliseconds = 2000,
    .count = UINT64_MAX, .seed = 1, .topic = "bench",
};

static size_t request_bytes, ring_requests, ring_bytes, messages_per_request;
static size_t *starts; /* of each request in the ring, and of the first `depth` once more */
static char topics[MAX_TOPICS][256];

static int epoll_fd;
static uint64_t asked, answered, outstanding;
static struct latencies latencies;
static unsigned open_connections;

/* ---- requests ---- */

static uint64_t random_state;

static uint64_t next_random(void) { /* splitmix64: any seed will do, zero too */
    uint64_t x = random_state += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* A body of lines: messages of `message_bytes` with their LF, the last one taking what is left; or one line. */
static void fill_body(char *body, size_t bytes) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < bytes; i++) body[i] = letters[next_random() & 63];
    for (size_t end = options.message_bytes; end < bytes && !options.any_size; end += options.message_bytes) body[end - 1] = '\n';
    body[bytes - 1] = '\n';
}

static void name_topics(void) {
    for (unsigned i = 0; i < options.topics; i++)
        if (options.topics == 1)
            snprintf(topics[i], sizeof topics[i], "%s", options.topic);
        else /* three digits always: all requests must have one length */
            snprintf(topics[i], sizeof topics[i], "%s-%03u", options.topic, i);
}

/* The ring holds whole turns through the topics, and then its first `depth` requests once more: whatever
 * is in flight is contiguous, and one send is enough. */
static char *build_ring(unsigned connection) {
    size_t requests = options.depth > MIN_RING ? options.depth : MIN_RING;
    if (requests < options.dialect->ring) requests = options.dialect->ring;
    if (requests < ANY_SIZE_RING && options.any_size) requests = ANY_SIZE_RING;
    requests = (requests + options.topics - 1) / options.topics * options.topics;
    size_t room = 2 * options.batch_bytes + strlen(options.topic) + 1024;
    char *body = allocate(2 * options.batch_bytes), *ring = allocate((requests + options.depth) * room);
    starts = allocate((requests + options.depth + 1) * sizeof *starts);
    for (size_t i = 0; i < requests; i++) {
        unsigned topic = (unsigned)(i % options.topics);
        size_t body_bytes = options.batch_bytes;
        if (options.any_size) body_bytes = body_bytes / 2 + next_random() % (body_bytes + 1);
        fill_body(body, body_bytes);
        size_t bytes = options.dialect->spell(
            ring + starts[i], room,
            &(struct request){connection, topic, topics[topic], body, body_bytes, next_random()});
        starts[i + 1] = starts[i] + bytes;
        if (!options.any_size && bytes != starts[1]) die("requests of different lengths");
    }
    request_bytes = starts[1];
    ring_requests = requests;
    ring_bytes = starts[requests];
    for (size_t i = 0; i < options.depth; i++) starts[requests + i + 1] = ring_bytes + starts[i + 1];
    memcpy(ring + ring_bytes, ring, starts[options.depth]);
    free(body);
    return ring;
}

/* ---- one connection ---- */

static void watch(struct connection *connection, int operation, bool room_too) {
    struct epoll_event event = {.events = EPOLLIN | (room_too ? EPOLLOUT : 0), .data.ptr = connection};
    if (epoll_ctl(epoll_fd, operation, connection->fd, &event)) die_errno("epoll_ctl");
    connection->awaits_room = room_too;
}

static void drop(struct connection *connection, const char *why) {
    count_error(why, strlen(why));
    errors += connection->in_flight;
    outstanding -= connection->in_flight;
    connection->in_flight = 0;
    connection->unsent_bytes = 0;
    close(connection->fd);
    connection->fd = -1;
    open_connections--;
}

static void flush(struct connection *connection) {
    if (connection->unsent_bytes) {
        ssize_t sent = send(connection->fd, connection->ring + connection->cursor, connection->unsent_bytes, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN) {
            drop(connection, strerror(errno));
            return;
        }
        if (sent > 0) {
            connection->unsent_bytes -= (size_t)sent;
            connection->cursor = (connection->cursor + (size_t)sent) % ring_bytes;
        }
    }
    bool room_too = connection->unsent_bytes > 0;
    if (room_too != connection->awaits_room) watch(connection, EPOLL_CTL_MOD, room_too);
}

static void ask(struct connection *connection, unsigned requests, uint64_t now) {
    if (requests > options.count - asked) requests = (unsigned)(options.count - asked);
    for (unsigned i = 0; i < requests; i++)
        connection->asked_ns[(connection->oldest + connection->in_flight++) % options.depth] = now;
    asked += requests;
    outstanding += requests;
    connection->unsent_bytes += starts[connection->next + requests] - starts[connection->next];
    connection->next = (connection->next + requests) % ring_requests;
    flush(connection);
}

static void note_reply(struct connection *connection, uint64_t now) {
    if (!connection->in_flight) die("a reply to nothing that was asked");
    note_latency(&latencies, now - connection->asked_ns[connection->oldest]);
    connection->oldest = (connection->oldest + 1) % options.depth;
    connection->in_flight--;
    outstanding--;
    answered++;
}

/* Returns how many replies came; what is cut short stays at the front of the buffer. */
static unsigned take_replies(struct connection *connection, uint64_t *now) {
    ssize_t got = recv(connection->fd, connection->buffer + connection->buffered,
                       REPLY_BUFFER_BYTES - connection->buffered, 0);
    if (got < 0 && errno == EAGAIN) return 0;
    if (got <= 0) {
        drop(connection, got ? strerror(errno) : "the server closed the connection");
        return 0;
    }
    *now = now_ns();
    size_t bytes = connection->buffered + (size_t)got, done = 0;
    unsigned replies = 0;
    while (done < bytes) {
        const char *text = connection->buffer + done;
        unsigned answers = 0;
        size_t length = options.dialect->cut(text, bytes - done, &answers);
        if (!length) break;
        done += length;
        replies += answers;
        while (answers--) note_reply(connection, *now);
    }
    connection->buffered = bytes - done;
    if (connection->buffered == REPLY_BUFFER_BYTES) die("a reply longer than the buffer");
    memmove(connection->buffer, connection->buffer + done, connection->buffered);
    return replies;
}

static struct connection *open_connection(unsigned order) {
    static const char *shared;
    struct connection *connection = allocate(sizeof *connection);
    connection->asked_ns = allocate(options.depth * sizeof *connection->asked_ns);
    connection->fd = dial(options.port);
    if (options.dialect->greet) options.dialect->greet(connection->fd, order, topics, options.topics);
    if (!shared || options.dialect->own_ring) shared = build_ring(order);
    connection->ring = shared;
    connection->next = order % ring_requests; /* connections start at different topics */
    connection->cursor = starts[connection->next];
    if (fcntl(connection->fd, F_SETFL, O_NONBLOCK)) die_errno("O_NONBLOCK");
    watch(connection, EPOLL_CTL_ADD, false);
    open_connections++;
    return connection;
}

/* ---- the run ---- */

static double cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void start_counting(uint64_t *start_ns, double *start_cpu) {
    memset(&latencies, 0, sizeof latencies);
    answered = 0;
    *start_ns = now_ns();
    *start_cpu = cpu_seconds();
}

static void print_result(double seconds, double cpu) {
    double rate = (double)answered / seconds;
    printf("{\"requests\": %llu, \"messages\": %llu, \"seconds\": %.4f, \"per_second\": %.1f, "
           "\"mb_per_second\": %.2f, \"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, "
           "\"errors\": %llu, \"request_bytes\": %zu, \"cpu\": %.2f}\n",
           (unsigned long long)answered, (unsigned long long)(answered * messages_per_request), seconds, rate,
           rate * (double)options.batch_bytes / 1e6, percentile_us(&latencies, 0.5),
           percentile_us(&latencies, 0.99), percentile_us(&latencies, 0.999), (unsigned long long)errors,
           request_bytes, cpu / seconds);
}

static void run(struct connection **connections) {
    struct epoll_event events[MAX_CONNECTIONS];
    uint64_t start_ns, now;
    double start_cpu;
    start_counting(&start_ns, &start_cpu);
    uint64_t warm_ns = start_ns + options.warmup_milliseconds * 1000000;
    uint64_t end_ns = warm_ns + options.milliseconds * 1000000;
    uint64_t give_up_ns = end_ns + DRAIN_SECONDS * 1000000000ull;
    bool warm = options.warmup_milliseconds == 0;
    for (unsigned i = 0; i < options.connections; i++) ask(connections[i], options.depth, start_ns);
    while (outstanding && open_connections && (now = now_ns()) < give_up_ns) {
        if (!warm && now >= warm_ns) {
            start_counting(&start_ns, &start_cpu);
            warm = true;
        }
        int ready = epoll_wait(epoll_fd, events, MAX_CONNECTIONS, 100);
        for (int i = 0; i < ready; i++) {
            struct connection *connection = events[i].data.ptr;
            if (events[i].events & ~(unsigned)EPOLLOUT) {
                unsigned replies = take_replies(connection, &now);
                if (connection->fd >= 0 && replies && now < end_ns) ask(connection, replies, now);
            }
            if (connection->fd >= 0 && events[i].events & EPOLLOUT) flush(connection);
        }
    }
    double seconds = (double)(now_ns() - start_ns) / 1e9;
    if (outstanding) count_error("requests were left without a reply", 34);
    errors += outstanding;
    print_result(seconds, cpu_seconds() - start_cpu);
}

static void read_options(int argc, char **argv) {
    static const struct option known[] = {
        {"protocol", 1, 0, 'p'}, {"port", 1, 0, 'P'},    {"connections", 1, 0, 'c'}, {"depth", 1, 0, 'd'},
        {"size", 1, 0, 's'},     {"batch", 1, 0, 'b'},   {"topics", 1, 0, 'k'},      {"topic", 1, 0, 't'},
        {"ms", 1, 0, 'm'},       {"warmup-ms", 1, 0, 'w'}, {"count", 1, 0, 'n'},     {"seed", 1, 0, 'r'},
        {"any-size", 0, 0, 'a'},
        {0, 0, 0, 0},
    };
    for (int flag; (flag = getopt_long(argc, argv, "", known, NULL)) != -1;) switch (flag) {
        case 'p': options.dialect = find_dialect(optarg); break;
        case 'P': options.port = (uint16_t)number("--port", optarg, 1, 65535); break;
        case 'c': options.connections = (unsigned)number("--connections", optarg, 1, MAX_CONNECTIONS); break;
        case 'd': options.depth = (unsigned)number("--depth", optarg, 1, MAX_DEPTH); break;
        case 's': options.message_bytes = number("--size", optarg, 2, 1 << 20); break;
        case 'b': options.batch_bytes = number("--batch", optarg, 2, 16 << 20); break;
        case 'k': options.topics = (unsigned)number("--topics", optarg, 1, MAX_TOPICS); break;
        case 't': options.topic = optarg; break;
        case 'm': options.milliseconds = number("--ms", optarg, 1, 600000); break;
        case 'w': options.warmup_milliseconds = number("--warmup-ms", optarg, 0, 60000); break;
        case 'n': options.count = number("--count", optarg, 1, UINT64_MAX); break;
        case 'a': options.any_size = true; break;
        case 'r': options.seed = number("--seed", optarg, 0, UINT64_MAX); break;
        default: exit(2);
        }
    if (!options.port) die("--port is needed");
    if (strlen(options.topic) > 124) die("--topic is too long");
    if (!options.batch_bytes) options.batch_bytes = options.message_bytes;
    if (options.batch_bytes < options.message_bytes) die("--batch must hold at least one message");
    if (!options.dialect) die("--protocol is needed");
    if (!options.dialect->whole_batches && options.batch_bytes != options.message_bytes)
        die("%s takes no --batch", options.dialect->name);
    if (options.any_size && options.batch_bytes != options.message_bytes) die("--any-size goes without --batch");
    if (options.any_size && options.dialect->own_ring) die("%s takes no --any-size", options.dialect->name);
}

int main(int argc, char **argv) {
    read_options(argc, argv);
    name_topics();
    random_state = options.seed;
    messages_per_request = (options.batch_bytes + options.message_bytes - 1) / options.message_bytes;
    ok_ending_bytes = (size_t)snprintf(ok_ending, sizeof ok_ending, " %zu\r\n", messages_per_request);
    if ((epoll_fd = epoll_create1(EPOLL_CLOEXEC)) < 0) die_errno("epoll_create1");
    struct connection *connections[MAX_CONNECTIONS];
    for (unsigned i = 0; i < options.connections; i++) connections[i] = open_connection(i);
    run(connections);
    return errors ? 1 : 0;
}
