/* Bytes of regular files that read(2) and its relatives bring. */
#include "agent.h"

/* What a process may ask the kernel before its reads: some short calls each, some milliseconds in all. */
static int reads_left = 16384;

/* Whether there is room for one more read; counts it. */
static int takes_one(void)
{
    if (world.sandboxed)
        return 0;
    if (__atomic_fetch_sub(&reads_left, 1, __ATOMIC_RELAXED) > 0)
        return 1;
    __atomic_store_n(&reads_left, 0, __ATOMIC_RELAXED);
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
    if (fd >= 0 && bytes && takes_one())
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

/* From where on nothing is told yet of the streams that have sought; of others it is their beginning. No lock: what is done with one stream
 * comes one after the other. */
static struct sought {
    const struct stream *stream; /* NULL: free */
    int64_t from;
} sought[64];
/* Whether there was no room for one, which is one of those that are not found. */
static int is_crowded;

static struct sought *find(const struct stream *stream)
{
    for (size_t i = 0; i < sizeof sought / sizeof *sought; i++)
        if (__atomic_load_n(&sought[i].stream, __ATOMIC_RELAXED) == stream)
            return &sought[i];
    return NULL;
}

static void remember(const struct stream *stream, int64_t from)
{
    for (size_t i = 0; i < sizeof sought / sizeof *sought; i++) {
        const struct stream *nobody = NULL;
        if (!__atomic_compare_exchange_n(&sought[i].stream, &nobody, stream, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            continue;
        sought[i].from = from;
        return;
    }
    is_crowded = 1;
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
    if (!plausible(stream) || world.sandboxed)
        return;
    struct sought *known = find(stream);
    int64_t from = known ? known->from : 0;
    int is_told = known || !is_crowded;
    if (known && whence == STREAM_CLOSES)
        __atomic_store_n(&known->stream, NULL, __ATOMIC_RELAXED);
    /* What others have opened may have been read by them. */
    if (stream->flags & NO_READS || stream->fd <= 2)
        return;
    int64_t position = position_of(stream->fd);
    if (position < 0)
        return;
    if (!is_told)
        log_missed();
    else if (position > from && takes_one())
        tell(stream->fd, from, (uint64_t)(position - from));
    if (whence == STREAM_CLOSES)
        return;
    from = goes_on_at(stream, position, offset, whence);
    if (known)
        known->from = from;
    else
        remember(stream, from);
}

/* The same for streams still open at exit. */
void reads_all_streams(const struct link_map *libc)
{
    uintptr_t first = object_symbol(libc, "_IO_list_all");
    const struct stream *stream = first ? *(const struct stream *const *)first : NULL;
    for (int left = 256; plausible(stream) && left; left--, stream = stream->next)
        reads_stream(stream, 0, STREAM_CLOSES);
}
