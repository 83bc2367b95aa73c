/* Which pages this process has touched, told before its page table goes: when it ends, when it executes another program in its own place, and
 * when it unmaps something. In an armed mapping only pages that were touched are present. Nobody waits for an observer then. Needs Linux 6.11. */
#include "agent.h"

#include <linux/ioctl.h>

/* struct procmap_query, struct pm_scan_arg and struct page_region of linux/fs.h, for which the compiler's headers may be too old. */
struct query {
    uint64_t size, flags, at, start, end, vma_flags, page_size, offset, inode;
    uint32_t major, minor, name_size, build_id_size;
    uint64_t name, build_id;
};
struct scan {
    uint64_t size, flags, start, end, walk_end, regions, regions_len, pages_max, inverted, mask, any_of, returned;
};
struct region {
    uint64_t start, end, categories;
};
_Static_assert(sizeof(struct query) == 104 && sizeof(struct scan) == 96 && sizeof(struct region) == 24, "the kernel's layout");
#define QUERY _IOWR('f', 17, struct query)
#define SCAN _IOWR('f', 16, struct scan)
enum { NEXT_OF_FILE = 0x30, IS_ARMED = 1 << 0, IS_PRESENT = 1 << 3, REGIONS = 64 };

/* Whether a thread uses what follows. */
static int busy;
static struct region regions[REGIONS];
static char name[AT_PATH_MAX];

/* As stat(2) encodes it. */
static uint64_t device(const struct query *mapping)
{
    uint64_t major = mapping->major, minor = mapping->minor;
    return (minor & 0xff) | (major & 0xfff) << 8 | (minor & ~(uint64_t)0xff) << 12 | (major & ~(uint64_t)0xfff) << 32;
}

/* The file that was named last, if any: two file systems may have the same inode. */
struct named {
    int is_any;
    uint64_t device, inode;
};

static int tell_mapping(long pagemap, const struct query *mapping, struct named *last)
{
    struct named file = {1, device(mapping), mapping->inode};
    struct scan scan = {
        .size = sizeof scan,
        .start = mapping->start,
        .end = mapping->end,
        .regions = (uintptr_t)regions,
        .regions_len = REGIONS,
        .mask = IS_PRESENT,
        .returned = IS_PRESENT | IS_ARMED,
    };
    for (;;) {
        long found = RAW3(__NR_ioctl, pagemap, SCAN, &scan);
        if (found < 0)
            return 0;
        if (found && (!last->is_any || last->device != file.device || last->inode != file.inode)) {
            log_path(MAPPED, 0, NULL, name);
            *last = file;
        }
        for (long i = 0; i < found; i++) {
            uint64_t start = regions[i].start, offset = mapping->offset + (start - mapping->start);
            uint64_t touched[5] = {file.device, file.inode, offset, regions[i].end - start,
                                   regions[i].categories & IS_ARMED};
            log_touched(touched);
        }
        /* With room left, the walk came to its end. */
        if (found < REGIONS)
            return 1;
        scan.start = regions[found - 1].end > scan.walk_end ? regions[found - 1].end : scan.walk_end;
    }
}

int touched_tell(uintptr_t start, uintptr_t end)
{
    struct query mapping = {.size = sizeof mapping, .flags = NEXT_OF_FILE, .at = start, .name = (uintptr_t)name};
    struct named last = {0, 0, 0};
    int is_told = 0;
    if (world.sandboxed || __atomic_exchange_n(&busy, 1, __ATOMIC_ACQUIRE))
        return 0;
    long maps = raw_open("/proc/self/maps"), pagemap = maps < 0 ? maps : raw_open("/proc/self/pagemap");
    while (pagemap >= 0) {
        mapping.name_size = sizeof name;
        long none = RAW3(__NR_ioctl, maps, QUERY, &mapping);
        is_told = none == -RAW_ENOENT || (!none && mapping.start >= end);
        if (none || is_told || !tell_mapping(pagemap, &mapping, &last))
            break;
        mapping.at = mapping.end;
    }
    if (pagemap >= 0)
        RAW1(__NR_close, pagemap);
    if (maps >= 0)
        RAW1(__NR_close, maps);
    __atomic_store_n(&busy, 0, __ATOMIC_RELEASE);
    return is_told;
}
