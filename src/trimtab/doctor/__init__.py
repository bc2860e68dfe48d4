"""What holds a training back, and what to change."""
