/* Maps pages of a program ahead of its first use of them: what `prepage bench modes` preloads.
 *
 * Page tables belong to their process: nobody else can fill them. madvise(MADV_POPULATE_READ) works for the caller only,
 * and process_madvise(2) takes no advice that maps pages. So this runs inside the program, as the constructor of a
 * preloaded library: after ld.so has mapped the libraries that the program is linked with, before main. It cannot help
 * static and setuid programs, nor with what is mapped later by dlopen or mmap.
 *
 * $PREPAGE_EARLY_FAULT names a list, one line each: first page, page behind the last, path. Pages of the list that are
 * mapped are mapped ahead; where they are not in memory, that waits for the disk. What a data segment has beyond its file
 * (.bss) is filled with zeroes. To the file $PREPAGE_EARLY_FAULT_REPORT each program adds a line: nanoseconds taken, pages
 * of files asked for, pages of .bss, page faults that this took, calls of madvise. Anything that goes wrong is left to the
 * program, which then faults as it always did.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

enum { PAGE = 4096, MAPPINGS_MAX = 512, BSS_MAX = 4 << 20 };

struct mapping {
    unsigned long start, end, offset;
    char *path;
};

/* All of a file, with a zero behind it; NULL where it cannot be read. */
static char *content(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t room = 64 << 10, len = 0;
    char *text = fd < 0 ? NULL : malloc(room);
    while (text) {
        ssize_t got = read(fd, text + len, room - 1 - len);
        if (got <= 0)
            break;
        len += (size_t)got;
        if (len + 1 == room) {
            char *more = realloc(text, room *= 2);
            if (!more) {
                free(text);
                text = NULL;
                break;
            }
            text = more;
        }
    }
    if (text)
        text[len] = 0;
    if (fd >= 0)
        close(fd);
    return text;
}

/* What was done. */
static struct {
    unsigned long file_pages, zero_pages, calls;
} done;

static void populate(unsigned long start, unsigned long end, int advice)
{
    if (start >= end)
        return;
    done.calls++;
    if (madvise((void *)start, end - start, advice))
        return;
    *(advice == MADV_POPULATE_WRITE ? &done.zero_pages : &done.file_pages) += (end - start) / PAGE;
}

/* Fills `mappings` with those of files; populates .bss on the way. */
static int read_mappings(char *maps, struct mapping *mappings)
{
    int count = 0;
    unsigned long data_end = 0;
    char *rest = maps, *line;
    while ((line = strsep(&rest, "\n")) && count < MAPPINGS_MAX) {
        struct mapping m = {0};
        char access[5];
        int path_at = 0;
        if (sscanf(line, "%lx-%lx %4s %lx %*s %*s %n", &m.start, &m.end, access, &m.offset, &path_at) < 4)
            continue;
        m.path = line + path_at;
        int is_file = path_at && *m.path == '/';
        /* Nothing but the .bss of a file lies right behind its writable segment. */
        if (!is_file && (!path_at || !*m.path) && m.start == data_end && m.end - m.start <= BSS_MAX)
            populate(m.start, m.end, MADV_POPULATE_WRITE);
        data_end = is_file && access[1] == 'w' ? m.end : 0;
        if (is_file && access[0] == 'r')
            mappings[count++] = m;
    }
    return count;
}

static long long nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Faults of this process so far, those within system calls counted. */
static long faults(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) ? 0 : usage.ru_minflt + usage.ru_majflt;
}

/* One write in append mode: programs that end at once do not mix their lines. */
static void report(long long took_ns, long taken)
{
    const char *path = getenv("PREPAGE_EARLY_FAULT_REPORT");
    int fd = path ? open(path, O_WRONLY | O_APPEND | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    char line[160];
    int len = snprintf(line, sizeof line, "%lld %lu %lu %ld %lu\n", took_ns, done.file_pages, done.zero_pages, taken,
                       done.calls);
    if (write(fd, line, (size_t)len) != len)
        (void)0; /* What is missing in the file is missing in the table. */
    close(fd);
}

__attribute__((constructor)) static void map_ahead(void)
{
    long long began = nanoseconds();
    static struct mapping mappings[MAPPINGS_MAX];
    const char *list_path = getenv("PREPAGE_EARLY_FAULT");
    if (!list_path)
        return; /* The library is preloaded for advise_random.c. */
    char *list = content(list_path), *maps = content("/proc/self/maps");
    long faults_before = faults();
    int count = maps ? read_mappings(maps, mappings) : 0;
    char *rest = list, *line;
    while (list && (line = strsep(&rest, "\n"))) {
        unsigned long first, behind;
        int path_at = 0;
        if (sscanf(line, "%lu %lu %n", &first, &behind, &path_at) < 2 || !path_at)
            continue;
        for (int at = 0; at < count; at++) {
            const struct mapping *m = &mappings[at];
            if (strcmp(m->path, line + path_at))
                continue;
            unsigned long from = first * PAGE, to = behind * PAGE, size = m->end - m->start;
            from = from > m->offset ? from - m->offset : 0;
            to = to > m->offset ? to - m->offset : 0;
            populate(m->start + (from < size ? from : size), m->start + (to < size ? to : size), MADV_POPULATE_READ);
        }
    }
    free(list);
    free(maps);
    report(nanoseconds() - began, faults() - faults_before);
}
