/* Exact first touches: a file mapping registered with userfaultfd in mode WP under WP_ASYNC protects nothing and sends no
 * message, but the kernel switches fault-around off for it, so that each page's first touch is a fault of its own.
 *
 * The registration lives as long as the userfaultfd. The program must not see a descriptor that it did not open, so
 * the descriptor goes to the observer over a socket before the program's own code runs. The observer closes it when
 * it has seen enough, and can register later mappings of the process with it, from outside. One is made for
 * the start, one for each dlopen, and one for each file that the program maps: it uses that before anybody outside knows.
 *
 * ld.so reads large tables of relocations from their beginning to their end: a fault for each page of them tells nothing, and a large program has
 * thousands of such pages. So these are registered only when ld.so has read them (arm_later). The kernel maps pages around a fault only within the
 * mapping that the fault is in: no page beside the table is mapped along, and no page of the table by a fault beside it. So what is there of a table
 * was read by ld.so, or is read in the next moment. */
#include "agent.h"

#include <linux/ioctl.h>
#include <linux/types.h>
#include <linux/userfaultfd.h>

enum { FEATURE_WP_ASYNC = 1 << 15, USER_MODE_ONLY = 1, AF_LOCAL = 1, STREAM = 1 };

static int descriptor = -1, may_arm;
/* Who opened `descriptor`. In a child that another thread has made meanwhile it stands for the memory of its parent, and its number may be a file
 * of the child's by now. */
static long opener;
static char receiver[64];
/* What is to be registered when the program's libraries are relocated. */
static struct extent later[64];
static size_t laters;
/* Tells which pages are mapped, from the first library on that is registered with `descriptor`: to open it takes longer than to ask. */
static long pagemap = -1;
/* When `descriptor` was opened. */
static uint64_t begun;

/* A sandbox may kill who calls userfaultfd: it is called only where the observer, under the same filters, called it and lived. */
void arm_allow(const char *name, int arms)
{
    append(receiver, name);
    may_arm = arms;
}

/* A new userfaultfd, or less than 0. */
static int open_descriptor(void)
{
    struct uffdio_api api = {.api = UFFD_API, .features = FEATURE_WP_ASYNC};
    int opened = (int)RAW1(__NR_userfaultfd, RAW_O_CLOEXEC | RAW_O_NONBLOCK | USER_MODE_ONLY);
    if (opened >= 0 && RAW3(__NR_ioctl, opened, UFFDIO_API, &api)) {
        RAW1(__NR_close, opened);
        return -1;
    }
    return opened;
}

/* Whether there is a descriptor, of this process. */
static int is_own(void)
{
    return descriptor >= 0 && opener == RAW1(__NR_getpid, 0);
}

static long enlist(int fd, const struct extent *extent)
{
    struct uffdio_register registered = {
        .range = {.start = extent->start, .len = page_up(extent->end) - extent->start},
        .mode = UFFDIO_REGISTER_MODE_WP,
    };
    return RAW3(__NR_ioctl, fd, UFFDIO_REGISTER, &registered);
}

enum arming arm_begin(void)
{
    if (world.sandboxed || !may_arm)
        return NOT_ASKED;
    if (!is_own()) {
        descriptor = open_descriptor();
        pagemap = -1;
        opener = RAW1(__NR_getpid, 0);
        begun = world_now();
    }
    return descriptor < 0 ? REFUSED_BY_KERNEL : ARMED;
}

int arm(const struct extent *extent, const struct link_map *loaded)
{
    long error = is_own() ? enlist(descriptor, extent) : -1;
    int is_all = !error;
    if (error == -RAW_EBUSY && loaded) {
        /* The observer came first to some pieces: these are armed as well. */
        struct extent piece;
        for (uintptr_t at = 0; object_piece(loaded, &at, &piece);)
            enlist(descriptor, &piece);
        error = 0;
    }
    /* ld.so has read some pages, and each fault has mapped its neighbours along. */
    if (!error && loaded) {
        if (pagemap < 0)
            pagemap = touched_open();
        if (pagemap >= 0 && touched_forget(pagemap, extent))
            object_touch(loaded);
    }
    return is_all;
}

/* Not where the observer follows faults, for it would see none of the pages that a fault maps along. Nor late: a second after the exec the observer
 * waits for this process's word no longer, and registers what it finds by itself, as pages that may have been mapped along. */
void arm_later(const struct extent *pages)
{
    enum { IN_TIME_NS = 500 * 1000 * 1000 };
    struct uffdio_range range = {.start = pages->start, .len = pages->end - pages->start};
    if (laters < sizeof later / sizeof *later && is_own() && log_sees_page_tables() && world_now() - begun < IN_TIME_NS &&
        !RAW3(__NR_ioctl, descriptor, UFFDIO_UNREGISTER, &range))
        later[laters++] = *pages;
}

/* Sends the time, and the descriptor `fd` unless that is -1, to the observer: what was mapped by now is registered, what is
 * mapped later is the observer's to register. Returns the connection, or less than 0. */
static long tell_observer(int fd)
{
    uint64_t now = world_now();
    struct {
        uint16_t family;
        char name[108];
    } address = {AF_LOCAL, {0}};
    struct {
        size_t len;
        int level, type, fd, pad;
    } rights = {.len = 20, .level = 1 /* SOL_SOCKET */, .type = 1 /* SCM_RIGHTS */, .fd = fd};
    struct {
        void *base;
        size_t len;
    } bytes = {&now, sizeof now};
    struct {
        void *name;
        uint32_t name_len, pad;
        void *bytes;
        size_t count;
        void *control;
        size_t control_len;
        int flags;
    } message = {.bytes = &bytes, .count = 1};
    if (fd >= 0) {
        message.control = &rights;
        message.control_len = sizeof rights;
    }
    /* An abstract name: behind a zero, no file. Only who waits for the observer wakes it. */
    char *end = append(address.name + 1, receiver);
    size_t len = (size_t)((fd < 0 ? append(end, "-end") : end) - (char *)&address);
    long to = RAW3(__NR_socket, AF_LOCAL, STREAM | RAW_O_CLOEXEC | RAW_O_NONBLOCK, 0);
    if (to < 0)
        return to;
    if (RAW3(__NR_connect, to, &address, len) ||
        RAW3(__NR_sendmsg, to, &message, 0x4000 /* MSG_NOSIGNAL */) != sizeof now) {
        RAW1(__NR_close, to);
        return -1;
    }
    return to;
}

/* Hands a descriptor to the observer. If nobody takes it, it is closed and nothing is exact. */
static void hand_over(int fd)
{
    long told = tell_observer(fd);
    if (told >= 0)
        RAW1(__NR_close, told);
    RAW1(__NR_close, fd);
}

void arm_end(void)
{
    if (is_own()) {
        while (laters)
            enlist(descriptor, &later[--laters]);
        hand_over(descriptor);
        if (pagemap >= 0)
            RAW1(__NR_close, pagemap);
    }
    descriptor = -1;
    pagemap = -1;
}

int arm_is_wanted(void)
{
    return may_arm && !world.sandboxed && log_is_observed();
}

/* With a descriptor of its own: others may be loading libraries. */
void arm_one(const struct extent *extent)
{
    /* It may have begun while the file was mapped. */
    int fd = world.sandboxed ? -1 : open_descriptor();
    if (fd < 0)
        return;
    if (enlist(fd, extent))
        RAW1(__NR_close, fd);
    else
        hand_over(fd);
}

/* Until the observer has looked once more and hangs up, 20 ms at most; in the first process of a container, with which the observer ends, until it
 * has also written what was seen. */
static void wait_for_look(int is_first)
{
    struct {
        int fd;
        short events, revents;
    } hung_up = {.events = 0};
    const long patience[2] = {0, (is_first ? 200 : 20) * 1000 * 1000};
    long told = tell_observer(-1);
    if (told < 0)
        return;
    hung_up.fd = (int)told;
    RAW6(__NR_ppoll, &hung_up, 1, patience, 0, 0, 0);
    RAW1(__NR_close, told);
}

/* Whether no other thread runs. For a moment the kernel still counts one that was joined. */
static int is_alone(void)
{
    for (int times = 0; times < 3; times++) {
        if (times)
            RAW1(__NR_sched_yield, 0);
        if (world_onlookers().threads == 1)
            return 1;
    }
    return 0;
}

/* An observer without perf sees page tables, which end with the process, or when it executes another program: it says so in the log, and
 * is told then what it could see. Where the kernel does not tell that, it is waited for; by the first process of its container in any case.
 *
 * Behind its destructors the program's code is not to run for longer than without the agent. Other threads would: nobody waits for the observer
 * then. A signal that comes meanwhile finds nobody, as if the process had ended; before an exec it waits, for its handler might not come back, and
 * descriptors would be left behind. 32 and 33 are libc's own. */
int arm_last_look(int at_exit)
{
    static const uint64_t signals = ~((uint64_t)3 << 31);
    const long now[2] = {0, 0};
    uint64_t before;
    enum last last = log_last();
    if (world.sandboxed || !receiver[0] || last == NOTHING)
        return 0;
    int blocks = !RAW4(__NR_rt_sigprocmask, RAW_SIG_BLOCK, &signals, &before, sizeof signals);
    int is_first = log_ends_with_first() && RAW1(__NR_getpid, 0) == 1;
    int is_told = last == TELL && touched_tell(0, UINTPTR_MAX);
    if (is_told)
        log_told();
    if ((!is_told || is_first) && (!at_exit || is_alone()))
        wait_for_look(is_first);
    if (blocks) {
        while (at_exit && RAW4(__NR_rt_sigtimedwait, &signals, 0, now, sizeof signals) > 0) {
        }
        RAW4(__NR_rt_sigprocmask, RAW_SIG_SETMASK, &before, 0, sizeof before);
    }
    return is_told;
}
