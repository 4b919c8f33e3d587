"""FedSub: the identity is SCAFFOLD, and the variant `stale`, whose absent clients update their duals too."""

from pathlib import Path

import torch
from worlds import train

from lfl.callbacks import FedSub, Scaffold
from lfl.checkpointing import Checkpointing
from lfl.participation import FixedParticipation, FullParticipation
from lfl.subspace import IdentitySubspace, LayerwiseSubspace


def test_fedsub_with_the_identity_and_full_participation_is_scaffold(tmp_path: Path) -> None:
    options = {"participation": FullParticipation(), "max_rounds": 5, "local_steps": 4}
    scaffold, fedsub = (train([c], tmp_path, **options) for c in (Scaffold(), FedSub(IdentitySubspace())))
    torch.testing.assert_close(fedsub.server.vector, scaffold.server.vector, rtol=0, atol=1e-11)
    duals = fedsub.store.gather("fedsub/dual", torch.arange(8))
    assert duals.sum(dim=0).abs().max() < 1e-13
    assert duals.abs().max() > 1e-3


def test_stale_duals_by_hand(tmp_path: Path) -> None:
    """Full rank, so that a basis is a rotation. Client 1 takes part in round 1 only, client 2 never.

    lambda_1 = (z_1 - zbar_1) + (z_1 - zbar_2), lambda_2 = -zbar_1 - zbar_2, with one basis for both rounds.
    """
    means = []

    class Watched(FedSub):
        def on_server_step(self, round) -> None:
            means.append(round.update_coordinates.clone())
            super().on_server_step(round)

    callback = Watched(LayerwiseSubspace(0.3), refresh_every=2, variant="stale")
    trainer = train([callback], tmp_path, max_rounds=2, participation=FixedParticipation([[0, 1], [0, 3]]))
    store = trainer.store
    ids = torch.tensor([1, 2])
    last = store.gather("fedsub/last", ids)
    assert not last[1].any()
    torch.testing.assert_close(store.gather("fedsub/dual", ids), 2 * last - means[0] - means[1], rtol=0, atol=1e-14)


def test_with_all_clients_stale_is_public(tmp_path: Path) -> None:
    vectors = [
        train(
            [FedSub(LayerwiseSubspace(0.3), refresh_every=2, variant=variant)],
            tmp_path,
            participation=FullParticipation(),
        ).server.vector
        for variant in ("public", "stale")
    ]
    assert torch.equal(*vectors)


def test_stale_duals_survive_a_restart(tmp_path: Path) -> None:
    checkpoint = Checkpointing(every_n_rounds=2, keep_all=True)
    stack = [FedSub(LayerwiseSubspace(0.3), refresh_every=2, variant="stale")]
    unbroken = train(stack, tmp_path / "unbroken", max_rounds=5, checkpoint=checkpoint)
    saved = Path(unbroken.log_dir) / "checkpoints" / "round_000002.ckpt"
    resumed = train(stack, tmp_path / "resumed", ckpt_path=str(saved), max_rounds=5, checkpoint=checkpoint)
    assert torch.equal(resumed.server.vector, unbroken.server.vector)
