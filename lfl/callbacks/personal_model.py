"""The base of methods in which every client has a whole model of its own, beside the one that is shared."""

from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lfl.callback import FederatedCallback
from lfl.callbacks.extra_pass import refuse_metric_objects
from lfl.federation import Federation
from lfl.hooks import NonFiniteUpdateError, is_finite
from lfl.round import Cohort


class PersonalModel(FederatedCallback):
    """Base of methods that keep a personal model [D] of every client seen so far; it is never sent.

    A subclass trains the rows ``cohort.rows[slot]`` [C, D], which hold x when a cohort starts. They become the clients'
    personal models when it ends, unless a client's update was refused. Clients that were never seen have x.

    Attributes:
        slot: the name of the rows, in the cohort and in the client store.
    """

    is_unique = True
    whole_model = True  # x is shared as a whole: the personal models are no parts of it

    slot: ClassVar[str]

    @override
    def on_run_start(self, federation: Federation) -> None:
        refuse_metric_objects(self, federation)
        self._store = federation.store
        self._store.declare(self.slot, federation.layout.dim, federation.layout.dtype)

    @override
    def personalize(self, ids: Tensor, params: Tensor) -> None:
        seen = self._store.has_rows(self.slot, ids).nonzero().squeeze(1)
        params[seen.to(params.device)] = self._store.gather(self.slot, ids[seen])

    @override
    def on_cohort_start(self, cohort: Cohort) -> None:
        cohort.rows[self.slot] = cohort.start.clone(memory_format=torch.contiguous_format)

    @override
    def on_cohort_end(self, cohort: Cohort) -> None:
        models = cohort.rows[self.slot]
        if not is_finite(models):
            clients = cohort.ids[~torch.isfinite(models).all(dim=1).cpu()].tolist()
            raise NonFiniteUpdateError(
                f"The personal model of client(s) {', '.join(map(str, clients))} in round {cohort.round.number} is not "
                f"finite (NaN or inf), though what {type(self).__name__} shares is: lower its learning rate, or `lam`."
            )
        self._store.scatter(self.slot, cohort.ids, models)
