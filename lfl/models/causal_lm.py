"""Causal language models of ``transformers``, trained whole or by LoRA adapters of ``peft``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Literal

import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import Tensor, nn, optim
from typing_extensions import override

_IGNORED = -100  # the label of tokens that are not to be predicted
_EXTRA = "CausalLM needs the packages `transformers` and `peft`: pip install 'lfl[huggingface]'."


class CausalLM(LightningModule):
    """Trains a language model to predict the next token, on batches that are dicts.

    ``input_ids`` and ``attention_mask`` are ``(examples, tokens)``, and so are ``labels``, -100 where nothing is to be
    predicted; without them every token that is not masked is. With LoRA only the adapters are trained and sent, and the
    model below them stays as it is.

    Args:
        config: a model that begins at random: ``model_type`` and what else its configuration takes.
        pretrained: a trained model instead: a folder, or a name on the hub.
        lora: arguments of ``peft.LoraConfig``, such as ``r`` and ``target_modules``; none to train the whole model.
        attention: how attention is computed; ``sdpa`` is faster on long sequences of one client at a time.
        lr: learning rate of AdamW.
        weight_decay: weight decay of AdamW.

    Raises:
        ValueError: neither or both of `config` and `pretrained` are given.
        FileNotFoundError: there is no model at `pretrained`.
        ModuleNotFoundError: ``transformers`` or ``peft`` is missing.
    """

    def __init__(
        self,
        config: dict[str, Any] | None = None,
        pretrained: str | None = None,
        lora: dict[str, Any] | None = None,
        attention: Literal["eager", "sdpa"] = "eager",
        lr: float = 1e-3,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__()
        if (config is None) == (pretrained is None):
            raise ValueError(f"Give `config={config}` or `pretrained={pretrained}` of CausalLM, and not both.")
        if config is not None and "model_type" not in config:
            raise ValueError(f"`config={config}` of CausalLM names no `model_type`, such as gpt2.")
        self.network = _network(config, pretrained, attention)
        if lora is not None:
            self.network = _with_adapters(self.network, lora)
        self.lr = lr
        self.weight_decay = weight_decay

    @override
    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """The logits of the next tokens ``(examples, tokens, vocabulary)``."""
        found = self.network(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
        logits: Tensor = found.logits
        return logits

    @override
    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        del batch_idx
        logits, labels = self._predicted(batch)
        return F.cross_entropy(logits, labels, ignore_index=_IGNORED)

    @override
    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        del batch_idx
        self._log_evaluation("val", batch)

    @override
    def test_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        del batch_idx
        self._log_evaluation("test", batch)

    @override
    def predict_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """The likeliest next tokens ``(examples, tokens)``."""
        del batch_idx
        return self(batch["input_ids"], batch.get("attention_mask")).argmax(-1)  # type: ignore[no-any-return]

    @override
    def configure_optimizers(self) -> optim.Optimizer:
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return optim.AdamW(trained, lr=self.lr, weight_decay=self.weight_decay)

    def _predicted(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Logits ``(n, vocabulary)`` and labels ``(n,)`` of all tokens but the first of each example."""
        mask = batch.get("attention_mask")
        labels = batch.get("labels")
        if labels is None:
            labels = batch["input_ids"]
            labels = labels if mask is None else labels.masked_fill(mask == 0, _IGNORED)
        return self(batch["input_ids"], mask)[:, :-1].flatten(0, 1), labels[:, 1:].flatten()

    def _log_evaluation(self, stage: str, batch: dict[str, Tensor]) -> None:
        logits, labels = self._predicted(batch)
        is_counted = labels != _IGNORED
        hits = (logits.argmax(-1) == labels) & is_counted
        values = {
            f"{stage}_loss": F.cross_entropy(logits, labels, ignore_index=_IGNORED),
            f"{stage}_acc": hits.sum() / is_counted.sum(),
        }
        self.log_dict(values, batch_size=int(is_counted.sum()))  # tokens, of which examples have different numbers


def _network(config: dict[str, Any] | None, pretrained: str | None, attention: str) -> nn.Module:
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(_EXTRA, name="transformers") from error
    models: Any = transformers.AutoModelForCausalLM
    if config is None:
        try:
            network: nn.Module = models.from_pretrained(pretrained, attn_implementation=attention)
        except (OSError, ValueError) as error:
            raise FileNotFoundError(
                f"`pretrained={pretrained!r}` of CausalLM is neither a folder that `save_pretrained` wrote (looked for "
                f"at {str(Path(str(pretrained)).resolve())!r}) nor a model of the hub that can be reached."
            ) from error
    else:
        settings = transformers.AutoConfig.for_model(**config)
        network = models.from_config(settings, attn_implementation=attention)
    return network.train()


def _with_adapters(network: nn.Module, lora: dict[str, Any]) -> nn.Module:
    try:
        import peft
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(_EXTRA, name="peft") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft 0.21 asks transformers 5 by an old name
        adapted: nn.Module = peft.get_peft_model(network, peft.LoraConfig(**{"task_type": "CAUSAL_LM", **lora}))
    return adapted
