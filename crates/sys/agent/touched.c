/* Which pages this process has touched, told before its page table goes: when it ends, when it executes another program in its own place, and
 * when it unmaps something. In an armed mapping only pages that were touched are present. Nobody waits for an observer then. Needs Linux 6.11.
 *
 * The program waits for this, so that it takes few calls: one for many pages of the page table, and one for each mapping that has some. */
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
enum { NEXT_OF_FILE = 0x30, IS_ARMED = 1 << 0, IS_FILE = 1 << 2, IS_PRESENT = 1 << 3, REGIONS = 128, RUNS = 64, PAGE = 4096 };

/* Whether a thread uses what follows. */
static int busy;
static struct region regions[REGIONS];
static char name[AT_PATH_MAX];
/* Of one file, not logged yet. */
static struct touched runs[RUNS];
static size_t count;
/* Which file that is, if any: two file systems may have the same inode. */
static int is_named;
static uint64_t of_device, of_inode;

static uint64_t device(const struct query *mapping)
{
    return raw_device(mapping->major, mapping->minor);
}

static void log_runs(void)
{
    if (count)
        log_touched(of_device, of_inode, runs, count);
    count = 0;
}

static void tell_run(const struct query *mapping, uint64_t start, uint64_t end, int is_armed)
{
    uint64_t page = (mapping->offset + (start - mapping->start)) / PAGE, left = (end - start) / PAGE;
    if (!is_named || of_inode != mapping->inode || of_device != device(mapping)) {
        log_runs();
        is_named = 1;
        of_inode = mapping->inode;
        of_device = device(mapping);
        log_path(MAPPED, 0, NULL, name);
    }
    while (left) {
        if (count == RUNS)
            log_runs();
        uint64_t pages = left < TOUCHED_PAGES_MAX ? left : TOUCHED_PAGES_MAX;
        runs[count++] = (struct touched){.page = page, .pages = (unsigned)pages, .is_armed = is_armed != 0};
        page += pages;
        left -= pages;
    }
}

/* Finds the first `mapping` of a file that ends behind `at`. Returns less than 0 where that cannot be known, 0 where no file is mapped from
 * there on. */
static int find(long maps, struct query *mapping, uint64_t at)
{
    mapping->at = at;
    mapping->name_size = sizeof name;
    long error = RAW3(__NR_ioctl, maps, QUERY, mapping);
    return !error ? 1 : error == -RAW_ENOENT ? 0 : -1;
}

/* Tells what of `region` is of files. `mapping` is the last one asked for. Returns as `find`. */
static int tell_region(long maps, struct query *mapping, const struct region *region)
{
    for (uint64_t at = region->start; at < region->end;) {
        int found = mapping->end <= at ? find(maps, mapping, at) : 1;
        if (found <= 0)
            return found;
        if (at < mapping->start)
            at = mapping->start;
        uint64_t end = region->end < mapping->end ? region->end : mapping->end;
        if (at < end)
            tell_run(mapping, at, end, region->categories & IS_ARMED);
        at = end > at ? end : region->end;
    }
    return 1;
}

/* One past the last address of programs, but for the last page: 2^47 on x86-64, 2^48 or 2^39 on arm64, as the kernel was built. The stack lies below. */
static uint64_t user_end(void)
{
    uintptr_t on_stack = (uintptr_t)world.execfn;
    return on_stack ? ((uint64_t)2 << (63 - __builtin_clzll(on_stack))) - PAGE : 0;
}

long touched_open(void)
{
    return raw_open("/proc/self/pagemap");
}

/* `mapping` is the first of a file that ends behind `start`. */
static int tell(long maps, long pagemap, struct query *mapping, uint64_t start, uint64_t end)
{
    struct scan scan = {
        .size = sizeof scan,
        .start = start,
        .end = end,
        .regions = (uintptr_t)regions,
        .regions_len = REGIONS,
        .mask = IS_PRESENT,
        .returned = IS_PRESENT | IS_ARMED,
    };
    for (;;) {
        /* What lies before the next file is not looked at. */
        if (scan.start < mapping->start)
            scan.start = mapping->start;
        if (scan.start >= end)
            return 1;
        long found = RAW3(__NR_ioctl, pagemap, SCAN, &scan);
        if (found < 0)
            return 0;
        for (long i = 0; i < found; i++) {
            int goes_on = tell_region(maps, mapping, &regions[i]);
            if (goes_on <= 0)
                return !goes_on;
        }
        /* With room left, the walk came to its end. */
        if (found < REGIONS)
            return 1;
        scan.start = regions[found - 1].end > scan.walk_end ? regions[found - 1].end : scan.walk_end;
    }
}

/* Most of what programs unmap is memory of their own: the page table is looked at only where a file is mapped. */
int touched_tell(uintptr_t start, uintptr_t end)
{
    struct query mapping = {.size = sizeof mapping, .flags = NEXT_OF_FILE, .name = (uintptr_t)name};
    if (world.sandboxed || __atomic_exchange_n(&busy, 1, __ATOMIC_ACQUIRE))
        return 0;
    if (end > user_end())
        end = user_end();
    long maps = raw_open("/proc/self/maps");
    int found = maps < 0 ? -1 : find(maps, &mapping, start), is_told = found >= 0;
    if (found > 0 && mapping.start < end) {
        long pagemap = touched_open();
        is_named = 0;
        is_told = pagemap >= 0 && tell(maps, pagemap, &mapping, start, end);
        log_runs();
        if (pagemap >= 0)
            RAW1(__NR_close, pagemap);
    }
    if (maps >= 0)
        RAW1(__NR_close, maps);
    __atomic_store_n(&busy, 0, __ATOMIC_RELEASE);
    return is_told;
}

int touched_forget(long pagemap, const struct extent *extent)
{
    enum { AT_ONCE = 16 };
    struct region clean[AT_ONCE];
    struct scan scan = {
        .size = sizeof scan,
        .start = extent->start,
        .end = extent->end,
        .regions = (uintptr_t)clean,
        .regions_len = AT_ONCE,
        .mask = IS_PRESENT | IS_FILE,
        .returned = IS_PRESENT,
    };
    long found = AT_ONCE;
    while (found == AT_ONCE && scan.start < scan.end) {
        found = RAW3(__NR_ioctl, pagemap, SCAN, &scan);
        for (long i = 0; i < found; i++) {
            RAW3(__NR_madvise, clean[i].start, clean[i].end - clean[i].start, RAW_MADV_DONTNEED);
            scan.start = clean[i].end;
        }
    }
    return found >= 0;
}
