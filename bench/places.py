"""Where and as whom `prepage run` learns programs by itself (bench/learning, bench/known):

root, user  who runs the programs
no-perf     an ordinary user whom the kernel refuses perf_event_open, as Debian and Ubuntu do (a seccomp filter imitates that)
overlay     root, with / seen through an overlayfs, as containers have it; the yardstick's starts stay outside, and its saving is
            that from plain starts outside
sandbox     an ordinary user whom perf_event_open, userfaultfd and ptrace are refused
far         root, with /usr on a volume that takes 1 ms for each read, of however many at once (bench/volume)
counted     the same with 0.5 ms a read, 3000 reads and 125 MB a second
"""
import contextlib, ctypes, math, os, re, shutil, subprocess, sys, tempfile, time

from machine import drop_caches, exit_on_signals, refuse_beside_a_service, refuse_without_cold_caches
from programs import commands, installed, set_up

HERE = os.path.dirname(os.path.abspath(__file__))
PREPAGE = os.path.abspath(os.environ.get("PREPAGE", "build/prepage"))
# An ordinary user: nobody has this number on Debian.
USER = 54321
PR_SET_CHILD_SUBREAPER = 36
# How long the way out waits for what observes: a second signal does not end it.
AWAITED_S = 10
AS_USER = ["setpriv", "--reuid", str(USER), "--regid", str(USER), "--clear-groups"]
PLACES = {
    "root": [],
    "user": AS_USER,
    "no-perf": [*AS_USER, "DENY", "perf_event_open", "--"],
    "sandbox": [*AS_USER, "DENY", "perf_event_open", "userfaultfd", "ptrace", "--"],
    "overlay": [],
    "far": [],
    "counted": [],
}
# Those on a slow volume, whose pace the variable PACE of bench/volume sets: microseconds a read, reads a second, MB a second.
PACES = {"far": "1000 0 0", "counted": "500 3000 125"}
USERS = ["user", "no-perf", "sandbox"]
QUIET = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def begin():
    """To be called first: as root, what a start leaves behind becomes a child of this process, and what is set is restored on any way out."""
    if os.geteuid() != 0:
        sys.exit(f"{sys.argv[0]}: needs root: caches are dropped and the read-ahead is set (and restored)")
    refuse_without_cold_caches()
    refuse_beside_a_service()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    exit_on_signals()


def await_all(seconds=math.inf):
    """What observes a start and writes what it saw is nobody's child any more, and so became ours. Waits for so many seconds at most."""
    until = time.monotonic() + seconds
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < until:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.02)


def start(command, env, cold=True):
    """Milliseconds of one start, and its exit code. Whoever it left behind has ended when this returns."""
    if cold:
        drop_caches()
    began = time.monotonic()
    child = subprocess.Popen(command, env=env, cwd="/", **QUIET)
    try:
        child.wait()
        took = (time.monotonic() - began) * 1e3
        await_all()
    except BaseException:
        child.kill()
        # The observing process would write to a store that is removed next.
        await_all(AWAITED_S)
        raise
    return took, child.returncode


@contextlib.contextmanager
def work_directory(name):
    """One that holds what the programs read, below the file system of the programs, where stores of users lie; owned by who runs them
    in the place `name`."""
    work = tempfile.mkdtemp(dir="/var/tmp")
    try:
        os.chmod(work, 0o755)
        subprocess.run(["cc", "-O2", "-o", f"{work}/deny", f"{HERE}/deny.c"], check=True)
        set_up(work)
        if name in USERS:
            give_away(work)
        yield work
    finally:
        remove(work)


def remove(work):
    """Removes the directory, unless something is still mounted below it: that would be emptied, and it may be the machine's /dev."""
    if left := unmount_below(work):
        print(f"{sys.argv[0]}: {work} is left as it is: still mounted: {' '.join(left)}", file=sys.stderr)
    else:
        shutil.rmtree(work, ignore_errors=True)


def unmount_below(directory):
    """Unmounts what is mounted below `directory`, and returns the mount points that are left."""
    points = mounted_below(directory)
    for top in [point for point in points if not any(point.startswith(f"{other}/") for other in points)]:
        # A mount that is bound here and still shared would take what is mounted on its original along.
        if subprocess.run(["mount", "--make-rslave", top], check=False).returncode == 0:
            subprocess.run(["umount", "-l", top], check=False)
    return mounted_below(directory)


def mounted_below(directory):
    with open("/proc/self/mountinfo") as mounts:
        return mount_points(mounts, os.path.realpath(directory))


def mount_points(mounts, directory):
    """Mount points below `directory`, each once, of lines of mountinfo (proc_pid_mountinfo(5))."""
    points = (re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), line.split()[4]) for line in mounts)
    return list(dict.fromkeys(point for point in points if point.startswith(f"{directory}/")))


def give_away(directory):
    for directory, _, files in os.walk(directory):
        for path in [directory, *(os.path.join(directory, file) for file in files)]:
            os.chown(path, USER, USER, follow_symlinks=False)


class Place:
    """Where and as whom programs are started. To be closed."""

    def __init__(self, name, work):
        self.name, self.work = name, work
        self.prefix = [os.path.join(work, "deny") if word == "DENY" else word for word in PLACES[name]]
        self.root = os.path.join(work, "overlay")
        if name == "overlay":
            try:
                self.mount()
            except BaseException:
                self.close()  # nobody else can: there is no place yet
                raise

    def mount(self):
        # The upper layer may not lie within the lower one: it is a file system of its own.
        layers = os.path.join(self.work, "layers")
        os.makedirs(layers)
        os.makedirs(self.root)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", layers], check=True)
        os.makedirs(f"{layers}/upper")
        os.makedirs(f"{layers}/work")
        options = f"lowerdir=/,upperdir={layers}/upper,workdir={layers}/work"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, self.root], check=True)
        for name in ("proc", "dev", "sys"):
            subprocess.run(["mount", "--rbind", f"/{name}", f"{self.root}/{name}"], check=True)
            subprocess.run(["mount", "--make-rslave", f"{self.root}/{name}"], check=True)
        self.prefix = ["chroot", self.root]

    def close(self):
        if self.name == "overlay":
            unmount_below(self.work)

    def plain(self, command):
        return [*self.prefix, *command]

    def run(self, command, *options):
        return [*self.prefix, PREPAGE, "run", *options, "--", *command]

    def yardstick(self, command):
        return self.outside([PREPAGE, "run", "--no-learn", "--no-hold-out", "--", *command])

    def outside(self, command):
        """Where the yardstick's profile is used. chroot(8) itself is cold as well, and takes part of the time inside."""
        return ["chroot", "/", *command] if self.name == "overlay" else [*self.prefix, *command]

    def env(self, store):
        return {**os.environ, "PREPAGE_STORE": store}

    def seen_from_here(self, store):
        """The directory of a store of programs that are started here."""
        return self.root + store if self.name == "overlay" else store

    def new_store(self, name):
        store = os.path.join(self.work, name)
        shutil.rmtree(store, ignore_errors=True)
        if self.name == "overlay":
            shutil.rmtree(self.seen_from_here(store), ignore_errors=True)
            return store
        os.makedirs(store, mode=0o700)
        if self.name in USERS:
            os.chown(store, USER, USER)
        return store

    def learn_yardstick(self, program, command):
        """Root learns, and gives the store away. Returns the store."""
        store = os.path.join(self.work, f"yardstick-{program}")
        os.makedirs(store, mode=0o700)
        subprocess.run([PREPAGE, "bench", "yardstick", "--", *command], env=self.env(store), cwd="/", check=True, **QUIET)
        if self.name in USERS:
            give_away(store)
        return store

    def learn_yardsticks(self, chosen):
        """Name → store, of programs that can be learned."""
        stores = {}
        for program in chosen:
            try:
                stores[program] = self.learn_yardstick(program, commands(self.work)[program])
            except subprocess.CalledProcessError as error:
                print(f"  {program}: left out: {error}", file=sys.stderr)
        return stores


def chosen(work):
    """The names in PROGRAMS, or those of all programs that are installed."""
    return installed(os.environ.get("PROGRAMS", " ".join(commands(work))).split(), work)
