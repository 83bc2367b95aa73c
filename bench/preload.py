"""preload(8), a daemon that learns which files running programs map, and reads them ahead of programs that it expects.

It is taken out of Debian's package and runs in the foreground; nothing is installed. All that can be is in its favour: it looks every
second instead of every 20, each program runs over and over while it learns, it may use all memory, and it has SETTLING_S (5) seconds
before each start, which are not counted.
"""
import glob, os, re, signal, subprocess, sys, time

from machine import disk_reads

LEARNING_S, SETTLING_S = (int(os.environ.get(name, default)) for name, default in (("LEARNING_S", "20"), ("SETTLING_S", "5")))
IN_ITS_FAVOUR = {"cycle": "1", "minsize": "0", "memtotal": "100", "memfree": "100", "memcached": "100"}


class Preload:
    """The daemon. It looks on only while it is not stopped."""

    def __init__(self, work):
        """Starts it, below the directory `work`."""
        self.work = work
        self.ahead = []  # bytes read before each start
        download = ["apt-get", "-o", "APT::Sandbox::User=root", "download", "-q", "preload"]
        if subprocess.run(download, cwd=work, stdout=subprocess.DEVNULL).returncode:
            sys.exit("bench/preload.py: apt-get finds no package preload")
        subprocess.run(["dpkg", "-x", *glob.glob(f"{work}/preload_*.deb"), f"{work}/package"], check=True)
        with open(f"{work}/package/etc/preload.conf") as given, open(f"{work}/preload.conf", "w") as ours:
            for line in given:
                name = line.split("=")[0].strip()
                ours.write(f"{name} = {IN_ITS_FAVOUR[name]}\n" if name in IN_ITS_FAVOUR else line)
        self.child = subprocess.Popen([f"{work}/package/usr/sbin/preload", "-f", "-c", f"{work}/preload.conf",
                                       "-s", f"{work}/state", "-l", f"{work}/log"])

    def learn(self, runs):
        """Has each of the functions called over and over; returns the names of the programs that it knows then."""
        for run in runs:
            until = time.monotonic() + LEARNING_S
            while time.monotonic() < until:
                run()
        time.sleep(2)
        self.child.send_signal(signal.SIGUSR2)  # writes its state
        time.sleep(1)
        self.child.send_signal(signal.SIGSTOP)
        with open(f"{self.work}/state") as state:
            paths = re.findall(r"file://(\S+)", "\n".join(line for line in state if line.startswith("EXE\t")))
        return sorted({os.path.basename(path) for path in paths})

    def read(self):
        """Lets it read what it expects, from a cold cache."""
        _, before = disk_reads("/usr")
        self.child.send_signal(signal.SIGCONT)
        time.sleep(SETTLING_S)
        self.child.send_signal(signal.SIGSTOP)
        self.ahead.append(disk_reads("/usr")[1] - before)

    def end(self):
        self.child.kill()
        self.child.wait()
