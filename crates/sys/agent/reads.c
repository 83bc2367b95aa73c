/* Bytes of regular files that read(2) and its relatives bring. */
#include "agent.h"

/* What a process may ask the kernel before its reads, and for its streams: some short calls each, some milliseconds in all. */
enum { ALL_MISSED = -1 };
static int reads_left = 16384, pieces_left = 16384;

/* Whether there is room for one more of these; counts it. */
static int takes_one(int *left)
{
    if (world.sandboxed)
        return 0;
    if (__atomic_fetch_sub(left, 1, __ATOMIC_RELAXED) > 0)
        return 1;
    __atomic_store_n(left, ALL_MISSED, __ATOMIC_RELAXED);
    log_missed();
    return 0;
}

/* Where the descriptor `fd` stands. */
static int64_t position_of(int fd)
{
    return RAW3(__NR_lseek, fd, 0, 1 /* SEEK_CUR */);
}

/* `bytes` from `offset` (-1: where the descriptor stands) on. What passes the page cache by (O_DIRECT), whole blocks only, is of no use there. */
static void tell(int fd, int64_t offset, uint64_t bytes)
{
    struct raw_stat stat;
    if (raw_stat_of(fd, "", &stat) || (stat.mode & RAW_S_IFMT) != RAW_S_IFREG || stat.size <= 0 ||
        (!(bytes % 512) && RAW2(__NR_fcntl, fd, 3 /* F_GETFL */) & RAW_O_DIRECT))
        return;
    if (offset < 0)
        offset = position_of(fd);
    if (offset < 0 || offset >= stat.size)
        return;
    uint64_t rest = (uint64_t)(stat.size - offset);
    log_read(&stat, (uint64_t)offset, bytes < rest ? bytes : rest);
}

void reads_at(int fd, int64_t offset, uint64_t bytes)
{
    if (fd >= 0 && bytes && takes_one(&reads_left))
        tell(fd, offset, bytes);
}

/* The public layout of FILE (struct_FILE.h), which no release may change. */
struct stream {
    int flags;
    const char *read_next, *read_end, *read_begin, *write_begin, *write_next, *write_end, *buffer, *buffer_end, *unused[4];
    const struct stream *next;
    int fd;
};
_Static_assert(offsetof(struct stream, next) == 104 && offsetof(struct stream, fd) == 112, "libc's layout");
enum { NO_READS = 4 };

/* The streams that have sought; of others nothing is told yet. Where many files may be open, programs of binutils have thousands. No lock: what
 * is done with one stream comes one after the other. */
static struct sought {
    const struct stream *stream; /* NULL: never taken */
    int64_t from;                /* where it went on */
    uint64_t told, told_end;     /* the pages told last, without a gap: most seeks stay there */
} sought[4096];
#define GONE ((const struct stream *)1) /* in the place of one that was closed */
/* Whether there was no room for one. From then on all that are not found may have sought. */
static int is_crowded;

/* The place of `stream`, near the one that its address tells; or the first one there that is free, where it `takes` one; or NULL. */
static struct sought *find(const struct stream *stream, int takes)
{
    enum { NEAR = 64, PLACES = sizeof sought / sizeof *sought };
    size_t at = (uintptr_t)stream / 16 * 0x9e3779b97f4a7c15 >> 32;
    for (size_t end = at + NEAR; at < end; at++) {
        struct sought *place = &sought[at % PLACES];
        const struct stream *there = __atomic_load_n(&place->stream, __ATOMIC_RELAXED);
        if (!takes && (there == stream || !there))
            return there ? place : NULL;
        if (takes && (!there || there == GONE) &&
            __atomic_compare_exchange_n(&place->stream, &there, stream, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            return place;
    }
    if (takes)
        is_crowded = 1;
    return NULL;
}

/* Whether a page between these bytes of a stream is to be told, which it counts as told. */
static int has_news(struct sought *of, uint64_t from, uint64_t to)
{
    from = page_down(from);
    to = page_up(to);
    if (from >= of->told && to <= of->told_end)
        return 0;
    int is_apart = from > of->told_end || to < of->told;
    if (is_apart || from < of->told)
        of->told = from;
    if (is_apart || to > of->told_end)
        of->told_end = to;
    return 1;
}

/* Where a stream at `position` of its descriptor will go on to read. What lies in its buffer it does not read again; elsewhere it begins at a
 * multiple of the buffer's length. */
static int64_t goes_on_at(const struct stream *stream, int64_t position, int64_t offset, int whence)
{
    struct raw_stat stat;
    int64_t to = offset, bytes = stream->buffer_end - stream->buffer;
    if (whence == STREAM_CURRENT)
        to += position - (stream->read_end - stream->read_next);
    if (whence == STREAM_END)
        to = raw_stat_of(stream->fd, "", &stat) ? -1 : to + stat.size;
    /* It fails, or stays where it is. */
    if (to < 0 || (to <= position && to >= position - (stream->read_end - stream->buffer)))
        return position;
    return bytes ? to & -bytes : (int64_t)page_down((uintptr_t)to);
}

/* stdio reads inside libc, where nothing stands before it. The descriptor tells how far. */
void reads_stream(const void *file, int64_t offset, int whence)
{
    const struct stream *stream = file;
    if (!plausible(stream) || world.sandboxed ||
        (whence != STREAM_CLOSES && __atomic_load_n(&pieces_left, __ATOMIC_RELAXED) == ALL_MISSED))
        return;
    struct sought *place = find(stream, 0), now = place ? *place : (struct sought){stream, 0, 0, 0};
    int may_have_sought = !place && is_crowded;
    if (place && whence == STREAM_CLOSES)
        __atomic_store_n(&place->stream, GONE, __ATOMIC_RELAXED);
    /* What others have opened may have been read by them. */
    if (stream->flags & NO_READS || stream->fd <= 2)
        return;
    int64_t position = position_of(stream->fd);
    if (position < 0)
        return;
    /* Who reads by the descriptor alone, as std::ifstream does, leaves the stream without a buffer. */
    if (stream->buffer && position > now.from) {
        if (may_have_sought)
            log_missed();
        else if (has_news(&now, (uint64_t)now.from, (uint64_t)position) && takes_one(&pieces_left))
            tell(stream->fd, now.from, (uint64_t)(position - now.from));
    }
    if (whence == STREAM_CLOSES || (!place && !(place = find(stream, 1))))
        return;
    now.from = goes_on_at(stream, position, offset, whence);
    *place = now;
}

/* The same for streams still open at exit, which destructors may go on with. */
void reads_all_streams(const struct link_map *libc)
{
    uintptr_t first = object_symbol(libc, "_IO_list_all");
    const struct stream *stream = first ? *(const struct stream *const *)first : NULL;
    for (int left = 256; plausible(stream) && left; left--, stream = stream->next)
        reads_stream(stream, 0, STREAM_CURRENT);
}
