"""The programs whose starts are measured, and what they are given to work on. For shell scripts:

    python3 bench/programs.py names [PROGRAM…]       names of these programs, or of all, without those that are not installed: these are named
    python3 bench/programs.py set-up WORK            makes what the programs read, and prints what to `eval`: their environment
    python3 bench/programs.py command WORK PROGRAM   prints what to `eval`: the array `command`
    python3 bench/programs.py files PROGRAM          prints the regular files in $PREPAGE's profiles of programs called so
"""
import json, os, shlex, shutil, subprocess, sys, time

SCIENCE = "import pandas, scipy.stats, matplotlib.pyplot\n"
HELLO = 'public class Hello { public static void main(String[] a) { System.out.println("hello"); } }\n'
CHROMIUM = ("chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
            " --disable-component-update --disable-sync").split()
HERE = os.path.dirname(os.path.abspath(__file__))


def commands(work):
    """Name → command line. bench/summary.py tells the first six and the first ten apart."""
    return {
        "gcc": ["gcc", "-O2", "-S", "-o", "/dev/null", f"{work}/front.c"],
        "clang": ["clang", "-O1", "-c", "-o", "/dev/null", f"{work}/front.c"],
        "emacs": ["emacs", "-batch"],
        "gdb": ["gdb", "-batch"],
        "node": ["node", "-e", "1"],
        "java": ["java", "-cp", work, "Hello"],
        "javac": ["javac", "-d", f"{work}/home", f"{work}/Hello.java"],
        "python": ["/usr/bin/python3", f"{work}/science.py"],
        "chromium": [*CHROMIUM, f"--user-data-dir={work}/chromium", "--dump-dom", "about:blank"],
        "firefox": ["firefox-esr", "--headless", "--no-remote", "--profile", f"{work}/firefox", "--screenshot",
                    f"{work}/home/shot.png", "about:blank"],
        "git": ["git", "-C", f"{work}/repository", "log", "--stat"],
        "perl": ["perl", "-MPOSIX", "-MEncode", "-MFile::Temp", "-e", "1"],
        "php": ["php", "-r", "echo json_encode([1, 2]);"],
        "R": ["Rscript", "-e", "summary(lm(dist ~ speed, cars))"],
        "gs": ["gs", "-q", "-dNODISPLAY", "-dBATCH", "-c", "1 2 add pop quit"],
        "ffmpeg": ["ffmpeg", "-hide_banner", "-codecs"],
        "go": ["go", "env", "GOROOT"],
        "cmake": ["cmake", "--help-module-list"],
    }


def installed(names, work=""):
    """Those of the programs called so that can be measured here; says which are left out."""
    def lacks(name):
        program = commands(work)[name][0]
        if not shutil.which(program):
            return program
        if name == "java" and not shutil.which("javac"):
            return "javac"
        if name == "python":
            find = "import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, ['pandas', 'scipy', 'matplotlib'])))"
            return "pandas, scipy or matplotlib" if subprocess.run([program, "-c", find], check=False).returncode else None
        return None

    if unknown := [name for name in names if name not in commands(work)]:
        sys.exit(f"no such program: {unknown[0]}")
    lacking = {name: lack for name in names if (lack := lacks(name))}
    for name, lack in lacking.items():
        print(f"  {name}: left out: no {lack}", file=sys.stderr)
    return [name for name in names if name not in lacking]


def environment(work):
    """What the programs find in their environment."""
    return dict(HOME=f"{work}/home", MPLCONFIGDIR=f"{work}/home", PYTHONDONTWRITEBYTECODE="1", GOTOOLCHAIN="local",
                GIT_CONFIG_NOSYSTEM="1",
                # Root learns with the yardstick what another user owns.
                GIT_CONFIG_COUNT="1", GIT_CONFIG_KEY_0="safe.directory", GIT_CONFIG_VALUE_0="*")


def set_up(work):
    """Makes what only the measured programs read. To be called as the user who runs them."""
    shutil.copy(f"{HERE}/front.c", work)
    for name, text in (("science.py", SCIENCE), ("Hello.java", HELLO)):
        with open(os.path.join(work, name), "w") as file:
            file.write(text)
    for name in ("firefox", "home", "chromium", "repository"):
        os.makedirs(os.path.join(work, name), exist_ok=True)
    os.environ.update(environment(work))

    def run(*command):
        # Whoever measures other programs needs none of it.
        if shutil.which(command[0]):
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    run("javac", "-d", work, f"{work}/Hello.java")
    run("/usr/bin/python3", f"{work}/science.py")
    author = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
    git = ["git", "-C", f"{work}/repository", *author]
    run(*git, "init", "-q")
    for at in range(30):
        with open(f"{work}/repository/file{at}", "w") as file:
            file.write("line\n" * 200 * (at + 1))
        run(*git, "add", ".")
        run(*git, "commit", "-qm", f"file {at}")
    run(*git, "gc", "-q")
    # Files changed within the last seconds are not told apart by their times.
    hour_ago = time.time() - 3600
    for directory, _, files in os.walk(work):
        for name in files:
            path = os.path.join(directory, name)
            if not os.path.islink(path):
                os.utime(path, (hour_ago, hour_ago))


def whole_files(program, env=os.environ):
    """The regular files in the profiles of programs called so, each once: what people warm who do not know which pages are needed."""
    def profiles(*command):
        output = subprocess.run([env["PREPAGE"], "profile", *command, "--json"], env=env, check=True, stdout=subprocess.PIPE)
        return json.loads(output.stdout)
    paths = {file["path"]: None
             for profile in profiles("list")["profiles"] if profile["role"].split(" ")[0] == program
             for file in profiles("show", profile["file"])["files"]}
    return [path for path in paths if os.path.isfile(path)]


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["names", *names]:
            print(*installed(names or commands("")))
        case ["set-up", work]:
            set_up(work)
            print(*("export " + shlex.quote(f"{name}={value}") for name, value in environment(work).items()), sep="\n")
        case ["command", work, program] if program in commands(work):
            print(f"command=({shlex.join(commands(work)[program])})")
        case ["files", program]:
            for path in whole_files(program):
                print(path)
        case ["command", _, program]:
            sys.exit(f"no such program: {program}")
        case _:
            sys.exit(__doc__)
