#!/usr/bin/env python3
"""Checks the tree against rules.py: check.py [--root DIR] [CHECK ...]. Prints FILE:LINE: what is wrong."""

import argparse
import pathlib
import posixpath
import re
import subprocess
import sys

import cpp
import rules

CPP_SUFFIXES = {".h", ".cc", ".cu", ".hip", ".c"}


class Tree:
    """The files of a source tree, read once; paths are relative to its root."""

    def __init__(self, root):
        self.root = pathlib.Path(root).resolve()
        self.files = sorted(self._git_files() or self._walk())
        self.known = set(self.files)
        self._texts = {}

    def _git_files(self):
        if not (self.root / ".git").exists():
            return []
        listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=self.root,
                                capture_output=True, text=True, check=False)
        names = [name for name in listed.stdout.split("\0") if name]
        return [name for name in names if (self.root / name).is_file()]

    def _walk(self):
        skipped = re.compile(r"^(build.*|\.git|\.cache)$")
        for path in self.root.rglob("*"):
            relative = path.relative_to(self.root)
            if path.is_file() and not skipped.match(relative.parts[0]) and "__pycache__" not in relative.parts:
                yield str(relative)

    def text(self, name):
        if name not in self._texts:
            self._texts[name] = (self.root / name).read_text(encoding="utf-8", errors="replace")
        return self._texts[name]

    def cpp(self, under=""):
        return [name for name in self.files
                if pathlib.PurePath(name).suffix in CPP_SUFFIXES and name.startswith(under)]

    def build_files(self):
        return [name for name in self.files
                if name.endswith(("CMakeLists.txt", ".cmake", ".cmake.in", ".sh"))
                or name in (".ci/run", "tests/run") or re.match(r"mpi-launch/[\w-]+$", name)]


def room_of(path):
    for room in rules.ROOMS:
        if path.startswith(room + "/"):
            return room
    return None


def resolve(tree, name, include, quoted):
    """The path in the tree that `include`, seen in file `name`, means; None for what is not ours."""
    beside = posixpath.normpath(posixpath.join(posixpath.dirname(name), include))
    for candidate in ([beside] if quoted else []) + [include, "include/" + include]:
        if candidate in tree.known:
            return candidate
    if include.startswith("zerohold/"):
        return "include/" + include
    if re.match(r"(src|offload|optim|tests|bench|mpi-launch)/", include):
        return include
    return None


def check_arrows(tree):
    """Every include between rooms, and every link between their libraries."""
    for name in tree.cpp():
        room = room_of(name)
        if room is None:
            yield name, 1, "stands in no room that tests/arch/rules.py knows"
            continue
        for line, include, quoted in cpp.includes(tree.text(name)):
            target = resolve(tree, name, include, quoted)
            if target is None:
                continue
            other = room_of(target)
            if other != room and other not in rules.ROOMS[room]:
                yield name, line, f"{room} may not include {target}"
            allowed = rules.FRONT_DOOR_INSIDE.get(target.removeprefix("include/"))
            if allowed and not name.startswith(allowed + ("include/",)):
                yield name, line, f"{include} is for those who implement or use it, not for {room}"
    yield from check_links(tree)


def check_links(tree):
    for name in tree.files:
        room = room_of(name)
        if not name.endswith("CMakeLists.txt") or room is None or not name.startswith(rules.LIBRARY):
            continue
        text = re.sub(r"#[^\n]*", "", tree.text(name))
        for match in re.finditer(r"zh_room\s*\(\s*(\w+)([^)]*)\)", text):
            for link in re.findall(r"\bzh_([a-z]+)", match.group(2).partition("LINKS")[2]):
                allowed = {each.rpartition("/")[2] for each in rules.ROOMS[room] + [room]}
                if link not in allowed | {"flags"}:
                    line = text.count("\n", 0, match.start()) + 1
                    yield name, line, f"{room} may not link zh_{link}"


def check_bans(tree):
    """Libraries, calls and flags that belong to one place or to none."""
    for name in tree.cpp():
        for line, include, quoted in cpp.includes(tree.text(name)):
            for what, pattern, allowed in rules.INCLUDE_BANS:
                if resolve(tree, name, include, quoted) is None and re.match(pattern, include) \
                        and not name.startswith(allowed):
                    yield name, line, f"{what} ({include}) is allowed only in {', '.join(allowed)}"
            if name.startswith("include/") and not re.match(rules.FRONT_DOOR_INCLUDES, include) \
                    and not (name == "include/zerohold/mpi.h" and include == "mpi.h"):
                yield name, line, f"a public header may not include {include}"
            if name.startswith(rules.PURE) and re.match(rules.PURE_BAN, include):
                yield name, line, f"the layout is pure: no <{include}>"
        code = cpp.strip(tree.text(name))
        for what, pattern, where, allowed in rules.CODE_BANS:
            if name.startswith(where) and not name.startswith(allowed or ("\0",)):
                for match in re.finditer(pattern, code):
                    yield name, code.count("\n", 0, match.start()) + 1, f"{what}: {match.group(0)}"
    for name in tree.build_files():
        text = tree.text(name)
        for what, pattern in rules.BUILD_BANS:
            for match in re.finditer(pattern, text):
                yield name, text.count("\n", 0, match.start()) + 1, f"{what}: {match.group(0)}"


def check_state(tree):
    """No variable that lives as long as the process and can change."""
    for name in tree.cpp():
        if name.startswith(rules.SHIPPED) and name not in rules.STATE_ALLOWED:
            for line, text in cpp.mutable_statics(cpp.strip(tree.text(name))):
                yield name, line, f"mutable static state: {text}"


def words_of(identifier):
    spaced = re.sub(r"([a-z0-9])([A-Z])|([A-Z]+)([A-Z][a-z])", r"\1\3_\2\4", identifier)
    return [word.lower() for word in re.split(r"[_\W\d]+", spaced) if word]


def check_words(tree):
    """Names say what a thing is, in the words of the design."""
    for name in tree.files:
        code = ""
        if pathlib.PurePath(name).suffix in CPP_SUFFIXES:
            code = re.sub(rules.NAMES_OF_OTHERS, " ", cpp.strip(tree.text(name)))
        names = [(1, name, words_of(name))]
        names += [(code.count("\n", 0, match.start()) + 1, match.group(0), words_of(match.group(0)))
                  for match in re.finditer(r"\b[A-Za-z_]\w*", code)]
        for line, each, words in names:
            if each in rules.WORDS_OF_OTHERS:
                continue
            for word in set(words) & rules.BANNED_WORDS:
                yield name, line, f"'{each}': no name of ours says '{word}'"
            if {"chunk", "chunks"} & set(words) and not name.startswith(rules.CHUNK_ALLOWED):
                yield name, line, f"'{each}': a chunk is a piece of a file; say bucket, record, shard or slice"


def check_shape(tree):
    """Sizes that a reader can hold, and a first line that says the job."""
    for name in tree.files:
        lines = tree.text(name).split("\n")[:-1]
        if name == "README.md" and len(lines) > rules.MAX_README_LINES:
            yield name, len(lines), f"{len(lines)} lines, at most {rules.MAX_README_LINES}"
        if len(lines) > rules.MAX_FILE_LINES:
            yield name, len(lines), f"{len(lines)} lines, at most {rules.MAX_FILE_LINES}"
    for name in tree.cpp():
        text = tree.text(name)
        own_header = name.removesuffix(".cc") + ".h"
        if not text.startswith("// ") and not (own_header in tree.known and own_header != name):
            yield name, 1, "the first line does not say the file's job (nor is there a header of its name)"
        for number, line in enumerate(text.split("\n"), 1):
            if len(line) > rules.MAX_COLUMNS and not line.startswith("#include"):
                yield name, number, f"{len(line)} columns, at most {rules.MAX_COLUMNS}"
        for first, last, head in cpp.functions(cpp.strip(text)):
            if last - first + 1 > rules.MAX_FUNCTION_LINES:
                yield name, first, f"{last - first + 1} lines, at most {rules.MAX_FUNCTION_LINES}: {head}"


def check_top(tree):
    """The top of the tree holds what the design's card names."""
    for entry in sorted({pathlib.PurePath(name).parts[0] for name in tree.files} - rules.TOP_LEVEL):
        yield entry, 1, "is not on the card of the house (tests/arch/rules.py: TOP_LEVEL)"


CHECKS = {"arrows": check_arrows, "bans": check_bans, "state": check_state, "words": check_words,
          "shape": check_shape, "top": check_top}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("checks", nargs="*", choices=[[], *CHECKS], metavar="CHECK", help=", ".join(CHECKS))
    arguments = parser.parse_args()
    tree = Tree(arguments.root)
    if not tree.files:
        sys.exit(f"{tree.root} holds no files")
    found = 0
    for check in arguments.checks or CHECKS:
        for name, line, what in CHECKS[check](tree):
            print(f"{name}:{line}: {what}")
            found += 1
    print(f"{len(tree.files)} files, {found} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
