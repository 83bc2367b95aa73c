"""Where the time of execve(2) goes, exec by exec, from the kernel's trace of its scheduler: on a processor, and off it. What a process has cost an
exec by running in its place is seen so without a comparison with other execs, which other things held up. As root; the trace is an instance of its
own of tracefs, and gone afterwards. Microseconds."""
import contextlib, os, re, subprocess, tempfile
from collections import defaultdict, namedtuple

TRACEFS = "/sys/kernel/tracing"  # often not mounted in containers and small machines
EVENTS = ("syscalls/sys_enter_execve", "sched/sched_process_exec", "sched/sched_switch")
BUFFER_KIB = 16 << 10  # of each processor
LINE = re.compile(r"^.*-(\d+)\s+\[(\d+)\] \S+ +(\d+\.\d+): (sys_execve\(|sched_process_exec:|sched_switch:)(.*)$")
SWITCH = re.compile(r"prev_pid=(\d+) .*prev_state=(\S+) ==> .*next_pid=(\d+) ")

# `on` a processor; `displaced`: ready to run, or asleep, while the named process ran on the processor on which the exec went on; `asleep`: not ready.
Exec = namedtuple("Exec", "on displaced asleep")


def tasks(pid):
    return {int(task) for task in os.listdir(f"/proc/{pid}/task")} if pid else set()


@contextlib.contextmanager
def tracefs():
    """Where the kernel's trace is; mounted for as long as it is used where it is nowhere."""
    if os.path.isdir(f"{TRACEFS}/instances"):
        yield TRACEFS
        return
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(["mount", "-t", "tracefs", "tracefs", directory], check=True)
        try:
            yield directory
        finally:
            subprocess.run(["umount", directory], check=True)


@contextlib.contextmanager
def execs(pid=None):
    """The execs of all processes that begin and succeed meanwhile, in a list that is filled at the end; `displaced` is by process `pid`."""
    with tracefs() as mounted:
        found = []
        with instance(f"{mounted}/instances/prepage-{os.getpid()}", found, pid):
            yield found


@contextlib.contextmanager
def instance(directory, found, pid):
    by = tasks(pid)
    os.mkdir(directory)

    def write(name, text):
        with open(f"{directory}/{name}", "w") as file:
            file.write(text)

    try:
        write("trace_clock", "mono")
        write("buffer_size_kb", str(BUFFER_KIB))
        for event in EVENTS:
            write(f"events/{event}/enable", "1")
        yield
        write("tracing_on", "0")
        for processor in os.listdir(f"{directory}/per_cpu"):
            with open(f"{directory}/per_cpu/{processor}/stats") as file:
                if "overrun: 0\n" not in file.read():
                    raise RuntimeError("the trace has lost events: fewer execs at a time")
        with open(f"{directory}/trace", errors="replace") as file:
            found += parse(file, by | tasks(pid))
    finally:
        for event in EVENTS:
            write(f"events/{event}/enable", "0")
        os.rmdir(directory)


def parse(lines, by):
    under_way, ran, since = {}, defaultdict(list), {}
    for line in lines:
        if not (event := LINE.match(line)):
            continue
        pid, processor, now, kind = int(event[1]), event[2], float(event[3]) * 1e6, event[4]
        if kind == "sys_execve(":
            # Began; off a processor in all and displaced; asleep; since when it is off, and whether asleep.
            under_way[pid] = [now, 0.0, 0.0, 0.0, None, False]
        elif kind == "sched_process_exec:":
            if exec := under_way.pop(pid, None):
                yield Exec(now - exec[0] - exec[1], exec[2], exec[3])
        elif switch := SWITCH.search(event[5]):
            before, state, after = int(switch[1]), switch[2], int(switch[3])
            if before in by and processor in since:
                ran[processor].append((since.pop(processor), now))
            if exec := under_way.get(before):
                exec[4], exec[5] = now, not state.startswith("R")
            if (exec := under_way.get(after)) and exec[4] is not None:
                exec[1] += now - exec[4]
                exec[2] += sum(max(0.0, end - max(begin, exec[4])) for begin, end in ran[processor])
                exec[3] += now - exec[4] if exec[5] else 0.0
                exec[4] = None
            if after in by:
                since[processor] = now
            if not under_way:
                ran.clear()
