"""What benchmarks change of the machine, and restore on any way out."""
import contextlib, fcntl, glob, math, os, signal, socket, sys, time

SYS, MOUNTS = "/sys", "/proc/self/mountinfo"
DROP_CACHES = "/proc/sys/vm/drop_caches"
SERVICE = "/run/prepage/service"
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def exit_on_signals():
    """Has signals that end this process run what stands in `finally`, which a second one does not interrupt."""
    def exit(number, _):
        for ending in ENDINGS:
            signal.signal(ending, signal.SIG_IGN)
        sys.exit(128 + number)
    for number in ENDINGS:
        signal.signal(number, exit)


def caches_can_be_dropped():
    """Whether this user may, here: root of a container mostly may not."""
    try:
        os.close(os.open(DROP_CACHES, os.O_WRONLY))
    except OSError:
        return False
    return True


def refuse_without_cold_caches():
    """Ends this process where nothing can be made cold, before anything is set up."""
    if not caches_can_be_dropped():
        sys.exit(f"{sys.argv[0]}: caches cannot be dropped here (not root, or in a container)")


def drop_caches():
    os.sync()
    with open(DROP_CACHES, "w") as file:
        file.write("3")
    time.sleep(0.2)


def disk_reads(path):
    """Requests to read that the disk below `path` has served, and their bytes; not numbers where the file system is of no one disk (Btrfs, overlay)."""
    device = os.stat(path).st_dev
    try:
        with open(f"{SYS}/dev/block/{os.major(device)}:{os.minor(device)}/stat") as stat:
            # Documentation/block/stat.rst
            fields = stat.read().split()
    except FileNotFoundError:
        return math.nan, math.nan
    return int(fields[0]), int(fields[2]) * 512


def without_prepage(environment):
    """The environment of a start that nothing prefetches, whether or not a service runs on this machine."""
    return {**environment, "PREPAGE": "off"}


def refuse_beside_a_service(path=SERVICE):
    """Ends this process where the machine's service runs: it would take part in what is measured."""
    with socket.socket(socket.AF_UNIX) as asking, contextlib.suppress(OSError):
        asking.connect(path)
        sys.exit(f"{sys.argv[0]}: the machine's service runs, and would fetch as well\n  try: systemctl stop prepage")


def bdi(number, kind, source):
    """Directories that a mounted file system's read-ahead may be in. A partition has that of its disk; Btrfs one that is named by none of its disks."""
    yield f"{SYS}/class/bdi/{number}"
    yield f"{SYS}/dev/block/{number}/../bdi"
    if kind == "btrfs" and os.path.exists(source):
        device = os.stat(source).st_rdev
        disk = os.path.basename(os.path.realpath(f"{SYS}/dev/block/{os.major(device)}:{os.minor(device)}"))
        for member in glob.glob(f"{SYS}/fs/btrfs/*/devices/{disk}"):
            yield f"{os.path.dirname(os.path.dirname(member))}/bdi"


def settings():
    """The files with the read-ahead of the devices below mounted file systems, each once, in an order that all processes agree on: those of
    crates/sys/src/readahead.rs."""
    found = set()
    with open(MOUNTS) as mounts:
        for line in mounts:
            # proc_pid_mountinfo(5)
            mount, file_system = (half.split() for half in line.split(" - ", 1))
            files = (f"{directory}/read_ahead_kb" for directory in bdi(mount[2], *file_system[:2]))
            found.update(os.path.realpath(file) for file in [file for file in files if os.path.exists(file)][:1])
    return sorted(found)


@contextlib.contextmanager
def read_ahead(kib):
    """Sets the read-ahead of all devices below mounted file systems, as `prepage measure --read-ahead`: whoever sets it holds a lock of each setting
    meanwhile. Where it cannot be set, says so and goes on with the one that is found. Gives what it is then, in words."""
    with contextlib.ExitStack() as stack:
        try:
            files = [stack.enter_context(open(path, "r+b", buffering=0)) for path in settings()]
            why = "no mounted file system has one"
        except OSError as error:
            files, why = [], error
        if not files:
            print(f"{sys.argv[0]}: the read-ahead stays as it is, for it cannot be set here: {why}", file=sys.stderr)
            yield "as found"
            return
        exit_on_signals()
        for file in files:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"{sys.argv[0]}: another program has set the read-ahead: waiting until it ends", file=sys.stderr)
                fcntl.flock(file, fcntl.LOCK_EX)
        before = [file.read() for file in files]
        try:
            for file in files:
                os.pwrite(file.fileno(), str(kib).encode(), 0)
            yield f"{kib} KiB"
        finally:
            for file, value in zip(files, before):
                # A device may have gone meanwhile.
                with contextlib.suppress(OSError):
                    os.pwrite(file.fileno(), value, 0)


# For benchmarks that are scripts of a shell.
if __name__ == "__main__":
    refuse_beside_a_service()
