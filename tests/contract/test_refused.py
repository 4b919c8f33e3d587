"""What has no meaning is refused with one message that names it, before any work, from Python too."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from worlds import HEAD, train

from lfl.callbacks import (
    FLSS,
    SSF,
    ClientEvaluation,
    ClientMomentum,
    Diagnostics,
    FederatedCallback,
    FedSub,
    HyperbolicRegularization,
    PersonalParameters,
    Scaffold,
    SharpnessAware,
    Sign,
    TopK,
)
from lfl.engine import LocalPhase
from lfl.participation import DoublingParticipation
from lfl.system import ExponentialSpeeds

ARGUMENTS: list[tuple[Callable[[], Any], str]] = [
    (lambda: FLSS(project="grads"), "`project=grads` of FLSS must be one of updates, gradients, both."),  # type: ignore[arg-type]
    (lambda: FLSS(warmup="foo"), "`warmup=foo` of FLSS must be one of batch, stream, auto."),  # type: ignore[arg-type]
    (lambda: FLSS(sample_every=-1), "`sample_every=-1` of FLSS must be a whole number of at least 0."),
    (lambda: FLSS(update_scale=-1.0), "`update_scale=-1.0` of FLSS must be a number greater than 0."),
    (lambda: FLSS(warmup_rounds=0), "`warmup_rounds=0` of FLSS must be a whole number of at least 1."),
    (lambda: FLSS(rank=0.5), "`rank=0.5` of FLSS must be a whole number of at least 1."),  # type: ignore[arg-type]
    (lambda: SharpnessAware(-0.1), "`rho=-0.1` of SharpnessAware must be a number of at least 0."),
    (lambda: SharpnessAware(float("nan")), "`rho=nan` of SharpnessAware must be a number of at least 0."),
    (lambda: HyperbolicRegularization("x", sigma=0.0), "`sigma=0.0` of HyperbolicRegularization must be"),
    (lambda: HyperbolicRegularization("x", gamma=-1.0), "`gamma=-1.0` of HyperbolicRegularization must be"),
    (lambda: DoublingParticipation(initial=0), "`initial=0` of DoublingParticipation must be"),
    (lambda: DoublingParticipation(rounds_per_stage=0), "`rounds_per_stage=0` of DoublingParticipation must be"),
    (lambda: DoublingParticipation(rounds_per_stage=[]), "`rounds_per_stage=[]` of DoublingParticipation must be"),
    (lambda: ClientEvaluation(every_n_rounds=0), "`every_n_rounds=0` of ClientEvaluation must be"),
    (lambda: ClientEvaluation(max_clients=0), "`max_clients=0` of ClientEvaluation must be"),
    (lambda: ExponentialSpeeds(communication=-3.0), "`communication=-3.0` of ExponentialSpeeds must be"),
    (lambda: Sign(scope="layer"), "`scope=layer` of Sign must be one of global, tensor."),  # type: ignore[arg-type]
    (lambda: LocalPhase(epochs=1.5), "`epochs=1.5` of a local phase must be a whole number of at least 1."),  # type: ignore[arg-type]
    (lambda: LocalPhase(lr=0.0), "`lr=0.0` of a local phase must be a number greater than 0."),
    (lambda: LocalPhase([]), "`parameters=[]` of a local phase trains nothing"),
]


STACKS: list[tuple[Callable[[], list[FederatedCallback]], str]] = [
    (lambda: [SSF(), Sign()], "SSF and Sign have no meaning together"),
    (lambda: [TopK(0.1), SSF()], "SSF and TopK have no meaning together"),
    (lambda: [FedSub(), TopK(0.1)], "FedSub and TopK have no meaning together"),
    (lambda: [Sign(), FLSS(1, 2)], "Sign stands before FLSS"),
    (lambda: [FLSS(1, 2), SSF()], "use one of the two"),
    (lambda: [Scaffold(), SSF()], "SSF is Scaffold in a subspace, with controls of its own: use one of the two."),
    (lambda: [SSF(), Scaffold()], "SSF is Scaffold in a subspace, with controls of its own: use one of the two."),
    (lambda: [ClientMomentum(), PersonalParameters(HEAD)], "PersonalParameters and ClientMomentum have no meaning"),
    (lambda: [SSF(), PersonalParameters(HEAD)], "PersonalParameters and SSF have no meaning together"),
    (lambda: [Sign(), Sign()], "`callbacks` has two Sign"),
    (lambda: [FLSS(1, 2), FLSS(1, 2)], "`callbacks` has two FLSS"),
    (lambda: [Diagnostics(), Diagnostics(trajectory=2)], "`callbacks` has two Diagnostics"),
    (lambda: [ClientEvaluation(1), ClientEvaluation(2)], "Two ClientEvaluations of one stack are named 'personal'"),
    (lambda: [PersonalParameters(HEAD), Sign(scope="tensor")], "of which PersonalParameters keeps some"),
]


@pytest.mark.parametrize(("make", "message"), ARGUMENTS)
def test_arguments(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011  # the message is compared whole
        make()
    assert message in str(refused.value)


@pytest.mark.parametrize(("make", "message"), STACKS)
def test_stacks(make: Callable[[], list[FederatedCallback]], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        train(make(), tmp_path)
    assert message in str(refused.value)
    assert not list(tmp_path.glob("run_*"))
