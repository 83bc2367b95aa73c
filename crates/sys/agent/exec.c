/* Execs and spawns: the program that follows is observed too, where target.c finds that it will take the agent. Otherwise the
 * environment is passed on as it is. Crash handlers and small threads execute programs, too: of their stack no more than
 * some 2 KB are used. A child of vfork shares the rest of the memory. */
#include "agent.h"

#include <stdarg.h>

typedef int exec_function(const char *, char *const[], char *const[]);
typedef int spawn_function(int *, const char *, const void *, const void *, char *const[], char *const[]);

static exec_function *real_execve, *real_execvpe;
static spawn_function *real_spawn, *real_spawnp;
static int (*real_fexecve)(int, char *const[], char *const[]);
static int (*real_system)(const char *);
static void *(*real_popen)(const char *, const char *);
static char *const **program_environ;
static const char *library; /* NULL: nothing is to go along */

/* ---- the environment to pass on ---- */

static char agent_variable[160], audit_variable[16 + AT_PATH_MAX];
static char even_variable[] = "PREPAGE_AGENT_EVEN=";

enum { SMALL = 96, LARGE = 1024, HUGE = 8192 };

/* Room for more than SMALL strings, or for an LD_AUDIT of the user's own and the agent in one. */
struct room {
    /* Of `exec_room` only: the thread that uses it, NULL where nobody does, and its process. */
    void *thread;
    long process;
    size_t mapped;
    char audit[1280];
    char *strings[];
};

static union {
    struct room room;
    char bytes[sizeof(struct room) + LARGE * sizeof(char *)];
} exec_room;

/* A child of vfork that executes a program never gives the room back. It is the same thread as its parent's, which does not
 * run until then: where that thread comes again, and not in a signal handler of that child or a child of the handler's, nobody
 * uses the room any more. */
static struct room *take_exec_room(size_t strings)
{
    void *nobody = NULL, *self = raw_thread();
    struct room *room = &exec_room.room;
    if (strings > LARGE)
        return NULL;
    if (!__atomic_compare_exchange_n(&room->thread, &nobody, self, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED) &&
        (nobody != self || room->process == RAW1(__NR_getpid, 0) || room->process == RAW1(__NR_getppid, 0)))
        return NULL;
    room->process = RAW1(__NR_getpid, 0);
    return room;
}

static struct room *map_room(size_t strings)
{
    size_t bytes = sizeof(struct room) + strings * sizeof(char *);
    long mapped = strings > HUGE ? -1
                                 : RAW6(__NR_mmap, 0, bytes, RAW_PROT_READ | RAW_PROT_WRITE,
                                        RAW_MAP_PRIVATE | RAW_MAP_ANONYMOUS, -1, 0);
    if (mapped < 0 && mapped > -4096)
        return NULL;
    struct room *room = (struct room *)mapped;
    room->mapped = bytes;
    return room;
}

static void give_back(struct room *room)
{
    if (room && room->mapped)
        RAW2(__NR_munmap, room, room->mapped);
    else if (room)
        __atomic_store_n(&room->thread, NULL, __ATOMIC_RELEASE);
}

/* The user's own LD_AUDIT, which may be empty; NULL where there is none. */
static const char *own_audit(char *const environment[])
{
    const char *audit = NULL;
    for (; environment && *environment; environment++)
        if (starts(*environment, "LD_AUDIT="))
            audit = *environment + 9;
    return audit;
}

/* Places that `environment` takes with what is added; more than SMALL where the stack has no room for it. */
static size_t count_strings(char *const environment[])
{
    size_t count = 4;
    while (environment && environment[count - 4])
        count++;
    return count <= SMALL && own_audit(environment) ? SMALL + 1 : count;
}

/* Whether the agent may go along with `environment`: with LD_DEBUG ld.so would tell of it, and there may be another observer's already. */
static int is_open(char *const environment[])
{
    for (; environment && *environment; environment++)
        if ((starts(*environment, "PREPAGE_AGENT=") && *environment != agent_variable) ||
            (starts(*environment, "LD_DEBUG=") && (*environment)[9]))
            return 0;
    return 1;
}

/* Fills `to`, which has `places`, for three more strings than `from` unless another thread has changed that meanwhile. Always two strings more
 * (see audit.c), the last ones. `room` is needed where the user has an LD_AUDIT. */
static int extend(char **to, size_t places, char *const from[], struct room *room)
{
    char **end = to + places - 4;
    const char *audit = own_audit(from);
    if (audit && (!room || length(audit) + length(audit_variable) + 2 > sizeof room->audit))
        return 0;
    for (; from && *from; from++) {
        if (to == end || starts(*from, "PREPAGE_AGENT="))
            return 0;
        if (!starts(*from, "LD_AUDIT="))
            *to++ = *from;
    }
    *to++ = audit_variable;
    if (audit) {
        append(append(append(append(room->audit, "LD_AUDIT="), audit), ":"), library);
        to[-1] = room->audit;
    }
    *to++ = agent_variable;
    if (audit)
        *to++ = even_variable;
    *to = NULL;
    return 1;
}

enum process { THIS, CHILD, MOVING_CHILD };

/* Logs the exec of `path`, or of `fd`, by this process or a child that it will have. Returns how many places the extended
 * `environment` takes, 0 where it is not to be extended; with `room` for them, if they are more than SMALL or `needs_room`. `has_told`: all that
 * this process has touched. */
static size_t goes_along(const char *path, int fd, enum process by, char *const environment[], struct room **room,
                         int needs_room, int *has_told)
{
    *room = NULL;
    *has_told = 0;
    if (world.sandboxed || !log_is_read() || !library || (path ? !plausible(path) : fd < 0))
        return 0;
    enum carrying found = target_takes(path, fd, by == MOVING_CHILD);
    size_t strings = count_strings(environment);
    if (found == CARRIED && !is_open(environment))
        found = ENVIRONMENT;
    if (found == CARRIED && (strings > SMALL || needs_room)) {
        *room = by == THIS ? take_exec_room(strings) : map_room(strings);
        found = *room ? CARRIED : TOO_LARGE;
    }
    if (path) {
        const char *dir = *path == '/' ? NULL : world_directory(RAW_AT_FDCWD);
        log_path(EXECUTED, found, dir, path);
        if (dir)
            world_release(RAW_AT_FDCWD);
    }
    /* What a fork has is its parent's, mostly. */
    if (by == THIS && found != NOT_FOUND && RAW1(__NR_getpid, 0) == world.pid)
        *has_told = arm_last_look(0);
    return found == CARRIED ? strings : 0;
}

/* `passed` is `environment`, or what it was extended to in `small` or `room`. */
#define EXTENDED(path, fd, by, environment)                                                  \
    struct room *room;                                                                       \
    int has_told;                                                                            \
    size_t strings = goes_along(path, fd, by, environment, &room, 0, &has_told);             \
    char *small[strings && !room ? strings : 1], **extended = room ? room->strings : small;  \
    char *const *passed = strings && extend(extended, strings, environment, room) ? extended : environment

/* ---- the search in PATH, as execvp makes it ---- */

enum { PLACE_MAX = 512 };

/* The file that execvp will execute, in `found` unless `file` is it; logs the places where it is not. Where the child may move, no
 * further than to a relative place. NULL for places with longer names. */
static const char *search(const char *file, enum process by, char found[PLACE_MAX])
{
    if (!log_is_read() || world.sandboxed || !plausible(file) || !*file)
        return file;
    for (const char *at = file; *at; at++)
        if (*at == '/')
            return file;
    const char *places = "/bin:/usr/bin";
    for (char *const *variable = *program_environ; variable && *variable; variable++)
        if (starts(*variable, "PATH=")) {
            places = *variable + 5;
            break;
        }
    for (;;) {
        size_t len = 0;
        if (by == MOVING_CHILD && *places != '/')
            return file;
        while (places[len] && places[len] != ':')
            len++;
        if (len + length(file) + 2 > PLACE_MAX) {
            log_path(EXECUTED, TOO_LARGE, NULL, file);
            return NULL;
        }
        char *to = found;
        for (size_t i = 0; i < len; i++)
            *to++ = places[i];
        if (len)
            *to++ = '/';
        append(to, file);
        struct raw_stat stat;
        if (!RAW3(__NR_faccessat, RAW_AT_FDCWD, found, 1 /* X_OK */) &&
            !raw_stat_of(RAW_AT_FDCWD, found, &stat) && (stat.mode & RAW_S_IFMT) == RAW_S_IFREG)
            return found;
        log_path(LOOKED_UP, 0, NULL, found);
        if (!places[len])
            return file;
        places += len + 1;
    }
}

/* ---- the functions; where what was added makes the arguments too long, they go without ---- */

enum { RAW_E2BIG = 7 };

/* An exec has failed. Passes its result on. */
static int failed(int result, int has_told)
{
    if (has_told)
        log_goes_on();
    return result;
}

static int agent_execve(const char *path, char *const argv[], char *const environment[])
{
    EXTENDED(path, -1, THIS, environment);
    if (passed != environment)
        real_execve(path, argv, passed);
    give_back(room);
    return failed(real_execve(path, argv, environment), has_told);
}

static int agent_execv(const char *path, char *const argv[])
{
    return agent_execve(path, argv, *program_environ);
}

static int agent_execvpe(const char *file, char *const argv[], char *const environment[])
{
    char place[PLACE_MAX];
    EXTENDED(search(file, THIS, place), -1, THIS, environment);
    if (passed != environment)
        real_execvpe(file, argv, passed);
    give_back(room);
    return failed(real_execvpe(file, argv, environment), has_told);
}

static int agent_execvp(const char *file, char *const argv[])
{
    return agent_execvpe(file, argv, *program_environ);
}

static int agent_fexecve(int fd, char *const argv[], char *const environment[])
{
    EXTENDED(NULL, fd, THIS, environment);
    if (passed != environment)
        real_fexecve(fd, argv, passed);
    give_back(room);
    return failed(real_fexecve(fd, argv, environment), has_told);
}

/* File actions may change the directory. */
static enum process child_with(const void *actions)
{
    return actions ? MOVING_CHILD : CHILD;
}

static int agent_posix_spawn(int *pid, const char *path, const void *actions, const void *attributes,
                             char *const argv[], char *const environment[])
{
    EXTENDED(path, -1, child_with(actions), environment);
    int error = real_spawn(pid, path, actions, attributes, argv, passed);
    give_back(room);
    return error == RAW_E2BIG ? real_spawn(pid, path, actions, attributes, argv, environment) : error;
}

static int agent_posix_spawnp(int *pid, const char *file, const void *actions, const void *attributes,
                              char *const argv[], char *const environment[])
{
    char place[PLACE_MAX];
    EXTENDED(search(file, child_with(actions), place), -1, child_with(actions), environment);
    int error = real_spawnp(pid, file, actions, attributes, argv, passed);
    give_back(room);
    return error == RAW_E2BIG ? real_spawnp(pid, file, actions, attributes, argv, environment) : error;
}

/* The arguments of execl and its like, as an array `argv`; leaves `rest` behind the null pointer. */
#define ARGUMENTS(first)                                   \
    va_list rest;                                          \
    size_t count = 1;                                      \
    va_start(rest, first);                                 \
    for (const char *at = first; at; count++)              \
        at = va_arg(rest, const char *);                   \
    va_end(rest);                                          \
    char *argv[count];                                     \
    va_start(rest, first);                                 \
    argv[0] = (char *)first;                               \
    for (size_t i = 1; i < count; i++)                     \
        argv[i] = va_arg(rest, char *)

static int agent_execl(const char *path, const char *first, ...)
{
    ARGUMENTS(first);
    va_end(rest);
    return agent_execve(path, argv, *program_environ);
}

static int agent_execlp(const char *file, const char *first, ...)
{
    ARGUMENTS(first);
    va_end(rest);
    return agent_execvpe(file, argv, *program_environ);
}

static int agent_execle(const char *path, const char *first, ...)
{
    ARGUMENTS(first);
    char *const *environment = va_arg(rest, char *const *);
    va_end(rest);
    return agent_execve(path, argv, environment);
}

/* ---- system and popen, which spawn the shell inside libc with the program's environment ---- */

/* Neither on the stack, which a signal handler may leave by a jump, nor for two at once. */
static struct {
    char *const *before;
    struct room *room; /* NULL: nothing is lent */
} lent;

/* Extends the environment of the process itself, where no other thread can look at it meanwhile. NULL where it does not. */
static struct room *lend(void)
{
    struct room *room = NULL;
    /* Whoever comes in a signal handler meanwhile finds what is lent. */
    if (!log_is_read() || lent.room)
        return NULL;
    if (!world_has_one_thread()) {
        if (!world.sandboxed && library)
            log_path(EXECUTED, SEVERAL_THREADS, NULL, "/bin/sh");
        return NULL;
    }
    lent.before = *program_environ;
    int has_told;
    size_t strings = goes_along("/bin/sh", -1, CHILD, lent.before, &room, 1, &has_told);
    if (!strings || !extend(room->strings, strings, lent.before, room)) {
        give_back(room);
        return NULL;
    }
    lent.room = room;
    *program_environ = room->strings;
    return room;
}

/* Whoever jumps may leave for good what runs inside libc. Where that is not left, its shell may still be started with what was
 * lent: the memory stays. */
void exec_take_back(void)
{
    if (lent.room && *program_environ == lent.room->strings)
        *program_environ = lent.before;
    lent.room = NULL;
}

static void take_back(struct room *room)
{
    if (room)
        exec_take_back();
    give_back(room);
}

static int agent_system(const char *command)
{
    struct room *room = command ? lend() : NULL;
    int status = real_system(command);
    take_back(room);
    return status;
}

static void *agent_popen(const char *command, const char *mode)
{
    struct room *room = lend();
    void *stream = real_popen(command, mode);
    take_back(room);
    return stream;
}

/* `path` is the agent's own, by which children load it. */
void exec_install(const struct link_map *program, const struct link_map *libc, const struct extent *table, const char *path)
{
    uintptr_t environment = object_variable(program, libc, "__environ");
    program_environ = (char *const **)environment;
    if (!environment || !target_prepare(program, path))
        return;
    append(append(agent_variable, "PREPAGE_AGENT="), log_variable());
    append(append(audit_variable, "LD_AUDIT="), path);
    library = path;
    const struct {
        char name[16];
        uintptr_t stand_in, *real;
    } functions[] = {
        {"execve", (uintptr_t)agent_execve, (uintptr_t *)&real_execve},
        {"execvpe", (uintptr_t)agent_execvpe, (uintptr_t *)&real_execvpe},
        {"fexecve", (uintptr_t)agent_fexecve, (uintptr_t *)&real_fexecve},
        {"posix_spawn", (uintptr_t)agent_posix_spawn, (uintptr_t *)&real_spawn},
        {"posix_spawnp", (uintptr_t)agent_posix_spawnp, (uintptr_t *)&real_spawnp},
        {"system", (uintptr_t)agent_system, (uintptr_t *)&real_system},
        {"popen", (uintptr_t)agent_popen, (uintptr_t *)&real_popen},
        /* What these do comes down to one of those. */
        {"execv", (uintptr_t)agent_execv, NULL},
        {"execle", (uintptr_t)agent_execle, NULL},
        {"execl", (uintptr_t)agent_execl, NULL},
        {"execvp", (uintptr_t)agent_execvp, NULL},
        {"execlp", (uintptr_t)agent_execlp, NULL},
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        if (!functions[i].real && (!real_execve || !real_execvpe))
            break;
        uintptr_t real = object_redirect(libc, table, functions[i].name, functions[i].stand_in);
        if (functions[i].real)
            *functions[i].real = real;
    }
}
