"""Numbers for people."""

import pytest

from lfl.reporting.formats import direction_of, format_bytes, format_seconds


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (999.0, "999 bytes"), (12_345, "12.3 kB"), (2e12, "2.0 TB"), (1.234e15, "1.2 PB")],
)
def test_format_bytes(count, text):
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (0.0123, "0.0123 s"),
        (59.9, "59.9 s"),
        (60.4, "0:01:00"),
        (3599.6, "1:00:00"),
        (93784, "1 day, 2:03:04"),
    ],
)
def test_format_seconds(seconds, text):
    assert format_seconds(seconds) == text


LARGE = """
val_acc val_acc_top5 val_top5 val_top1_acc valAcc val_balanced_accuracy val_f1 val_F1Score val_macro_f1 val_fbeta
val_auroc val_AUC val_roc_auc val_auprc val_average_precision val_mAP val_mAP50 val_map val_iou val_mIoU val_jaccard
val_dice val_r2 val_R2Score val_bleu val_BLEU-4 val_rouge1 val_rougeL val_psnr val_ssim val_mcc val_kappa val_recall@5
val_hits@10 val_ndcg val_log_likelihood val_explained_variance val_exact_match val_sensitivity val_spearman
personal/val_f1/worst_tenth val_reward val_true_negative_rate val_success_rate val_precision validacc
"""
SMALL = """
val_loss valLoss testloss val_acc_loss val_mse val_rmse val_mae val_mape val_nll val_ppl val_perplexity val_error
val_error_rate val_err val_top1_err val_top5_error val_cross_entropy val_ce val_bce val_wer val_cer val_fid val_ece
val_brier_score val_distance val_relative_gradient_norm val_neg_log_likelihood val_dice_loss val_false_positive_rate
train_time val_hausdorff val_kl val_hinge personal/val_mse train/loss val_mean_squared_error val_iou_loss
"""
NEITHER = """
val_score constant lr clients val_acc_std val_entropy flss/rank diag/cosine val_power val_neg_mse tokens
"""


@pytest.mark.parametrize(("names", "direction"), [(LARGE, 1), (SMALL, -1), (NEITHER, 0)])
def test_what_names_tell(names: str, direction: int) -> None:
    assert {name: direction_of(name) for name in names.split()} == dict.fromkeys(names.split(), direction)


def test_what_is_known_comes_before_the_name() -> None:
    assert direction_of("val_loss", {"val_loss": 1}) == 1
    assert direction_of("val_score", {"val_score": -1}) == -1
    assert direction_of("val_acc", {"val_score": -1}) == 1
