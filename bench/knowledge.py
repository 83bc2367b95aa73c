"""What a profile knows of a program, as `prepage profile show --json` tells it, and counted beside another one, the yardstick's."""
import json, os, subprocess

PREPAGE = os.path.abspath(os.environ.get("PREPAGE", "build/prepage"))
# As the kernel has it: path_resolution(7).
LINKS_MAX = 40


class Profile:
    """The only profile of a store: the pages that are prefetched, in the order of first use; the names; and what else is counted."""

    def __init__(self, store):
        [name] = [name for name in os.listdir(store) if name.endswith(".profile")]
        shown = show(store, name)
        threshold = shown["worth"]["threshold"]
        self.starts = shown["cold_starts"]
        ranked = [(extent["rank"], file["path"], extent["start_page"] + at)
                  for file in shown["files"] for extent in file["extents"] if extent["probability"] >= threshold
                  for at in range(extent["pages"])]
        self.order = [(path, page) for _, path, page in sorted(ranked)]
        self.pages = set(self.order)
        self.files = {path for path, _ in self.order}
        self.names = [lookup["path"] for lookup in shown["lookups"] if lookup["probability"] >= threshold]
        self.steps = set()
        for name in [*self.names, *self.files]:
            self.steps |= steps(name)

    def newest_is_observed(self):
        """Whether the start that was noted last was observed."""
        return bool(self.starts) and self.starts[-1].get("observed", False)

    def answers(self, name):
        """Whether a prefetch has the kernel find all that it needs for `name`."""
        return steps(name) <= self.steps


def show(store, name):
    """A profile, as its owner sees it: another user's store is not trusted."""
    owner = os.stat(store)
    env = {**os.environ, "PREPAGE_STORE": store, "PREPAGE_LAYERS": ""}
    shown = subprocess.run([PREPAGE, "profile", "show", "--json", name], env=env, user=owner.st_uid, group=owner.st_gid,
                           extra_groups=[], check=True, stdout=subprocess.PIPE)
    return json.loads(shown.stdout)


def steps(name):
    """Which entries of which directories the kernel looks for where it is given `name`, as things are now. They end early where something is
    not there: who has looked up /a and found nothing need not read anything for /a/b."""
    found = set()
    walk(name, found, [LINKS_MAX])
    return found


def walk(name, found, links_left):
    """Where `name` leads, free of symbolic links, or None."""
    at = "/"
    for part in name.split("/"):
        if part in ("", "."):
            continue
        if part == "..":
            at = os.path.dirname(at)
            continue
        step = os.path.join(at, part)
        found.add(step)
        if os.path.islink(step):
            links_left[0] -= 1
            step = walk(os.path.join(at, os.readlink(step)), found, links_left) if links_left[0] >= 0 else None
        if step is None or not os.path.lexists(step):
            return None
        at = step
    return at


def share(part, whole):
    return part / max(whole, 1)


def lateness(needed, brought, parts=1):
    """How far the pages in both come behind their turn, in the mean: a share of all. With `parts` of 3, only of the third that is needed first."""
    turns = {page: turn for turn, page in enumerate(needed)}
    in_both = [turns[page] for page in brought if page in turns]
    turn = {needed: at for at, needed in enumerate(sorted(in_both))}
    late = [max(at - turn[needed], 0) for at, needed in enumerate(in_both) if turn[needed] * parts < len(in_both)]
    return share(sum(late), len(late) * len(in_both))


def compared(known, first, yardstick):
    """Counts of a profile, beside those of a store's first one and of the yardstick."""
    return {
        "pages": len(known.pages),
        "recall": share(len(known.pages & yardstick.pages), len(yardstick.pages)),
        "grown": len(known.pages - yardstick.pages - first.pages),
        "lost": len((first.pages & yardstick.pages) - known.pages),
        "late": lateness(yardstick.order, known.order),
        "late_first": lateness(yardstick.order, known.order, parts=3),
        "names": len(known.names),
        "names_recall": share(sum(map(known.answers, yardstick.names)), len(yardstick.names)),
        "names_grown": sum(not (yardstick.answers(name) or first.answers(name)) for name in known.names),
    }
