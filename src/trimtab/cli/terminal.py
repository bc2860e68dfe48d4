"""The terminal, as rich has it."""

from rich.console import Console


class Terminal(Console):
    """rich's console, but a closed pipe is the command's to handle."""

    def on_broken_pipe(self) -> None:
        """Go on with what is being raised; rich would end the program."""
        raise
