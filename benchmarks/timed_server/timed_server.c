/* An OpenAI-style completions server that generates nothing and is exact about time.
 *
 *   cc -O2 -o timed_server timed_server.c
 *   ./timed_server --port 0 --ttft-us 50000 --itl-us 10000 --cpu 1
 *
 * prints "listening PORT" once it is ready. Token k of a stream is due at
 *
 *   arrival + TTFT + k * ITL
 *
 * where `arrival` is the kernel's receive timestamp of the request's last bytes: what a request waits for this process
 * does not move its schedule, so a client's error is simply what it reports minus TTFT (or ITL). A late send never
 * moves the next one. Every send is logged with its due time and the time when send() had returned; on loopback the
 * bytes are in the client's socket by then, so the difference bounds the server's own error from above.
 *
 * TTFT and ITL are constant, so sends become due in the order in which they are scheduled: two queues, one for first
 * tokens and one for the others, replace a heap. With few streams it sleeps until shortly before a due time and spins.
 *
 *   POST /v1/completions, /v1/chat/completions   max_tokens (max_completion_tokens), stream, include_usage
 *   GET  /stats      JSON, milliseconds: send error of all tokens and of first tokens, delay of reads
 *   GET  /log        CSV: request,token,due_ns,sent_ns (CLOCK_MONOTONIC)
 *   GET  /reset      forgets both
 *   GET  anything else   what clients probe: /v1/models lists one model, "timed"
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/net_tstamp.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_FDS = 16384, EVENTS = 16, SENDS_BETWEEN_POLLS = 16, REQUEST_LIMIT = 4 << 20 };
enum { LOG_ENTRIES = 4 << 20, RING = MOST_FDS };
#define SPIN_NS 150000   /* a sleeping CPU wakes about 0.1 ms late, */
#define SPIN_STREAMS 30  /* but real-time processes that never sleep are held up by the kernel */

typedef struct {
    int fd;
    bool streaming, chat, usage, last_then_close, busy;
    int tokens, next;
    uint32_t request;
    int64_t due;
    char *in, *backlog;
    size_t in_size, in_room, backlog_size;
    char token[320];
    size_t token_size;
} Peer;

typedef struct { uint32_t request, token; int64_t due, sent; } Sent;
typedef struct { Peer *slots[RING]; unsigned head, tail; } Queue;

static int64_t ttft_ns = 50000000, itl_ns = 10000000;
static Peer *peers[MOST_FDS];
static Queue firsts, others;
static Sent *sends;
static size_t sends_count;
static int64_t *read_delays;
static size_t reads_count;
static uint32_t requests;
static int active, peak; /* streams */
static int poller;
static volatile sig_atomic_t stopping;

static int64_t clock_of(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}
static int64_t now_ns(void) { return clock_of(CLOCK_MONOTONIC); }
static void fail(const char *what) { perror(what); exit(1); }

/* ---- the schedule ---- */
static void enqueue(Queue *queue, Peer *peer) {
    unsigned at = queue->tail++;
    while (at != queue->head && queue->slots[(at - 1) % RING]->due > peer->due) {
        queue->slots[at % RING] = queue->slots[(at - 1) % RING];
        at--;
    }
    queue->slots[at % RING] = peer;
}
static Queue *earliest(void) {
    bool first = firsts.head != firsts.tail, other = others.head != others.tail;
    if (!first) return other ? &others : NULL;
    if (!other) return &firsts;
    return firsts.slots[firsts.head % RING]->due <= others.slots[others.head % RING]->due ? &firsts : &others;
}
static void unschedule(Queue *queue, Peer *peer) {
    unsigned kept = queue->head;
    for (unsigned at = queue->head; at != queue->tail; at++)
        if (queue->slots[at % RING] != peer) queue->slots[kept++ % RING] = queue->slots[at % RING];
    queue->tail = kept;
}

/* ---- sending ---- */
static void hang_up(Peer *peer) {
    if (peer->busy) { unschedule(&firsts, peer); unschedule(&others, peer); active--; }
    peers[peer->fd] = NULL;
    close(peer->fd);
    free(peer->in);
    free(peer->backlog);
    free(peer);
}
static void want(Peer *peer, uint32_t events) {
    struct epoll_event e = {.events = events, .data.fd = peer->fd};
    epoll_ctl(poller, EPOLL_CTL_MOD, peer->fd, &e);
}
static bool transmit(Peer *peer, const char *data, size_t size) {
    if (peer->backlog_size == 0) {
        ssize_t n = send(peer->fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN) return false;
        if (n == (ssize_t)size) return true;
        if (n > 0) { data += n; size -= n; }
    }
    if (!(peer->backlog = realloc(peer->backlog, peer->backlog_size + size))) fail("realloc");
    memcpy(peer->backlog + peer->backlog_size, data, size);
    peer->backlog_size += size;
    want(peer, EPOLLIN | EPOLLOUT);
    return true;
}
static bool flush_backlog(Peer *peer) {
    ssize_t n = send(peer->fd, peer->backlog, peer->backlog_size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN;
    peer->backlog_size -= n;
    memmove(peer->backlog, peer->backlog + n, peer->backlog_size);
    if (peer->backlog_size == 0) want(peer, EPOLLIN);
    return true;
}
static size_t chunk(char *out, size_t room, const char *format, ...) {
    char event[512];
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(event, sizeof event, format, arguments);
    va_end(arguments);
    return snprintf(out, room, "%x\r\ndata: %s\n\n\r\n", size + 8, event);
}
static size_t token_chunk(const Peer *peer, char *out, size_t room, const char *finish) {
    if (peer->chat)
        return chunk(out, room, "{\"id\":\"c%u\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"timed\","
                     "\"choices\":[{\"index\":0,\"delta\":{\"content\":\" a\"},\"finish_reason\":%s}]}",
                     peer->request, finish);
    return chunk(out, room, "{\"id\":\"c%u\",\"object\":\"text_completion\",\"created\":1,\"model\":\"timed\","
                 "\"choices\":[{\"index\":0,\"text\":\" a\",\"logprobs\":null,\"finish_reason\":%s}]}",
                 peer->request, finish);
}
static size_t usage_text(const Peer *peer, char *out, size_t room) {
    return snprintf(out, room, "\"usage\":{\"prompt_tokens\":8,\"completion_tokens\":%d,\"total_tokens\":%d}",
                    peer->tokens, peer->tokens + 8);
}
static bool transmit_last(Peer *peer) {
    char out[2048], usage[160];
    size_t size = token_chunk(peer, out, sizeof out, "\"length\"");
    usage_text(peer, usage, sizeof usage);
    if (peer->usage)
        size += chunk(out + size, sizeof out - size, "{\"id\":\"c%u\",\"object\":\"%s\",\"created\":1,\"model\":\"timed\","
                      "\"choices\":[],%s}", peer->request, peer->chat ? "chat.completion.chunk" : "text_completion", usage);
    size += snprintf(out + size, sizeof out - size, "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
    return transmit(peer, out, size);
}
static bool answer(Peer *peer, const char *body, size_t size, const char *type) {
    char head[160];
    int n = snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %zu\r\n\r\n", type, size);
    return transmit(peer, head, n) && transmit(peer, body, size);
}
static bool transmit_whole(Peer *peer) {
    char body[512], usage[160];
    usage_text(peer, usage, sizeof usage);
    int n = snprintf(body, sizeof body, "{\"id\":\"c%u\",\"object\":\"%s\",\"created\":1,\"model\":\"timed\",\"choices\":"
                     "[{\"index\":0,%s,\"finish_reason\":\"length\"}],%s}", peer->request,
                     peer->chat ? "chat.completion" : "text_completion",
                     peer->chat ? "\"message\":{\"role\":\"assistant\",\"content\":\" a\"}" : "\"text\":\" a\"", usage);
    return answer(peer, body, n, "application/json");
}
static bool read_requests(Peer *peer, int64_t arrival);

static void send_earliest(Queue *queue) {
    Peer *peer = queue->slots[queue->head++ % RING];
    int64_t due = peer->due;
    bool last = !peer->streaming || peer->next == peer->tokens - 1;
    bool sent = !peer->streaming ? transmit_whole(peer) : last ? transmit_last(peer)
                                                       : transmit(peer, peer->token, peer->token_size);
    int64_t now = now_ns();
    if (sends_count < LOG_ENTRIES) sends[sends_count++] = (Sent){peer->request, peer->next, due, now};
    peer->next++;
    if (sent && !last) {
        peer->due += itl_ns;
        enqueue(&others, peer);
        return;
    }
    peer->busy = false;
    active--;
    if (!sent || (peer->last_then_close && peer->backlog_size == 0) || !read_requests(peer, now)) hang_up(peer);
}

/* ---- what is asked for ---- */
static const char *find(const char *text, size_t size, const char *what) { return memmem(text, size, what, strlen(what)); }
static const char *value_of(const char *body, size_t size, const char *quoted_key) {
    const char *at = find(body, size, quoted_key);
    if (!at) return NULL;
    for (at += strlen(quoted_key); *at == ' ' || *at == ':'; at++) {}
    return at;
}
static bool is_true(const char *body, size_t size, const char *key) {
    const char *value = value_of(body, size, key);
    return value && !strncmp(value, "true", 4);
}
static const char *header(const char *head, const char *name) {
    const char *at = strcasestr(head, name);
    return at ? at + strlen(name) + strspn(at + strlen(name), " ") : NULL;
}
static bool begin(Peer *peer, bool chat, const char *body, size_t size, int64_t arrival) {
    const char *tokens = value_of(body, size, "\"max_completion_tokens\"");
    if (!tokens) tokens = value_of(body, size, "\"max_tokens\"");
    peer->tokens = tokens && atoi(tokens) > 0 ? atoi(tokens) : 16;
    peer->streaming = is_true(body, size, "\"stream\"");
    peer->usage = is_true(body, size, "\"include_usage\"");
    peer->chat = chat;
    peer->next = 0;
    peer->request = requests++;
    peer->due = arrival + ttft_ns;
    peer->busy = true;
    if (++active > peak) peak = active;
    enqueue(&firsts, peer);
    if (!peer->streaming) return true;
    peer->token_size = token_chunk(peer, peer->token, sizeof peer->token, "null");
    static const char head[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                               "transfer-encoding: chunked\r\n\r\n";
    return transmit(peer, head, sizeof head - 1);
}

/* ---- what is told ---- */
static int by_size(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}
static int summary(char *out, size_t room, const char *name, int64_t *values, size_t count) {
    qsort(values, count, sizeof *values, by_size);
    double of[4] = {0};
    static const double shares[] = {.5, .99, .999, 1};
    for (int i = 0; count && i < 4; i++) of[i] = values[(size_t)(shares[i] * (count - 1))] / 1e6;
    return snprintf(out, room, "\"%s\":{\"n\":%zu,\"p50\":%.4f,\"p99\":%.4f,\"p999\":%.4f,\"max\":%.4f}", name, count, of[0],
                    of[1], of[2], of[3]);
}
static bool tell_stats(Peer *peer) {
    char out[1024];
    int64_t *errors = malloc((sends_count + 1) * sizeof *errors);
    size_t count = 0;
    int size = snprintf(out, sizeof out, "{\"unit\":\"ms\",\"requests\":%u,\"peak\":%d,\"cpu_s\":%.3f,", requests,
                        peak, clock_of(CLOCK_PROCESS_CPUTIME_ID) / 1e9);
    for (size_t i = 0; i < sends_count; i++)
        if (sends[i].token == 0) errors[count++] = sends[i].sent - sends[i].due;
    size += summary(out + size, sizeof out - size, "first_send_error", errors, count);
    for (count = 0; count < sends_count; count++) errors[count] = sends[count].sent - sends[count].due;
    out[size++] = ',';
    size += summary(out + size, sizeof out - size, "send_error", errors, count);
    out[size++] = ',';
    size += summary(out + size, sizeof out - size, "read_delay", read_delays, reads_count);
    out[size++] = '}';
    free(errors);
    return answer(peer, out, size, "application/json");
}
static bool tell_log(Peer *peer) {
    size_t room = 64 + sends_count * 64, size = 0;
    char *out = malloc(room);
    if (!out) fail("malloc");
    size += sprintf(out, "request,token,due_ns,sent_ns\n");
    for (size_t i = 0; i < sends_count; i++)
        size += sprintf(out + size, "%u,%u,%lld,%lld\n", sends[i].request, sends[i].token, (long long)sends[i].due,
                        (long long)sends[i].sent);
    bool sent = answer(peer, out, size, "text/csv");
    free(out);
    return sent;
}
static bool serve_other(Peer *peer, const char *path) {
    static const char models[] = "{\"object\":\"list\",\"data\":[{\"id\":\"timed\",\"object\":\"model\",\"created\":1,"
                                 "\"owned_by\":\"timed\",\"max_model_len\":131072}]}";
    if (!strcmp(path, "/stats")) return tell_stats(peer);
    if (!strcmp(path, "/log")) return tell_log(peer);
    if (!strcmp(path, "/v1/models")) return answer(peer, models, sizeof models - 1, "application/json");
    if (!strcmp(path, "/reset")) sends_count = reads_count = requests = peak = 0;
    return answer(peer, "{}", 2, "application/json");
}
/* Serves what is complete in the buffer; false: close. */
static bool read_requests(Peer *peer, int64_t arrival) {
    while (!peer->busy && peer->in_size) {
        char path[128];
        const char *end = find(peer->in, peer->in_size, "\r\n\r\n");
        if (!end) return peer->in_size < REQUEST_LIMIT;
        size_t head_size = end + 4 - peer->in;
        char *head = strndup(peer->in, head_size);
        const char *length = header(head, "\r\ncontent-length:"), *connection = header(head, "\r\nconnection:");
        size_t body_size = length ? strtoul(length, NULL, 10) : 0;
        bool post = !strncmp(head, "POST ", 5), named = sscanf(head, "%*s %127[^ ?]", path) == 1;
        peer->last_then_close = connection && !strncasecmp(connection, "close", 5);
        free(head);
        if (!named || body_size > REQUEST_LIMIT) return false;
        if (peer->in_size - head_size < body_size) return true;
        bool chat = !strcmp(path, "/v1/chat/completions");
        bool served = post && (chat || !strcmp(path, "/v1/completions"))
                          ? begin(peer, chat, peer->in + head_size, body_size, arrival)
                          : serve_other(peer, path);
        if (!served) return false;
        peer->in_size -= head_size + body_size;
        memmove(peer->in, peer->in + head_size + body_size, peer->in_size);
        peer->in[peer->in_size] = 0;
    }
    return true;
}
static bool receive(Peer *peer) {
    char control[128];
    if (peer->in_room - peer->in_size < 16384) {
        peer->in_room = peer->in_size + 65536;
        if (!(peer->in = realloc(peer->in, peer->in_room))) fail("realloc");
    }
    struct iovec place = {peer->in + peer->in_size, peer->in_room - peer->in_size - 1};
    struct msghdr message = {.msg_iov = &place, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t n = recvmsg(peer->fd, &message, MSG_DONTWAIT);
    if (n <= 0) return n < 0 && errno == EAGAIN;
    int64_t now = now_ns(), arrival = now;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_TIMESTAMPNS) {
            struct timespec t;
            memcpy(&t, CMSG_DATA(c), sizeof t);
            arrival = t.tv_sec * 1000000000LL + t.tv_nsec - clock_of(CLOCK_REALTIME) + now_ns();
        }
    if (arrival > now) arrival = now;
    if (reads_count < LOG_ENTRIES) read_delays[reads_count++] = now - arrival;
    peer->in_size += n;
    peer->in[peer->in_size] = 0;
    return read_requests(peer, arrival);
}
static void welcome(int listener) {
    int one = 1, fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    if (fd >= MOST_FDS) { close(fd); return; }
    Peer *peer = calloc(1, sizeof *peer);
    peer->fd = fd;
    peers[fd] = peer;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e);
}

static int listen_on(int port) {
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one)) fail("SO_TIMESTAMPNS"); /* accepted ones inherit it */
    if (bind(fd, (void *)&address, size) || listen(fd, 4096)) fail("listen");
    getsockname(fd, (void *)&address, &size);
    printf("listening %d\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}
static void *room_for(size_t entries, size_t size) {
    void *room = mmap(NULL, entries * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) fail("mmap");
    return room;
}
static void run_on(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set)) fail("sched_setaffinity");
}
static void wait_for_events(int listener) {
    struct epoll_event events[EVENTS];
    struct timespec timeout = {0}, *limit = NULL;
    Queue *queue = earliest();
    if (queue) {
        int64_t sleep = queue->slots[queue->head % RING]->due - now_ns();
        if (active <= SPIN_STREAMS) sleep -= SPIN_NS;
        if (sleep > 0) timeout = (struct timespec){sleep / 1000000000, sleep % 1000000000};
        limit = &timeout;
    }
    int n = epoll_pwait2(poller, events, EVENTS, limit, NULL);
    for (int i = 0; i < n; i++) {
        Peer *peer = peers[events[i].data.fd];
        if (events[i].data.fd == listener) { welcome(listener); continue; }
        if (!peer) continue;
        bool open = !(events[i].events & EPOLLOUT) || flush_backlog(peer);
        if (open && events[i].events & ~EPOLLOUT) open = receive(peer);
        if (!open || (peer->last_then_close && !peer->busy && peer->backlog_size == 0)) hang_up(peer);
    }
}
static void on_signal(int number) { (void)number; stopping = 1; }

int main(int count, char **words) {
    int port = 0;
    for (int i = 1; i + 1 < count; i += 2) {
        if (!strcmp(words[i], "--port")) port = atoi(words[i + 1]);
        else if (!strcmp(words[i], "--ttft-us")) ttft_ns = atoll(words[i + 1]) * 1000;
        else if (!strcmp(words[i], "--itl-us")) itl_ns = atoll(words[i + 1]) * 1000;
        else if (!strcmp(words[i], "--cpu")) run_on(atoi(words[i + 1]));
        else { fprintf(stderr, "unknown option %s\n", words[i]); return 2; }
    }
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    if (sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 10})) /* where permitted, else: */
        setpriority(PRIO_PROCESS, 0, -15);
    sends = room_for(LOG_ENTRIES, sizeof *sends);
    read_delays = room_for(LOG_ENTRIES, sizeof *read_delays);
    poller = epoll_create1(EPOLL_CLOEXEC);
    int listener = listen_on(port);
    struct epoll_event e = {.events = EPOLLIN, .data.fd = listener};
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &e);
    while (!stopping) {
        Queue *queue;
        for (int i = 0; i < SENDS_BETWEEN_POLLS && (queue = earliest()); i++) {
            if (queue->slots[queue->head % RING]->due > now_ns()) break;
            send_earliest(queue);
        }
        wait_for_events(listener);
    }
    return 0;
}
