"""The experiments by which claims are judged: a few dozen, each of which decides many claims."""
