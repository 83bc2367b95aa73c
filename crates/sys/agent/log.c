/* The log: a memfd of the observer's, mapped shared. Any number of processes and threads append to it.
 *
 *   page 0   struct header
 *   then     slots of 64 bytes, taken by adding to the cursor and never taken twice
 *
 * A record is one or more slots in a row. Each slot begins with a tag, so that a reader finds the next record behind one
 * whose writer was killed. The first slot's tag is written last: it publishes the record. When no slot is left, or the
 * observer has marked the log as ended, records are counted and dropped. So are those of a process that has locked its
 * memory, or limits its address space: mlockall(2) would lock all of the log, or fail, and the limit would count it.
 *
 * Whoever reads the log has its thread's number in the header, in a word that the kernel marks when that thread ends without having marked the log
 * as ended (a robust futex): killed, it would leave its records behind for as long as programs run that have the log mapped.
 *
 * The agent finds the memfd as /proc/OBSERVER/fd/N, so the program inherits no descriptor, and keeps none. A secret
 * word in the header tells the log from whatever else may have this name by now: nothing is written before it was seen. */
#include "agent.h"

enum { SLOT = 64, SLOTS_AT = 4096, FIRST_TEXT = SLOT - 20, MORE_TEXT = SLOT - 4, FIRST_RUNS = 4, MORE_RUNS = 7, TOKEN = 16 };
enum { TAG_FIRST = 0x51, TAG_MORE = 0x52 }; /* 0: not written yet */

struct header {
    char magic[8];
    uint32_t version, ended;
    unsigned char token[TOKEN];
    uint64_t slots; /* that may be used, of those there are: the observer may come to know that there is little memory */
    uint32_t last, reader; /* 0: nobody says */
    uint64_t unused[2];
    uint64_t cursor, dropped, missed;
};
_Static_assert(offsetof(struct header, cursor) == 64, "a cache line of its own; record.rs says the same");

union slot {
    uint32_t tag; /* byte 0: TAG_*; of a first slot byte 1: kind, bytes 2 and 3: slots */
    struct {
        uint32_t tag, pid;
        uint64_t time;
        union {
            struct {
                uint16_t len, detail;
                char text[FIRST_TEXT];
            };
            uint64_t numbers[6];
            struct {
                uint64_t device, inode;
                struct touched runs[FIRST_RUNS];
            };
        };
    } first;
    struct {
        uint32_t tag;
        char text[MORE_TEXT];
    } more;
    struct {
        uint64_t tag;
        struct touched runs[MORE_RUNS];
    } more_runs;
};
_Static_assert(sizeof(union slot) == SLOT, "slots are 64 bytes");

static struct header *header;
static size_t slots_bytes;
/* Threads that write to slots now, and whether those are to be unmapped: who has counted itself sees `left`, or log_leave
 * sees the count. */
static int writers, left;
static char variable_copy[128];
/* Hashes of what this process logged already: most names come often. A collision overwrites. */
static uint64_t seen[1024];

int log_open(const char *variable, int *arms)
{
    const char *at = variable;
    unsigned char token[TOKEN];
    char path[64];
    struct raw_stat stat;
    uint64_t limit[2];
    if (length(variable) >= sizeof variable_copy || number(&at, 10) != 1 || *at++ != ':')
        return 0;
    uint64_t pid = number(&at, 10);
    if (*at++ != ':')
        return 0;
    uint64_t fd = number(&at, 10);
    if (*at++ != ':')
        return 0;
    for (int i = 0; i < TOKEN; i++) {
        char pair[3] = {at[0], at[0] ? at[1] : 0, 0};
        const char *digits = pair;
        token[i] = (unsigned char)number(&digits, 16);
        if (digits != pair + 2)
            return 0;
        at += 2;
    }
    if (*at++ != ':')
        return 0;
    world.filters = (int)number(&at, 10);
    *arms = at[0] == ':' && at[1] == '1';
    /* Whoever limits its address space counts every mapping. */
    if (RAW4(__NR_prlimit64, 0, RAW_RLIMIT_AS, 0, limit) || limit[0] != UINT64_MAX)
        return 0;
    append_number(append(append_number(append(path, "/proc/"), pid), "/fd/"), fd);
    long log = RAW4(__NR_openat, RAW_AT_FDCWD, path, RAW_O_RDWR | RAW_O_CLOEXEC | RAW_O_NONBLOCK | RAW_O_NOCTTY, 0);
    if (log < 0)
        return 0;
    long mapped = -1;
    if (!raw_stat_of((int)log, "", &stat) && (stat.mode & RAW_S_IFMT) == RAW_S_IFREG &&
        stat.size > SLOTS_AT)
        mapped = RAW6(__NR_mmap, 0, stat.size, RAW_PROT_READ | RAW_PROT_WRITE, RAW_MAP_SHARED, log, 0);
    RAW1(__NR_close, log);
    if (mapped < 0 && mapped > -4096)
        return 0;
    struct header *found = (struct header *)mapped;
    int ours = !__builtin_memcmp(found->magic, "prepage", 8) && found->version == 2 &&
               !__builtin_memcmp(found->token, token, TOKEN) && found->slots <= (uint64_t)(stat.size - SLOTS_AT) / SLOT;
    if (!ours) {
        RAW2(__NR_munmap, mapped, stat.size);
        return 0;
    }
    RAW3(__NR_madvise, mapped, stat.size, RAW_MADV_DONTDUMP);
    append(variable_copy, variable);
    world.observer = (int64_t)pid;
    slots_bytes = (size_t)stat.size - SLOTS_AT;
    header = found;
    return 1;
}

const char *log_variable(void)
{
    return variable_copy;
}

static void end_write(void)
{
    __atomic_fetch_sub(&writers, 1, __ATOMIC_SEQ_CST);
}

/* Whether nobody reads any more. Where the reader was killed, one process marks the log as ended in its place, and gives the memory of the
 * records back; not one in which something else may lie where the slots were. */
enum { READER_DIED = 0x40000000 /* FUTEX_OWNER_DIED */ };
static int is_over(void)
{
    if (__atomic_load_n(&header->ended, __ATOMIC_RELAXED))
        return 1;
    if (!(__atomic_load_n(&header->reader, __ATOMIC_RELAXED) & READER_DIED))
        return 0;
    if (world.sandboxed)
        return 1;
    __atomic_fetch_add(&writers, 1, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&left, __ATOMIC_SEQ_CST) && !__atomic_exchange_n(&header->ended, 1, __ATOMIC_RELAXED))
        RAW3(__NR_madvise, (char *)header + SLOTS_AT, slots_bytes, RAW_MADV_REMOVE);
    end_write();
    return 1;
}

int log_is_observed(void)
{
    return header && !is_over();
}

int log_is_read(void)
{
    if (!log_is_observed())
        return 0;
    if (!__atomic_load_n(&left, __ATOMIC_RELAXED) &&
        __atomic_load_n(&header->cursor, __ATOMIC_RELAXED) < header->slots)
        return 1;
    __atomic_fetch_add(&header->dropped, 1, __ATOMIC_RELAXED);
    return 0;
}

enum last log_last(void)
{
    if (!log_is_observed())
        return NOTHING;
    uint32_t last = __atomic_load_n(&header->last, __ATOMIC_RELAXED);
    int is_half_full = __atomic_load_n(&header->cursor, __ATOMIC_RELAXED) > header->slots / 2;
    if (last >= TELL)
        return is_half_full ? WAIT : TELL;
    return (enum last)last;
}

int log_sees_page_tables(void)
{
    return log_is_observed() && __atomic_load_n(&header->last, __ATOMIC_RELAXED) >= TELL;
}

int log_ends_with_first(void)
{
    return log_is_observed() && __atomic_load_n(&header->last, __ATOMIC_RELAXED) == TELL_AND_WAIT;
}

void log_missed(void)
{
    __atomic_fetch_add(&header->missed, 1, __ATOMIC_RELAXED);
}

/* All but the header, which every call looks at. A writer that does not come to its end, as one that the caller interrupted,
 * keeps the slots mapped; one that lost its processor to others comes to it within 50 ms. */
enum { YIELDS = 1000, PAUSES = 500 };
void log_leave(void)
{
    if (!header || world.sandboxed || __atomic_exchange_n(&left, 1, __ATOMIC_SEQ_CST))
        return;
    for (int tries = 0; __atomic_load_n(&writers, __ATOMIC_SEQ_CST); tries++) {
        static const uint64_t pause[2] = {0, 100000};
        if (tries == YIELDS + PAUSES)
            return;
        if (tries < YIELDS)
            RAW1(__NR_sched_yield, 0);
        else
            RAW2(__NR_nanosleep, pause, 0);
    }
    RAW2(__NR_munmap, (char *)header + SLOTS_AT, slots_bytes);
}

/* `count` slots in a row, until end_write; or NULL. */
static union slot *take(uint64_t count)
{
    __atomic_fetch_add(&writers, 1, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&left, __ATOMIC_SEQ_CST)) {
        uint64_t first = __atomic_fetch_add(&header->cursor, count, __ATOMIC_RELAXED);
        /* The program may have written anything there. */
        uint64_t most = __atomic_load_n(&header->slots, __ATOMIC_RELAXED);
        if (first + count <= most && first + count <= slots_bytes / SLOT && first + count >= first)
            return (union slot *)((char *)header + SLOTS_AT) + first;
    }
    __atomic_fetch_add(&header->dropped, 1, __ATOMIC_RELAXED);
    end_write();
    return NULL;
}

static void publish(union slot *slot, enum kind kind, uint64_t count)
{
    slot->first.pid = (uint32_t)(world.sandboxed ? world.sandboxed : RAW1(__NR_getpid, 0));
    slot->first.time = world_now();
    __atomic_store_n(&slot->tag, TAG_FIRST | (uint32_t)kind << 8 | (uint32_t)count << 16, __ATOMIC_RELEASE);
    end_write();
}

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x100000001b3;
    return hash ^ hash >> 32;
}

static uint64_t hash(uint64_t hash, const char *text, size_t len)
{
    for (; len >= 8; text += 8, len -= 8) {
        uint64_t word;
        __builtin_memcpy(&word, text, 8);
        hash = mix(hash, word);
    }
    while (len--)
        hash = mix(hash, (unsigned char)*text++);
    return hash;
}

struct writer {
    union slot *slot;
    size_t at, room;
};

static void write_text(struct writer *to, const char *text, size_t len)
{
    while (len) {
        if (to->at == to->room) {
            to->slot++;
            to->at = 0;
            to->room = MORE_TEXT;
            to->slot->tag = TAG_MORE;
        }
        char *line = to->room == MORE_TEXT ? to->slot->more.text : to->slot->first.text;
        size_t left = to->room - to->at, part = len < left ? len : left;
        __builtin_memcpy(line + to->at, text, part);
        to->at += part;
        text += part;
        len -= part;
    }
}

/* Logs `dir`/`path`, or `path` alone where `dir` is NULL. */
void log_path(enum kind kind, unsigned detail, const char *dir, const char *path)
{
    size_t dir_len = dir ? length(dir) : 0, path_len = length(path), len = dir_len + (dir != NULL) + path_len;
    uint64_t name = 0xcbf29ce484222325 + kind;
    if (dir)
        name = mix(hash(name, dir, dir_len), '/');
    name = hash(name, path, path_len);
    /* The last letters reach the upper bits alone. */
    uint64_t *place = &seen[(name ^ name >> 22) % (sizeof seen / sizeof *seen)];
    if (kind < EXECUTED && kind > STARTED && *place == name)
        return;
    *place = name;
    if (!len || len > 2 * AT_PATH_MAX)
        return;
    uint64_t count = 1 + (len > FIRST_TEXT ? (len - FIRST_TEXT + MORE_TEXT - 1) / MORE_TEXT : 0);
    union slot *slot = take(count);
    if (!slot)
        return;
    slot->first.len = (uint16_t)len;
    slot->first.detail = (uint16_t)detail;
    struct writer to = {slot, 0, FIRST_TEXT};
    if (dir) {
        write_text(&to, dir, dir_len);
        write_text(&to, "/", 1);
    }
    write_text(&to, path, path_len);
    publish(slot, kind, count);
}

static void log_numbers(enum kind kind, const uint64_t *numbers, int count)
{
    union slot *slot = take(1);
    if (!slot)
        return;
    for (int i = 0; i < count; i++)
        slot->first.numbers[i] = numbers[i];
    publish(slot, kind, 1);
}

void log_read(const struct raw_stat *stat, uint64_t offset, uint64_t bytes)
{
    uint64_t read[4] = {raw_device(stat->device_major, stat->device_minor), stat->inode, offset, bytes};
    log_numbers(READ, read, 4);
}

/* Where runs end, the rest of the record is zero, as nobody wrote there before. */
void log_touched(uint64_t device, uint64_t inode, const struct touched runs[], size_t count)
{
    size_t slots = 1 + (count > FIRST_RUNS ? (count - FIRST_RUNS + MORE_RUNS - 1) / MORE_RUNS : 0);
    union slot *slot = take(slots);
    if (!slot)
        return;
    slot->first.device = device;
    slot->first.inode = inode;
    for (size_t i = 0; i < count && i < FIRST_RUNS; i++)
        slot->first.runs[i] = runs[i];
    for (size_t i = FIRST_RUNS; i < count; i++) {
        size_t at = i - FIRST_RUNS;
        slot[1 + at / MORE_RUNS].more_runs.tag = TAG_MORE;
        slot[1 + at / MORE_RUNS].more_runs.runs[at % MORE_RUNS] = runs[i];
    }
    publish(slot, TOUCHED, slots);
}

void log_told(void)
{
    log_numbers(TOLD, NULL, 0);
}

void log_goes_on(void)
{
    if (!world.sandboxed && log_is_observed())
        log_numbers(GOES_ON, NULL, 0);
}
