"""Models are built when they are first used, by any number of threads at once."""

import pkgutil
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from threading import Barrier

import rebaser_core
from rebaser_core.versioning import WireModel

THREADS = 8


def test_threads_that_use_a_model_first_all_read_it() -> None:
    """Of models that contain each other, in both orders: nothing else decides who builds."""
    for round_ in range(20):

        class Inner(WireModel):
            number: int

        class Outer(WireModel):
            the_inner: Inner
            more: tuple[Inner, ...] = ()

        barrier = Barrier(THREADS)

        def read(
            index: int,
            barrier: Barrier = barrier,
            inner: type[Inner] = Inner,
            outer: type[Outer] = Outer,
        ) -> int:
            barrier.wait()
            if index % 2:
                return inner.from_wire({"number": index}).number
            return outer.from_wire({"theInner": {"number": index}}).the_inner.number

        with ThreadPoolExecutor(THREADS) as threads:
            assert list(threads.map(read, range(THREADS))) == list(range(THREADS)), round_


def test_every_model_can_be_built() -> None:
    """A mistake in one would only show when it is first used."""
    for module in pkgutil.walk_packages(rebaser_core.__path__, "rebaser_core."):
        import_module(module.name)

    models = list(_subclasses(WireModel))

    assert len(models) > 20
    for model in models:
        model.model_rebuild()
        assert model.__pydantic_complete__, model


def _subclasses(model: type[WireModel]) -> set[type[WireModel]]:
    direct = {each for each in model.__subclasses__() if each.__module__.startswith("rebaser_")}
    return direct.union(*map(_subclasses, direct))
