"""Assembles the commands and turns errors into text."""


def main() -> None:
    """Run the command line."""
