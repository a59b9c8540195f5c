"""Run the command-line program: `python -m graspcl`."""

from graspcl.cli import main

if __name__ == "__main__":
    main()
