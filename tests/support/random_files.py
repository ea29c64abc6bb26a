"""Does random things to files below the working directory, and prints what each came to and what is there at the end."""

import os
import random
import shutil
import stat
import sys

NAMES = [
    "a",
    "b",
    "c.txt",
    "old",
    "sub",
    "sub/a",
    "sub/b",
    "sub/deep",
    "sub/deep/a",
    "new",
    "new/a",
    "link",
    "ln/a",
]


def tree(top="."):
    """What is there: names, kinds, contents."""
    found = []
    for place, directories, files in os.walk(top):
        for name in sorted(directories + files):
            path = os.path.join(place, name)
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                found.append((path, "->", os.readlink(path)))
            elif stat.S_ISDIR(status.st_mode):
                found.append((path, "/"))
            else:
                with open(path) as file:
                    found.append((path, status.st_size, file.read()))
    return sorted(found)


def read(path):
    with open(path) as file:
        return file.read()


def write(path, mode, text):
    with open(path, mode) as file:
        return file.write(text)


def change(path, text):
    with open(path, "r+") as file:
        file.seek(1)
        file.write(text)
        file.seek(0)
        return file.read()


def move(path, other):
    shutil.move(path, other) if os.path.isdir(path) else os.rename(path, other)


def act(chance):
    path, other = chance.choice(NAMES), chance.choice(NAMES)
    text = str(chance.randrange(1000))
    acts = [
        lambda: write(path, "w", text),
        lambda: write(path, "a", text),
        lambda: write(path, "x", text),
        lambda: change(path, text),
        lambda: os.truncate(path, 2),
        lambda: read(path),
        lambda: os.mkdir(path),
        lambda: os.makedirs(path + "/x/y", exist_ok=True),
        lambda: os.rmdir(path),
        lambda: os.unlink(path),
        lambda: os.remove(path),
        lambda: move(path, other),
        lambda: os.replace(path, other) if not os.path.isdir(path) else None,
        lambda: os.symlink(
            chance.choice(["a", "sub", "sub/a", "../a", os.path.abspath("sub")]), path
        ),
        lambda: (os.link(path, other), os.unlink(path)) if not os.path.islink(path) else None,
        lambda: shutil.copy2(path, other),
        lambda: shutil.copytree(path, other),
        lambda: shutil.rmtree(path),
        lambda: sorted(os.listdir(path)),
        lambda: sorted(
            (e.name, e.is_dir(follow_symlinks=False), e.is_file()) for e in os.scandir(path)
        ),
        lambda: (
            os.path.exists(path),
            os.path.lexists(path),
            os.path.islink(path),
            os.path.isdir(path),
        ),
        lambda: os.path.getsize(path) if os.path.isfile(path) else None,
        lambda: os.access(path, os.W_OK),
        lambda: os.path.realpath(path),
        lambda: os.chmod(path, 0o644) if os.path.isfile(path) else None,
        lambda: os.utime(path),
    ]
    number = chance.randrange(len(acts))
    try:
        return number, path, other, acts[number]()
    except shutil.Error:
        return number, path, other, "shutil.Error"
    except OSError as error:
        return number, path, other, type(error).__name__


def main(seed, count):
    chance = random.Random(seed)
    top = os.getcwd()
    for _ in range(count):
        print(repr(act(chance)).replace(top, "TOP").replace(os.path.dirname(top), "UP"))
        if chance.random() < 0.1:
            print(repr(tree()).replace(top, "TOP").replace(os.path.dirname(top), "UP"))
    print(repr(tree()).replace(top, "TOP").replace(os.path.dirname(top), "UP"))


main(int(sys.argv[1]), int(sys.argv[2]))
