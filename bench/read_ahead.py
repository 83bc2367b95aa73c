"""The kernel's read-ahead of the disk with /usr, set for a while."""
import contextlib, fcntl, glob, os


@contextlib.contextmanager
def read_ahead(kib):
    """As `prepage measure --read-ahead` has it: whoever sets it holds a lock meanwhile, on the first of all settings."""
    settings = sorted(glob.glob("/sys/class/bdi/*:*/read_ahead_kb"))
    device = os.stat("/usr").st_dev
    setting = f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb"
    with contextlib.ExitStack() as stack:
        for path in settings:
            fcntl.flock(stack.enter_context(open(path)), fcntl.LOCK_EX)
        with open(setting) as file:
            before = file.read()
        try:
            with open(setting, "w") as file:
                file.write(str(kib))
            yield
        finally:
            with open(setting, "w") as file:
                file.write(before)
