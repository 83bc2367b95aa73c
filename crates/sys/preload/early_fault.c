/* Maps pages of a program ahead of its first use of them: what `prepage run --early-fault` preloads.
 *
 * Page tables belong to their process: nobody else can fill them. madvise(MADV_POPULATE_READ) works for the caller only,
 * and process_madvise(2) takes no advice that maps pages. So this runs inside the program, as the constructor of a
 * preloaded library: after ld.so has mapped the libraries that the program is linked with, before main. It cannot help
 * static and setuid programs, nor with what is mapped later by dlopen or mmap.
 *
 * $PREPAGE_EARLY_FAULT names a list, one line each: first page, page behind the last, path. Pages of the list that are
 * mapped are mapped ahead; where they are not in memory, that waits for the disk. What a data segment has beyond its file
 * (.bss) is filled with zeroes. With $PREPAGE_EARLY_FAULT_TIMING it says how long that took. Anything that goes wrong is left to the program, which then faults as it always did.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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

static void populate(unsigned long start, unsigned long end, int advice)
{
    if (start < end)
        madvise((void *)start, end - start, advice);
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

static double milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

__attribute__((constructor)) static void map_ahead(void)
{
    double began = milliseconds();
    static struct mapping mappings[MAPPINGS_MAX];
    const char *list_path = getenv("PREPAGE_EARLY_FAULT");
    char *list = list_path ? content(list_path) : NULL, *maps = content("/proc/self/maps");
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
    if (list_path && getenv("PREPAGE_EARLY_FAULT_TIMING"))
        dprintf(2, "prepage: pages mapped: %.2f ms\n", milliseconds() - began);
}
