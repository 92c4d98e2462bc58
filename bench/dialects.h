/* How each server is spoken to: how a connection is opened, a request spelled, a reply cut off.
 *
 * The generator's loop is the same for all of them. A dialect looks at a reply just as far as it must to know
 * that the request was carried out; anything else counts as an error. Opening may block, since no clock runs.
 */
#ifndef BENCH_DIALECTS_H
#define BENCH_DIALECTS_H

#include "loopback.h"

#include <endian.h>
#include <stdbool.h>

enum {
    GREETING_BYTES = 64 * 1024,
    SHOWN_ERRORS = 3,
    READ_BASE = 100000, /* random offsets have six digits, so that all requests have one length */
    READ_SPAN = 900000,
};

struct request {
    unsigned connection, topic_number;
    const char *topic, *body;
    size_t body_bytes;
    uint64_t chance;
};

struct dialect {
    const char *name;
    /* Called once for each connection; `topics` are those that it will push to. NULL: nothing to say. */
    void (*greet)(int fd, unsigned connection, char topics[][256], unsigned count);
    size_t (*spell)(char *out, size_t room, const struct request *request);
    /* How many bytes the first reply takes, or 0 if it is not all there; and how many requests it answers. */
    size_t (*cut)(const char *text, size_t bytes, unsigned *replies);
    bool own_ring;       /* a request names the connection that it leaves by */
    bool whole_batches;  /* a request can hold several messages */
    unsigned ring;       /* requests that differ; more than the usual few for random reads */
};

static uint64_t errors;
static char ok_ending[32]; /* how every good reply of logd to a push must end: " <messages>\r\n" */
static size_t ok_ending_bytes;

static inline void count_error(const char *text, size_t bytes) {
    if (errors++ < SHOWN_ERRORS) fprintf(stderr, "error: %.*s\n", (int)(bytes > 200 ? 200 : bytes), text);
}

static inline void send_whole(int fd, const void *data, size_t bytes) {
    if (send(fd, data, bytes, MSG_NOSIGNAL) != (ssize_t)bytes) die_errno("send");
}

/* ---- logd; a bare echo gets the same bytes and answers with the same line ---- */

static size_t spell_push(char *out, size_t room, const struct request *request) {
    size_t head = (size_t)snprintf(out, room, "PUSH %s %zu\r\n", request->topic, request->body_bytes);
    memcpy(out + head, request->body, request->body_bytes);
    return head + request->body_bytes;
}

static size_t cut_line(const char *text, size_t bytes, unsigned *replies) {
    const char *end = memchr(text, '\n', bytes);
    if (!end) return 0;
    size_t length = (size_t)(end - text) + 1;
    *replies = 1;
    if (length < 3 + ok_ending_bytes || memcmp(text, "OK ", 3) ||
        memcmp(text + length - ok_ending_bytes, ok_ending, ok_ending_bytes))
        count_error(text, length - 1);
    return length;
}

static size_t spell_read(char *out, size_t room, const struct request *request) {
    return (size_t)snprintf(out, room, "READ %s %u 1\r\n", request->topic,
                            (unsigned)(READ_BASE + request->chance % READ_SPAN));
}

static size_t cut_batches(const char *text, size_t bytes, unsigned *replies) {
    const char *end = memchr(text, '\n', bytes);
    if (!end) return 0;
    size_t head = (size_t)(end - text) + 1;
    unsigned long long offset, messages, body;
    *replies = 1;
    if (sscanf(text, "BATCHES %llu %llu %llu", &offset, &messages, &body) != 3 || !messages) {
        count_error(text, head - 1);
        return head;
    }
    return bytes < head + body ? 0 : head + (size_t)body;
}

/* ---- Redis: it stores the message itself, without the LF that only frames it ---- */

static size_t spell_add(char *out, size_t room, const struct request *request, const char *id) {
    size_t bytes = request->body_bytes - 1;
    size_t head = (size_t)snprintf(
        out, room, "*5\r\n$4\r\nXADD\r\n$%zu\r\n%s\r\n$%zu\r\n%s\r\n$1\r\nv\r\n$%zu\r\n", strlen(request->topic),
        request->topic, strlen(id), id, bytes);
    memcpy(out + head, request->body, bytes);
    memcpy(out + head + bytes, "\r\n", 2);
    return head + bytes + 2;
}

static size_t spell_xadd(char *out, size_t room, const struct request *request) {
    return spell_add(out, room, request, "*");
}

/* Entries get the ids 1-0, 1-1, 1-2 and so on: whoever reads them at random knows which ones there are. */
static size_t spell_numbered(char *out, size_t room, const struct request *request) {
    return spell_add(out, room, request, "1-*");
}

static size_t spell_xrange(char *out, size_t room, const struct request *request) {
    unsigned number = (unsigned)(READ_BASE + request->chance % READ_SPAN);
    return (size_t)snprintf(out, room, "*4\r\n$6\r\nXRANGE\r\n$%zu\r\n%s\r\n$8\r\n1-%u\r\n$8\r\n1-%u\r\n",
                            strlen(request->topic), request->topic, number, number);
}

/* The length of any reply of Redis, or 0 if it is not all there. An array is as long as its parts. */
static size_t resp_bytes(const char *text, size_t bytes, unsigned depth) {
    const char *end = memchr(text, '\n', bytes);
    if (!end) return 0;
    size_t whole = (size_t)(end - text) + 1;
    if (text[0] == '-' || text[0] == '+' || text[0] == ':') return whole;
    long count = strtol(text + 1, NULL, 10);
    if ((text[0] != '$' && text[0] != '*') || count < -1 || count > 1 << 24 || depth > 4)
        die("not a reply of redis: %.*s", (int)whole, text);
    if (text[0] == '$' && count >= 0) return bytes < whole + (size_t)count + 2 ? 0 : whole + (size_t)count + 2;
    for (; text[0] == '*' && count > 0; count--) {
        size_t part = resp_bytes(text + whole, bytes - whole, depth + 1);
        if (!part) return 0;
        whole += part;
    }
    return whole;
}

static size_t cut_expected(const char *text, size_t bytes, unsigned *replies, const char *start) {
    size_t whole = resp_bytes(text, bytes, 0);
    *replies = 1;
    if (whole && memcmp(text, start, strlen(start))) count_error(text, whole);
    return whole;
}

static size_t cut_id(const char *text, size_t bytes, unsigned *replies) {
    return cut_expected(text, bytes, replies, "$");
}

static size_t cut_entry(const char *text, size_t bytes, unsigned *replies) {
    return cut_expected(text, bytes, replies, "*1\r\n");
}

/* ---- NATS: a publish that names an inbox is acknowledged there by JetStream ---- */

static void wait_for_text(int fd, const char *wanted, const char *refusal) {
    static char said[GREETING_BYTES];
    size_t bytes = 0;
    for (;;) {
        ssize_t got = recv(fd, said + bytes, sizeof said - 1 - bytes, 0);
        if (got <= 0) die("nats-server closed the connection: %s", said);
        bytes += (size_t)got;
        said[bytes] = 0;
        if (strstr(said, refusal)) die("nats-server refused: %s", said);
        if (strstr(said, wanted)) return;
        if (bytes == sizeof said - 1) die("nats-server says too much");
    }
}

static void greet_nats(int fd, unsigned connection, char topics[][256], unsigned count) {
    char line[1024], stream[1024];
    snprintf(line, sizeof line,
             "CONNECT {\"verbose\":false,\"pedantic\":false}\r\nSUB _INBOX.b%05u 1\r\nPING\r\n", connection);
    send_whole(fd, line, strlen(line));
    wait_for_text(fd, "PONG\r\n", "-ERR");
    for (unsigned i = 0; connection == 0 && i < count; i++) {
        snprintf(stream, sizeof stream,
                 "{\"name\":\"%s\",\"subjects\":[\"%s\"],\"storage\":\"file\",\"num_replicas\":1}", topics[i],
                 topics[i]);
        int bytes = snprintf(line, sizeof line, "PUB $JS.API.STREAM.CREATE.%s _INBOX.b%05u %zu\r\n", topics[i],
                             connection, strlen(stream));
        send_whole(fd, line, (size_t)bytes);
        send_whole(fd, stream, strlen(stream));
        send_whole(fd, "\r\n", 2);
        wait_for_text(fd, "stream_create_response", "\"error\"");
    }
}

static size_t spell_pub(char *out, size_t room, const struct request *request) {
    size_t bytes = request->body_bytes - 1;
    size_t head = (size_t)snprintf(out, room, "PUB %s _INBOX.b%05u %zu\r\n", request->topic, request->connection, bytes);
    memcpy(out + head, request->body, bytes);
    memcpy(out + head + bytes, "\r\n", 2);
    return head + bytes + 2;
}

/* Its PING stays unanswered: it takes minutes until that matters, and no run is that long. */
static size_t cut_message(const char *text, size_t bytes, unsigned *replies) {
    const char *end = memchr(text, '\n', bytes);
    if (!end) return 0;
    size_t head = (size_t)(end - text) + 1, length;
    *replies = 0;
    if (!memcmp(text, "PING", 4)) return head;
    *replies = 1;
    if (memcmp(text, "MSG ", 4) || sscanf(text, "MSG %*s %*s %zu", &length) != 1 || length > GREETING_BYTES) {
        count_error(text, head - 1);
        return head;
    }
    if (bytes < head + length + 2) return 0;
    if (memmem(text + head, length, "\"error\"", 7)) count_error(text + head, length);
    return head + length + 2;
}

/* ---- RabbitMQ's stream protocol: frames with a length, a key and a version ---- */

enum {
    DECLARE_PUBLISHER = 1, PUBLISH = 2, PUBLISH_CONFIRM = 3, PUBLISH_ERROR = 4, CREATE_STREAM = 13,
    PEER_PROPERTIES = 17, SASL_HANDSHAKE = 18, SASL_AUTHENTICATE = 19, TUNE = 20, OPEN = 21, HEARTBEAT = 23,
    RESPONSE = 0x8000, SUCCESS = 1, STREAM_EXISTS = 5,
};

struct frame {
    size_t bytes;
    char data[1024];
};

static void put(struct frame *frame, uint64_t value, size_t width) {
    value = htobe64(value);
    memcpy(frame->data + frame->bytes, (char *)&value + 8 - width, width);
    frame->bytes += width;
}

static void put_string(struct frame *frame, const char *text) {
    put(frame, strlen(text), 2);
    memcpy(frame->data + frame->bytes, text, strlen(text));
    frame->bytes += strlen(text);
}

static uint64_t get(const char *data, size_t width) {
    uint64_t value = 0;
    for (size_t i = 0; i < width; i++) value = value << 8 | (unsigned char)data[i];
    return value;
}

static void start_frame(struct frame *frame, unsigned key) {
    frame->bytes = 0;
    put(frame, 0, 4);
    put(frame, key, 2);
    put(frame, 1, 2);
}

static void send_frame(int fd, struct frame *frame) {
    size_t bytes = frame->bytes;
    frame->bytes = 0;
    put(frame, bytes - 4, 4);
    send_whole(fd, frame->data, bytes);
}

static void start_request(struct frame *frame, unsigned key) {
    start_frame(frame, key);
    put(frame, 0, 4); /* correlation: one request at a time needs none */
}

/* Returns the response code; dies where the answer is to something else. */
static unsigned await_frame(int fd, unsigned key) {
    static char data[GREETING_BYTES];
    char size[4];
    if (recv(fd, size, 4, MSG_WAITALL) != 4) die("rabbitmq closed the connection");
    size_t bytes = get(size, 4);
    if (bytes < 8 || bytes > sizeof data) die("a frame of %zu bytes from rabbitmq", bytes);
    if (recv(fd, data, bytes, MSG_WAITALL) != (ssize_t)bytes) die("rabbitmq closed the connection");
    if (get(data, 2) != key) die("rabbitmq answered with %#x, not with %#x", (unsigned)get(data, 2), key);
    return key == TUNE ? SUCCESS : (unsigned)get(data + 8, 2);
}

static void ask_frame(int fd, struct frame *frame, unsigned key, unsigned also_good) {
    send_frame(fd, frame);
    unsigned code = await_frame(fd, RESPONSE | key);
    if (code != SUCCESS && code != also_good) die("rabbitmq answered request %u with code %u", key, code);
}

static void log_in(int fd) {
    static const char guest[] = "\0guest\0guest";
    struct frame frame;
    start_request(&frame, PEER_PROPERTIES);
    put(&frame, 0, 4);
    ask_frame(fd, &frame, PEER_PROPERTIES, 0);
    start_request(&frame, SASL_HANDSHAKE);
    ask_frame(fd, &frame, SASL_HANDSHAKE, 0);
    start_request(&frame, SASL_AUTHENTICATE);
    put_string(&frame, "PLAIN");
    put(&frame, sizeof guest - 1, 4);
    memcpy(frame.data + frame.bytes, guest, sizeof guest - 1);
    frame.bytes += sizeof guest - 1;
    ask_frame(fd, &frame, SASL_AUTHENTICATE, 0);
    await_frame(fd, TUNE);
    start_frame(&frame, TUNE);
    put(&frame, 0, 4); /* frames of any length, and no heartbeat */
    put(&frame, 0, 4);
    send_frame(fd, &frame);
    start_request(&frame, OPEN);
    put_string(&frame, "/");
    ask_frame(fd, &frame, OPEN, 0);
}

static void greet_rabbitmq(int fd, unsigned connection, char topics[][256], unsigned count) {
    struct frame frame;
    log_in(fd);
    for (unsigned i = 0; i < count; i++) {
        if (connection == 0) {
            start_request(&frame, CREATE_STREAM);
            put_string(&frame, topics[i]);
            put(&frame, 0, 4);
            ask_frame(fd, &frame, CREATE_STREAM, STREAM_EXISTS);
        }
        start_request(&frame, DECLARE_PUBLISHER);
        put(&frame, i, 1);
        put_string(&frame, ""); /* no name: nothing is looked for that was sent before */
        put_string(&frame, topics[i]);
        ask_frame(fd, &frame, DECLARE_PUBLISHER, 0);
    }
}

static size_t spell_publish(char *out, size_t room, const struct request *request) {
    struct frame frame;
    size_t bytes = request->body_bytes - 1;
    if (room < sizeof frame.data) die("no room for a frame");
    start_frame(&frame, PUBLISH);
    put(&frame, request->topic_number, 1);
    put(&frame, 1, 4); /* messages */
    put(&frame, 0, 8); /* an id, which comes back with the confirmation: counted, not compared */
    put(&frame, bytes, 4);
    size_t head = frame.bytes;
    frame.bytes = 0;
    put(&frame, head - 4 + bytes, 4);
    memcpy(out, frame.data, head);
    memcpy(out + head, request->body, bytes);
    return head + bytes;
}

static size_t cut_confirm(const char *text, size_t bytes, unsigned *replies) {
    if (bytes < 4 || bytes < 4 + get(text, 4)) return 0;
    size_t whole = 4 + get(text, 4);
    unsigned key = (unsigned)get(text + 4, 2);
    *replies = 0;
    if (key == HEARTBEAT) return whole;
    if ((key != PUBLISH_CONFIRM && key != PUBLISH_ERROR) || whole < 13)
        die("rabbitmq sent a frame with key %#x", key);
    *replies = (unsigned)get(text + 9, 4);
    for (unsigned i = 0; key == PUBLISH_ERROR && i < *replies; i++) count_error("rabbitmq refused a message", 26);
    return whole;
}

static const struct dialect dialects[] = {
    {"logd", NULL, spell_push, cut_line, false, true, 0},
    {"echo", NULL, spell_push, cut_line, false, true, 0},
    {"redis", NULL, spell_xadd, cut_id, false, false, 0},
    {"redis-numbered", NULL, spell_numbered, cut_id, false, false, 0},
    {"nats", greet_nats, spell_pub, cut_message, true, false, 0},
    {"rabbitmq", greet_rabbitmq, spell_publish, cut_confirm, false, false, 0},
    {"logd-read", NULL, spell_read, cut_batches, false, true, 1 << 16},
    {"redis-read", NULL, spell_xrange, cut_entry, false, false, 1 << 16},
};

static inline const struct dialect *find_dialect(const char *name) {
    for (size_t i = 0; i < sizeof dialects / sizeof *dialects; i++)
        if (!strcmp(dialects[i].name, name)) return &dialects[i];
    die("--protocol is none of those that are known: %s", name);
}

#endif
