/* Bytes of regular files that read(2) and its relatives will bring. */
#include "agent.h"

/* What a process may ask the kernel before its reads: two short calls each, some milliseconds in all. */
static int reads_left = 16384;

/* `bytes` from `offset` (-1: where the descriptor stands) on. */
void reads_at(int fd, int64_t offset, uint64_t bytes)
{
    struct raw_stat stat;
    if (fd < 0 || !bytes || world.sandboxed)
        return;
    if (__atomic_fetch_sub(&reads_left, 1, __ATOMIC_RELAXED) <= 0) {
        __atomic_store_n(&reads_left, 0, __ATOMIC_RELAXED);
        log_missed();
        return;
    }
    if (raw_stat_of(fd, "", RAW_AT_EMPTY_PATH, &stat) || (stat.mode & RAW_S_IFMT) != RAW_S_IFREG || stat.size <= 0)
        return;
    if (offset < 0)
        offset = RAW3(__NR_lseek, fd, 0, 1 /* SEEK_CUR */);
    if (offset < 0 || offset >= stat.size)
        return;
    uint64_t rest = (uint64_t)(stat.size - offset);
    uint64_t read[4] = {stat.device, stat.inode, (uint64_t)offset, bytes < rest ? bytes : rest};
    log_read(read);
}

/* The public layout of FILE (struct_FILE.h), which no release may change. */
enum { STREAM_FLAGS = 0, STREAM_NEXT = 104, STREAM_FILENO = 112, NO_READS = 4 };

/* What was read of a stream: stdio reads inside libc, where nothing stands before it. Its descriptor tells how far. */
void reads_stream(const char *file)
{
    if (!plausible(file) || world.sandboxed || *(const int *)(file + STREAM_FLAGS) & NO_READS)
        return;
    int fd = *(const int *)(file + STREAM_FILENO);
    long position = fd > 2 ? RAW3(__NR_lseek, fd, 0, 1 /* SEEK_CUR */) : 0;
    if (position > 0)
        reads_at(fd, 0, (uint64_t)position);
}

/* The same for streams still open at exit. */
void reads_all_streams(const struct link_map *libc)
{
    uintptr_t first = object_symbol(libc, "_IO_list_all");
    const char *file = first ? *(const char *const *)first : NULL;
    for (int left = 256; plausible(file) && left; left--, file = *(const char *const *)(file + STREAM_NEXT))
        reads_stream(file);
}
