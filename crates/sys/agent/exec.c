/* Execs and spawns: the program that follows is observed too, where target.c finds that it will take the agent. Otherwise the
 * environment is passed on as it is. Nothing is written but the stack: a child of vfork shares the rest. */
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
static const char *library;

/* ---- the environment to pass on ---- */

struct addition {
    char agent[192];
    char audit[1280]; /* the user's own auditing libraries, and the agent; more is left alone, stacks may be small */
    char even[24];
};

static size_t count_strings(char *const strings[])
{
    size_t count = 0;
    while (strings && strings[count])
        count++;
    return count;
}

/* Fills `to`, which has room for three more strings than `from`. Always two strings more (see audit.c), the last ones. */
static int extend(char **to, char *const from[], struct addition *added)
{
    const char *audit = "";
    for (; from && *from; from++) {
        if (starts(*from, "PREPAGE_AGENT="))
            return 0;
        if (starts(*from, "LD_AUDIT="))
            audit = *from + 9;
        else
            *to++ = *from;
    }
    if (length(audit) + length(library) + 16 > sizeof added->audit)
        return 0;
    char *end = append(append(added->audit, "LD_AUDIT="), audit);
    append(append(end, *audit ? ":" : ""), library);
    append(append(added->agent, "PREPAGE_AGENT="), log_variable());
    *to++ = added->audit;
    *to++ = added->agent;
    if (*audit) {
        append(added->even, "PREPAGE_AGENT_EVEN=");
        *to++ = added->even;
    }
    *to = NULL;
    return 1;
}

/* Logs the exec of `path`. Whether `environment` is to be extended; if so, by how much room that takes. `moves`: the child
 * may change its directory first. */
static int goes_along(const char *path, int fd, int moves, char *const environment[], size_t *room)
{
    if (world.sandboxed || !log_is_read() || !library || (path && !plausible(path)))
        return 0;
    enum carrying found = target_takes(path, fd, moves);
    *room = count_strings(environment) + 4;
    if (found == CARRIED && *room > 8192)
        found = TOO_LARGE;
    if (path) {
        const char *dir = *path == '/' ? NULL : world_directory(RAW_AT_FDCWD);
        log_path(EXECUTED, found, dir, path);
        if (dir)
            world_release(RAW_AT_FDCWD);
    }
    return found == CARRIED;
}

#define EXTENDED(path, fd, moves, environment)                                           \
    size_t room = 0;                                                                     \
    int along = goes_along(path, fd, moves, environment, &room);                         \
    char *extended[along ? room : 1];                                                    \
    struct addition added;                                                               \
    char *const *passed = along && extend(extended, environment, &added) ? extended : environment

/* ---- the search in PATH, as execvp makes it ---- */

/* The file that execvp will execute, in `found` unless `file` is it; logs the places where it is not. Where the child `moves`,
 * no further than to a relative place. */
static const char *search(const char *file, int moves, char found[AT_PATH_MAX])
{
    if (!plausible(file) || !*file)
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
        if (moves && *places != '/')
            return file;
        while (places[len] && places[len] != ':')
            len++;
        if (len + length(file) + 2 < AT_PATH_MAX) {
            char *to = found;
            for (size_t i = 0; i < len; i++)
                *to++ = places[i];
            if (len)
                *to++ = '/';
            append(to, file);
            struct raw_stat stat;
            if (!RAW3(__NR_faccessat, RAW_AT_FDCWD, found, 1 /* X_OK */) &&
                !raw_stat_of(RAW_AT_FDCWD, found, 0, &stat) && (stat.mode & RAW_S_IFMT) == RAW_S_IFREG)
                return found;
            log_path(LOOKED_UP, 0, NULL, found);
        }
        if (!places[len])
            return file;
        places += len + 1;
    }
}

/* ---- the functions; where what was added makes the arguments too long, they go without ---- */

enum { RAW_E2BIG = 7 };

static int agent_execve(const char *path, char *const argv[], char *const environment[])
{
    EXTENDED(path, -1, 0, environment);
    if (passed != environment)
        real_execve(path, argv, passed);
    return real_execve(path, argv, environment);
}

static int agent_execv(const char *path, char *const argv[])
{
    return agent_execve(path, argv, *program_environ);
}

static int agent_execvpe(const char *file, char *const argv[], char *const environment[])
{
    char place[AT_PATH_MAX];
    const char *path = log_is_read() && !world.sandboxed ? search(file, 0, place) : file;
    EXTENDED(path, -1, 0, environment);
    if (passed != environment)
        real_execvpe(file, argv, passed);
    return real_execvpe(file, argv, environment);
}

static int agent_execvp(const char *file, char *const argv[])
{
    return agent_execvpe(file, argv, *program_environ);
}

static int agent_fexecve(int fd, char *const argv[], char *const environment[])
{
    EXTENDED(NULL, fd, 0, environment);
    if (passed != environment)
        real_fexecve(fd, argv, passed);
    return real_fexecve(fd, argv, environment);
}

static int agent_posix_spawn(int *pid, const char *path, const void *actions, const void *attributes,
                             char *const argv[], char *const environment[])
{
    EXTENDED(path, -1, actions != NULL, environment);
    int error = real_spawn(pid, path, actions, attributes, argv, passed);
    return error == RAW_E2BIG ? real_spawn(pid, path, actions, attributes, argv, environment) : error;
}

static int agent_posix_spawnp(int *pid, const char *file, const void *actions, const void *attributes,
                              char *const argv[], char *const environment[])
{
    char place[AT_PATH_MAX];
    const char *path = log_is_read() && !world.sandboxed ? search(file, actions != NULL, place) : file;
    EXTENDED(path, -1, actions != NULL, environment);
    int error = real_spawnp(pid, file, actions, attributes, argv, passed);
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

enum { ENVIRONMENT_MAX = 1024 };

/* Neither on the stack, which a signal handler may leave by a jump, nor for two at once. */
static struct {
    int busy;
    char *const *before;
    char *strings[ENVIRONMENT_MAX];
    struct addition added;
} lent;

/* Extends the environment of the process itself, where no other thread can look at it meanwhile. */
static int lend(void)
{
    size_t room = 0;
    if (!log_is_read() || !world_has_one_thread() || lent.busy)
        return 0;
    lent.before = *program_environ;
    if (!goes_along("/bin/sh", -1, 0, lent.before, &room) || room > ENVIRONMENT_MAX ||
        !extend(lent.strings, lent.before, &lent.added))
        return 0;
    lent.busy = 1;
    *program_environ = lent.strings;
    return 1;
}

static void take_back(void)
{
    if (*program_environ == lent.strings)
        *program_environ = lent.before;
    lent.busy = 0;
}

static int agent_system(const char *command)
{
    int along = command && lend(), status = real_system(command);
    if (along)
        take_back();
    return status;
}

static void *agent_popen(const char *command, const char *mode)
{
    int along = lend();
    void *stream = real_popen(command, mode);
    if (along)
        take_back();
    return stream;
}

/* `path` is the agent's own, by which children load it. */
void exec_install(const struct link_map *program, const struct link_map *libc, const struct extent *table, const char *path)
{
    uintptr_t environment = object_variable(program, libc, "__environ");
    program_environ = (char *const **)environment;
    if (!environment || !target_prepare(program, path))
        return;
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
