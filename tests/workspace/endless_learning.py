"""Learns new texts for ever, and with `forget` forgets them again, in a process that a test kills."""

import itertools
import sys

from made_up_texts import texts

from graspcl import Workspace


def main() -> None:
    shop = Workspace.open(sys.argv[1])
    sys.stdout.write("open\n")
    sys.stdout.flush()
    for number in itertools.count(int(sys.argv[2])):
        shop.learn(texts("car", 6 * number, 6 * number + 6), ["car"] * 6, updates=1, accept=True)
        if "forget" in sys.argv:
            shop.forget("car")
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
