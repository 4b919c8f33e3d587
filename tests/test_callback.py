"""The base class: hooks that are there or not, and stacks without a meaning."""

from pathlib import Path
from typing import Any

import pytest
from contract.methods import METHODS
from worlds import HEAD, mlp, train

from lfl.aggregation import MeanAggregator
from lfl.callback import (
    FederatedCallback,
    _warn_of_uncalled_hooks,
    check_features,
    check_gradient,
    check_stack,
    overrides,
    refuse_lossy_codecs,
    settle_weighting,
    submodule_of,
)
from lfl.callbacks import (
    FLSS,
    FLSSGD,
    FLSSVRG,
    SSF,
    ClientMomentum,
    FedDC,
    FedDyn,
    FedNova,
    FedSub,
    PersonalParameters,
    Proximal,
    Scaffold,
    SharpnessAware,
    Sign,
    TopK,
)
from lfl.client.layout import ParameterLayout
from lfl.engine import LocalPhase

LAYOUT = ParameterLayout.of_parameters(mlp())


class Unique(FederatedCallback):
    is_unique = True


class Whole(FederatedCallback):
    whole_model = True


class Owning(Whole):
    """Clients have models of their own beside the shared one."""

    def personalize(self, ids, params):
        params.zero_()


class Other(Owning):
    pass


class Choosy(FederatedCallback):
    def check(self, layout: ParameterLayout) -> None:
        raise ValueError(f"D={layout.dim}")

    def check_stack(self, stack: list[FederatedCallback]) -> None:
        raise AssertionError("The layout is checked before.")


def test_coordinates_move_all_parameters(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="SSF moves all parameters by coordinates"):
        train([SSF()], tmp_path, local_phases=[LocalPhase(HEAD)])


def test_a_hook_is_there_if_some_class_of_ones_own_has_it() -> None:
    class Later(Whole):
        pass

    class Encoding(Later):
        def encode(self, cohort, payload):
            return payload

    class Latest(Encoding):
        pass

    assert overrides(Latest(), "encode")
    assert not overrides(Later(), "encode")
    assert not overrides(Latest(), "decode")


@pytest.mark.parametrize(
    ("stack", "message"),
    [
        ([SSF(), FedSub()], "SSF and FedSub both want the local optimizer to run on their own coordinates"),
        ([Unique(), Scaffold(), Unique()], "`callbacks` has two Unique, which would get into each other's way"),
        ([Whole(), PersonalParameters(HEAD)], "PersonalParameters and Whole have no meaning together"),
        ([Owning(), Other()], "Owning and Other both say what a client's own model is"),
        ([Owning(), PersonalParameters(HEAD)], "PersonalParameters and Owning have no meaning together"),
        ([Choosy()], "D=832"),
    ],
)
def test_stacks_that_do_not_go_together(stack: list[FederatedCallback], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_stack(stack, LAYOUT, has_frozen_phases=False)


def test_stacks_that_do() -> None:
    check_stack([Unique(), Whole(), Scaffold(), Sign()], LAYOUT, has_frozen_phases=True)
    check_stack([Owning(), Whole()], LAYOUT, has_frozen_phases=False)
    refuse_lossy_codecs("Mine", [Scaffold()])
    with pytest.raises(ValueError, match="Mine and Sign have no meaning together"):
        refuse_lossy_codecs("Mine", [Scaffold(), Sign()])


@pytest.mark.parametrize(
    ("gradient", "found"), [(lambda params: params, "got one of \\(params\\)"), (None, "got None"), (3, "got 3")]
)
def test_what_is_no_gradient_function_is_named(gradient: Any, found: str) -> None:
    with pytest.raises(TypeError, match=f"`Scaffold.wrap_gradient` must return a function of .*, {found}"):
        check_gradient(Scaffold(), gradient)
    check_gradient(Scaffold(), lambda params, step: params)


def test_the_base_does_nothing() -> None:
    base, gradient, payload = FederatedCallback(), object(), object()
    assert base.wrap_gradient(None, gradient) is gradient  # type: ignore[arg-type]
    assert base.encode(None, payload) is payload  # type: ignore[arg-type]
    assert base.decode(None, payload) is payload  # type: ignore[arg-type]
    assert base.client_loss(None, payload) is payload  # type: ignore[arg-type]
    assert base.change_batch(None, slice(0), payload) is payload  # type: ignore[arg-type]
    assert base.coordinates(None) is None  # type: ignore[arg-type]
    assert base.ends_encoding(None) is False  # type: ignore[arg-type]
    assert base.linear
    assert (base.is_unique, base.observes, base.whole_model, base.batches_per_step) == (False, False, False, 1)


def hooked(**names: Any) -> FederatedCallback:
    return type("Mine", (FederatedCallback,), names)()  # type: ignore[no-any-return]


def method(self: Any, *arguments: Any) -> Any:
    return arguments[-1] if arguments else None


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["wrap_gradients"],
            "^`Mine.wrap_gradients` is never called: lfl has no such hook; did you mean `wrap_gradient`",
        ),
        (["encode_"], "did you mean `encode`"),
        (["coordinate"], "did you mean `coordinates`"),
        (["client_losses"], "did you mean `client_loss`"),
        (["personalise"], "did you mean `personalize`"),
        (["on_agregate"], "did you mean `on_aggregate`"),
        (["on_train_batch_end"], "^`Mine.on_train_batch_end` is never called: lfl has no such hook"),
        (["on_sanity_check_end"], r"^`Mine.on_sanity_check_end` is never called: lfl has no such hook"),
        (["decode"], "^`Mine.decode` is never called, for there is no `encode` beside it"),
        (["state_dict"], "^`Mine.state_dict` is saved and never restored: .*, for there is no `load_state_dict`"),
        (["load_state_dict"], "^`Mine.load_state_dict` is given nothing, for there is no `state_dict` beside it"),
    ],
)
def test_what_looks_like_a_hook_and_is_none_is_warned_of(names: list[str], message: str) -> None:
    with pytest.warns(UserWarning, match=message) as warned:
        check_stack([hooked(**dict.fromkeys(names, method))], LAYOUT, has_frozen_phases=False)
    assert len(warned) == 1


def test_misspelt_attributes_are_warned_of() -> None:
    with pytest.warns(
        UserWarning, match="^`Mine.observe` is never read: lfl has no such attribute; did you mean `observes"
    ):
        check_stack([hooked(observe=True)], LAYOUT, has_frozen_phases=False)


def test_hooks_in_wrong_places_are_warned_of() -> None:
    on_object = FederatedCallback()
    on_object.on_round_end = lambda round: None  # type: ignore[method-assign]
    with pytest.warns(UserWarning, match="^`on_round_end` is set on an object of FederatedCallback and never called"):
        check_stack([on_object], LAYOUT, has_frozen_phases=False)

    class Mixin:
        def on_round_end(self, round: Any) -> None: ...

    class Hidden(FederatedCallback, Mixin):
        pass

    class Found(Mixin, FederatedCallback):
        pass

    with pytest.warns(UserWarning, match="^`Hidden` inherits `on_round_end` from a class that comes after"):
        check_stack([Hidden()], LAYOUT, has_frozen_phases=False)
    check_stack([Found()], LAYOUT, has_frozen_phases=False)


def test_names_of_ones_own_are_left_alone() -> None:
    names = [
        "encode_rows",
        "coordinates_of",
        "compress",
        "weights",
        "masks",
        "_encode",
        "check_entries",
        "helper",
        "gradients",
    ]
    used = {"encode": method, "decode": method, "encoded": method, "state_dict": method, "load_state_dict": method}
    mine = hooked(**dict.fromkeys(names, method), **used, slot="a", feature_names=(), on=True)
    mine.check = lambda layout: None  # type: ignore[method-assign]  # called wherever it is
    check_stack([mine], LAYOUT, has_frozen_phases=False)


def yielding(self: Any, round: Any) -> Any:
    yield round


async def waiting(self: Any, round: Any) -> None: ...


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        (None, "^`Mine.on_round_end` must be a method, got None: leave it out"),
        (True, "^`Mine.on_round_end` must be a method, got True"),
        (yielding, "^`Mine.on_round_end` has `yield` or `async`"),
        (waiting, "^`Mine.on_round_end` has `yield` or `async`"),
    ],
)
def test_hooks_that_cannot_be_called_are_refused(hook: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_stack([hooked(on_round_end=hook)], LAYOUT, has_frozen_phases=False)


def test_lfls_own_callbacks_are_not_warned_of() -> None:
    for stack in METHODS.values():
        for callback in stack():
            _warn_of_uncalled_hooks(callback)


class ByExamples(FederatedCallback):
    weighting = "examples"


class Misspelt(FederatedCallback):
    weighting = "clients"  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        ([], "examples"),
        ([Proximal(), SharpnessAware(), TopK(0.1), FedNova()], "examples"),
        ([ClientMomentum(alpha=1.0), FedDyn(0.0, server_term=False)], "examples"),
        *(
            ([SharpnessAware(), method], "uniform")
            for method in (
                *(Scaffold(), FedDyn(), FedDC(), ClientMomentum(), SSF(), FedSub(), FLSS(), FLSSGD(5.0)),
                *(FLSSVRG(5.0, 5.0, 2), PersonalParameters(HEAD)),
            )
        ),
    ],
)
def test_auto_takes_the_weighting_that_a_stack_is_stated_for(stack: list[FederatedCallback], expected: str) -> None:
    aggregator = MeanAggregator()
    settle_weighting(aggregator, stack)
    assert aggregator.weighting == expected


def test_another_weighting_is_kept_and_warned_of() -> None:
    aggregator = MeanAggregator("examples")
    with pytest.warns(UserWarning, match=r"`aggregator.weighting=examples` of MeanAggregator is kept, but Scaffold is"):
        settle_weighting(aggregator, [Proximal(), Scaffold()])
    assert aggregator.weighting == "examples"
    settle_weighting(aggregator, [Proximal(), ByExamples()])


def test_two_methods_that_are_stated_for_different_weightings() -> None:
    with pytest.raises(
        ValueError, match="cannot follow both: Scaffold is stated for 'uniform', ByExamples for 'examples'"
    ):
        settle_weighting(MeanAggregator(), [Scaffold(), ByExamples()])
    with pytest.raises(ValueError, match="`weighting=clients` of Misspelt must be one of examples, uniform"):
        settle_weighting(MeanAggregator(), [Misspelt()])


def test_a_submodule_by_its_name() -> None:
    model = mlp()
    assert submodule_of(model, "backbone.head", "Mine", "head") is model.backbone.head
    with pytest.raises(ValueError, match=r"^`head=backbone.heat` of Mine names no submodule of Classifier; near it"):
        submodule_of(model, "backbone.heat", "Mine", "head")
    with pytest.raises(ValueError, match=r"^`head=` of Mine names .* Classifier; it has backbone, backbone.features, "):
        submodule_of(model, "", "Mine", "head")


def test_features_that_are_not_there_are_named_with_their_setting() -> None:
    callback = FederatedCallback()
    callback.features = callback.global_features = ("backbone",)
    check_features(callback, mlp())
    callback.layer, callback.features = "zzz", ("zzz",)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"^`layer=zzz` of FederatedCallback names no submodule of Classifier; it has"):
        check_features(callback, mlp())


def test_a_callback_may_leave_a_hook_of_its_class_unused() -> None:
    """FLSS wraps gradients only where it projects them: else a step is taken in one piece, as FedAvg's."""
    assert not overrides(FLSS(project="updates"), "wrap_gradient")
    assert overrides(FLSS(project="gradients"), "wrap_gradient")
    assert overrides(FLSS(project="updates"), "encode")
