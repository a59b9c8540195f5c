"""`python -m graspcl` is `graspcl`."""

from graspcl.cli import main

if __name__ == "__main__":
    main()
