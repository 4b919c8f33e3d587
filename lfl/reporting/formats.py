"""Numbers of a run as people read them."""

# Metrics that every run has.
LOSS = "train/loss"
UP = "comm/total_up_bytes"
DOWN = "comm/total_down_bytes"
_HIGHER_IS_BETTER = ("acc", "f1", "auroc", "auc")
_LOWER_IS_BETTER = ("loss", "error", "perplexity", "gradient_norm", "distance")


def format_bytes(count: float) -> str:
    """A number of bytes with three digits and a decimal unit.

    >>> format_bytes(512), format_bytes(1_234_567), format_bytes(999_999)
    ('512 B', '1.23 MB', '1.00 MB')
    """
    unit = "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        # As it will be rounded, or 999 999 bytes would be 1000 kB.
        if float(f"{count:.3g}") < 1000:
            break
        count, unit = count / 1000, larger
    return f"{round(count)} B" if unit == "B" else f"{count:#.3g}".rstrip(".") + f" {unit}"


def format_seconds(seconds: float) -> str:
    """A duration in the unit that suits it.

    >>> format_seconds(0.0123), format_seconds(4.2), format_seconds(83), format_seconds(5025), format_seconds(93784)
    ('12.3 ms', '4.2 s', '1 min 23 s', '1 h 24 min', '1 d 2 h')
    """
    if seconds < 0.0009995:
        return f"{seconds * 1e6:.3g} us"
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, rest = divmod(round(seconds / 60), 60)
    if hours < 24:
        return f"{hours} h {rest} min"
    days, rest = divmod(round(seconds / 3600), 24)
    return f"{days} d {rest} h"


def direction_of(name: str) -> int:
    """1 if a metric of this name should be large, -1 if small, 0 if the name does not say."""
    # The loss first: `val_acc_loss` would be a loss.
    if any(word in name for word in _LOWER_IS_BETTER):
        return -1
    return 1 if any(word in name for word in _HIGHER_IS_BETTER) else 0
