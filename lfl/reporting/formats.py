"""Bytes and durations as text, and whether a metric should be large or small."""

import re
from collections.abc import Mapping
from datetime import timedelta

# Metrics that every run has.
LOSS = "train/loss"
UP = "comm/total_up_bytes"
DOWN = "comm/total_down_bytes"
# Words of metrics' names. A metric of several words is what the first list says that has one of them.
_UNKNOWN = "std stdev stddev var variance"
_LOWER = (
    "loss losses error errors err mse rmse mae mape smape wmape msle rmsle nll nlpd ppl perplexity bpc bpb bpd xent "
    "ce bce crossentropy logloss hinge kl divergence ece mce brier hamming hausdorff hd95 hd assd chamfer distance "
    "dist wer cer ter mer eer fid kid lpips fpr fnr fdr false misclassification cost regret risk deviance residual "
    "gap drop forgetting time seconds latency",
    "cross_entropy gradient_norm",
)
_HIGHER = (
    "acc accuracy top f1 f2 fbeta fscore auc auroc rocauc auprc ap map iou miou jaccard dice precision recall "
    "sensitivity specificity tpr tnr r2 bleu sacrebleu rouge rougel meteor chrf bertscore psnr ssim msssim kappa "
    "mcc matthews corr correlation corrcoef pearson spearman kendall concordance similarity ndcg mrr hit hits "
    "reward rewards return returns success correct likelihood elbo throughput",
    "explained_variance exact_match true_positive true_negative",
)
_MINUS = ("neg", "negative", "minus")  # turn the rest around
# Words that are also the ends of words that are written together, such as `valacc` or `testloss`.
_ENDS = ("acc", "accuracy", "loss", "error", "mse", "mae", "auroc", "auc", "perplexity")


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


def direction_of(name: str, known: Mapping[str, int] | None = None) -> int:
    """1 if a metric of this name should be large, -1 if small, 0 if nothing tells.

    Args:
        name: the metric's name, such as ``val_acc`` or ``personal/val_f1/worst_tenth``.
        known: directions by name that are known otherwise: of a Metric object, or set by the user. They come first.

    >>> [direction_of(name) for name in ("val_acc", "val_top1_err", "valLoss", "val_iou", "val_score")]
    [1, -1, -1, 1, 0]
    """
    if known and name in known:
        return known[name]
    # Split where case changes too, and not: `valLoss`, but `mIoU`. Numbers are part of some names: `f1`, `top5`.
    found = re.findall(r"[a-z]+\d*", f"{name} {re.sub(r'(?<=[a-z0-9])(?=[A-Z])', '_', name)}".lower())
    text = "_".join(found)
    words = set(found) | {word.rstrip("0123456789") for word in found}
    words |= {end for end in _ENDS if any(word.endswith(end) for word in words)}
    # First the words of losses: `val_acc_loss` should be small. A phrase, of two words, comes before all words.
    for direction, (_, phrases) in ((-1, _LOWER), (1, _HIGHER)):
        if any(phrase in text for phrase in phrases.split()):
            return direction
    if words & set(_UNKNOWN.split()):
        return 0
    is_turned = bool(words & set(_MINUS))
    if words & set(_LOWER[0].split()):
        return 0 if is_turned else -1  # `neg_mse` is what some libraries maximise, others would not say so
    return (-1 if is_turned else 1) if words & set(_HIGHER[0].split()) else 0
