"""Bytes and durations as text, and whether a metric should be large or small."""

from datetime import timedelta

# Metrics that every run has.
LOSS = "train/loss"
UP = "comm/total_up_bytes"
DOWN = "comm/total_down_bytes"
_HIGHER_IS_BETTER = ("acc", "f1", "auroc", "auc")
_LOWER_IS_BETTER = ("loss", "error", "perplexity", "gradient_norm", "distance")


def format_bytes(count: float) -> str:
    """A number of bytes with a decimal unit.

    >>> format_bytes(512), format_bytes(1_234_567), format_bytes(2e9)
    ('512 bytes', '1.2 MB', '2.0 GB')
    """
    from rich.filesize import decimal

    return decimal(round(count))


def format_seconds(seconds: float) -> str:
    """A duration: seconds up to a minute, then hours, minutes and seconds.

    >>> format_seconds(0.0123), format_seconds(4.2), format_seconds(83), format_seconds(93784)
    ('0.0123 s', '4.2 s', '0:01:23', '1 day, 2:03:04')
    """
    return f"{seconds:.3g} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))


def direction_of(name: str) -> int:
    """1 if a metric of this name should be large, -1 if small, 0 if the name does not tell."""
    # First the words of losses: `val_acc_loss` should be small.
    if any(word in name for word in _LOWER_IS_BETTER):
        return -1
    return 1 if any(word in name for word in _HIGHER_IS_BETTER) else 0
