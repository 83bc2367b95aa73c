"""What a profile knows of a program, read as docs/profile-format.md has it, and counted beside another one, the yardstick's."""
import os, struct

# A page or name is prefetched if its probability is at least `threshold` of crates/core/src/profile/worth.rs, here of a local disk
# (`DeviceFigures::default`): the price of a page that is not used, over that and the price of one that is missed.
MISS_NS = 100_000 + 16 * 1e9 / 60_000  # latency, and 16 reads under way at 60,000 a second
UNUSED_NS = 4096 + 0.1 * MISS_NS  # the transfer of a page at 1 GB/s, and a tenth of a miss (`EVICTION_PRICE`)
WORTH = UNUSED_NS / (MISS_NS + UNUSED_NS)
# As the kernel has it: path_resolution(7).
LINKS_MAX = 40


class Profile:
    """The pages that are prefetched, in the order of first use; the names; and what else is counted."""

    def __init__(self, path):
        with open(path, "rb") as file:
            data = file.read()
        if data[:8] != b"PREPAGE\n" or struct.unpack_from("<I", data, 8)[0] != 3:
            raise ValueError(f"{path}: is not a profile of version 3")
        fields = item(data, 24)[0]
        self.history = fields.get(2, {})
        self.starts = fields.get(5, [])
        ranked = []
        for file in fields.get(3, []):
            ranked += [(rank, file[0], page) for rank, page in pages_of(file.get(4, []))]
        self.order = [(path, page) for _, path, page in sorted(ranked)]
        self.pages = set(self.order)
        self.files = {path for path, _ in self.order}
        self.names = [name for name, counts in names_of(fields.get(4, [])) if is_worth(*counts)]
        self.steps = set()
        for name in [*self.names, *self.files]:
            self.steps |= steps(name)

    def answers(self, name):
        """Whether a prefetch has the kernel find all that it needs for `name`."""
        return steps(name) <= self.steps


def is_worth(used, observed):
    """Of counts in sixteenths, as `Counts::probability` of crates/core/src/profile/counts.rs."""
    return (used + 8) / (observed + 16) >= WORTH


def pages_of(extents):
    """(rank, page) of each page that is worth a prefetch."""
    if isinstance(extents, bytes):
        return [(0, page) for page in range(8 * len(extents)) if extents[page // 8] >> page % 8 & 1]
    pages, end, rank = [], 0, 0
    for at in range(1, len(extents), extents[0] if extents else 1):
        gap, length, step, used, observed = extents[at:at + 5]
        start, rank = end + gap, rank + step
        end = start + length
        if is_worth(used, observed):
            pages += [(rank, page) for page in range(start, end)]
    return pages


def names_of(names):
    before = b""
    for shared, rest, _, counts, *_ in names:
        before = before[:shared] + rest.encode()
        yield before.decode(), counts


def item(data, at):
    """One item of CBOR (RFC 8949), and where the next one begins."""
    kind, number, at = data[at] >> 5, data[at] & 31, at + 1
    if kind == 7 and number < 24:
        return number == 21, at
    if number >= 24:
        width = 1 << number - 24
        number, at = int.from_bytes(data[at:at + width], "big"), at + width
    match kind:
        case 0:
            return number, at
        case 1:
            return -1 - number, at
        case 2 | 3:
            text = data[at:at + number]
            return text if kind == 2 else text.decode(), at + number
        case 4 | 5:
            values = []
            for _ in range(number * (kind - 3)):
                value, at = item(data, at)
                values.append(value)
            return values if kind == 4 else dict(zip(values[::2], values[1::2])), at
        case _:
            raise ValueError(f"an item of kind {kind}")


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


def lateness(needed, brought):
    """How far the pages in both come behind their turn, in the mean: a share of all."""
    turns = {page: turn for turn, page in enumerate(needed)}
    in_both = [turns[page] for page in brought if page in turns]
    turn = {needed: at for at, needed in enumerate(sorted(in_both))}
    return share(sum(max(at - turn[needed], 0) for at, needed in enumerate(in_both)), len(in_both) ** 2)


def compared(known, first, yardstick):
    """Counts of a profile, beside those of a store's first one and of the yardstick."""
    return {
        "pages": len(known.pages),
        "recall": share(len(known.pages & yardstick.pages), len(yardstick.pages)),
        "grown": len(known.pages - yardstick.pages - first.pages),
        "lost": len((first.pages & yardstick.pages) - known.pages),
        "late": lateness(yardstick.order, known.order),
        "names": len(known.names),
        "names_recall": share(sum(map(known.answers, yardstick.names)), len(yardstick.names)),
        "names_grown": sum(not (yardstick.answers(name) or first.answers(name)) for name in known.names),
    }
