"""`sandyard`, also as `python -m sandyard`."""

from __future__ import annotations

from sandyard.cli.main import cli


def main() -> None:
    cli(prog_name="sandyard")


if __name__ == "__main__":
    main()
