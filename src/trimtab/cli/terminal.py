"""The console of rich, with another treatment of closed pipes."""

from rich.console import Console


class Terminal(Console):
    """rich's console, but a closed pipe raises an error that the command handles."""

    def on_broken_pipe(self) -> None:
        """Go on with what is being raised; rich would end the program."""
        raise
