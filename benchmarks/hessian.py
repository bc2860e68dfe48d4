"""The largest Hessian eigenvalue, ours beside PyHessian and curvlinops: python benchmarks/hessian.py (some minutes).

Same weights, same batch, same tolerance, BatchNorm in evaluation mode, which is all that the others can do; ours in
train mode beside it. Each tolerance is in the sense of its method: what a value is off by (ours), the residual's share
of it (scipy), its change from one iteration to the next (PyHessian, which needs a smaller one to be as good: there is a
line with its default). What a value is really off by is measured against ours at 1e-4. Contenders take turns in one
process. The network is trained for some steps first, on CIFAR-10 if it is there (TRIMTAB_DATA, or data), and on noise
otherwise; --data takes another data set. The fewer the parameters, the more it matters what a product costs beside its
arithmetic: --data mnist --network small, one hidden layer of 32 without BatchNorm, has 25,450 of them. PyHessian and
curvlinops come with: pip install '.[bench]'; without them only ours is measured.
"""

import argparse
import gc
import math
import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, count, islice
from statistics import median

import torch
from torch import Tensor, nn

from trimtab.data import DataError, batches, load
from trimtab.networks import build
from trimtab.norms import Norm
from trimtab.probes import Spectrum
from trimtab.records import machine

Batch = tuple[Tensor, Tensor]
Contender = Callable[[nn.Module, Batch, float], tuple[float, int]]
CRITERION = nn.CrossEntropyLoss()


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy."""
    loss: Tensor = CRITERION(model(batch[0]), batch[1])
    return loss


def ours(model: nn.Module, batch: Batch, tolerance: float, statistics: str) -> tuple[float, int]:
    """Eigenvalue and products by trimtab."""
    probe = Spectrum(statistics=statistics, tolerance=tolerance)  # type: ignore[arg-type]
    found = probe(model, loss_fn, batch)
    if found.problem:
        raise SystemExit(found.problem)
    return found.largest[0], found.products


def pyhessian(model: nn.Module, batch: Batch, tolerance: float) -> tuple[float, int]:
    """Eigenvalue and products by PyHessian's power iteration."""
    theirs = import_module("pyhessian.hessian")  # whose package has a class of the same name

    counted, plain = 0, theirs.hessian_vector_product

    def product(*args: object) -> object:
        nonlocal counted
        counted += 1
        return plain(*args)

    theirs.hessian_vector_product = product
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the reference cycle that it makes
            found = theirs.hessian(model, CRITERION, data=batch, cuda=batch[0].is_cuda)
            (value,), _ = found.eigenvalues(tol=tolerance)
    finally:
        theirs.hessian_vector_product = plain
    return value, counted


def curvlinops(model: nn.Module, batch: Batch, tolerance: float) -> tuple[float, int]:
    """Eigenvalue and products by curvlinops and scipy's eigsh."""
    import numpy as np
    from scipy.sparse.linalg import LinearOperator, eigsh

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from curvlinops import HessianLinearOperator

        matrix = HessianLinearOperator(
            model, CRITERION, [p for p in model.parameters() if p.requires_grad], [batch], check_deterministic=False
        )
    inner, counted = matrix.to_scipy(dtype=np.float32), 0

    def product(vector: np.ndarray) -> np.ndarray:
        nonlocal counted
        counted += 1
        return np.asarray(inner @ vector)

    operator = LinearOperator(inner.shape, matvec=product, dtype=np.float32)
    start = np.random.default_rng(0).standard_normal(inner.shape[0]).astype(np.float32)
    (value,) = eigsh(operator, k=1, which="LA", tol=tolerance, v0=start, return_eigenvectors=False)
    return float(value), counted


def prepared(network: str, data: str, size: int, steps: int, device: str) -> tuple[nn.Module, Batch, str]:
    """A network after some steps, a batch, and what the data are."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    try:
        dataset = load(data)
        passes = (batches(dataset.train, size, dataset=dataset, generator=generator) for _ in count())
        stream = list(islice(chain.from_iterable(passes), steps + 1))
    except DataError:
        if data != "cifar10":
            raise
        stream = [(torch.randn(size, 3, 32, 32), torch.randint(10, (size,))) for _ in range(steps + 1)]
        data = "noise"
    stream = [(x.to(device), y.to(device)) for x, y in stream]
    shape = tuple(stream[0][0].shape[1:])
    if network == "small":
        model: nn.Module = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 32), nn.ReLU(), nn.Linear(32, 10))
    else:
        model = build(network, Norm("bn"), input_shape=shape)
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for batch in stream[:-1]:
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()
    optimizer.zero_grad()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        model(stream[-1][0])  # running averages of a few steps would make another network in evaluation mode
    return model, stream[-1], data


def timed(contender: Contender, model: nn.Module, batch: Batch, tolerance: float) -> tuple[float, ...]:
    """Seconds, processor seconds of all threads, products, eigenvalue."""
    gc.collect()
    begin, processor = time.perf_counter(), time.process_time()
    value, products = contender(model, batch, tolerance)  # numbers, so that a device has finished
    seconds, processor = time.perf_counter() - begin, time.process_time() - processor
    model.zero_grad(set_to_none=True)  # where PyHessian leaves a graph
    return seconds, processor, products, value


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20, help="of training before")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tolerance", type=float, default=1e-2)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    told = parser.parse_args()
    torch.set_num_threads(told.threads)
    model, batch, data = prepared(told.network, told.data, told.batch, told.steps, told.device)
    evaluation, training = partial(ours, statistics="running"), partial(ours, statistics="batch")
    contenders: dict[str, Contender] = {"trimtab": evaluation}
    if find_spec("pyhessian"):
        contenders |= {
            "PyHessian": pyhessian,
            "PyHessian, its 1e-3": lambda model, batch, _: pyhessian(model, batch, 1e-3),
        }
    contenders |= {"curvlinops + eigsh": curvlinops} if find_spec("curvlinops") else {}
    contenders["trimtab, train mode"] = training

    parameters = sum(p.numel() for p in model.parameters())
    where = f"{told.network} ({parameters:,} parameters) after {told.steps} steps on {data}, batch {told.batch}"
    print(f"Largest Hessian eigenvalue to {told.tolerance:g}: {where}.")
    print(f"{told.device}, torch {torch.__version__}, {machine()}, {told.threads} threads.", flush=True)
    model.eval()
    for contender in contenders.values():
        timed(contender, model, (batch[0][:4], batch[1][:4]), 0.5)  # to warm up
    right = evaluation(model, batch, 1e-4)[0], training(model, batch, 1e-4)[0]
    rounds: dict[str, list[tuple[float, ...]]] = {name: [] for name in contenders}
    for _ in range(told.repeats):
        for name, contender in contenders.items():
            rounds[name].append(timed(contender, model, batch, told.tolerance))
    base = median(seconds for seconds, *_ in rounds["trimtab"])
    print(f"{'':<20}{'seconds':>9}{'ratio':>7}{'processor':>11}{'products':>10}{'eigenvalue':>12}{'off by':>9}")
    for name, found in rounds.items():
        seconds, processor, products, value = (median(column) for column in zip(*found, strict=True))
        off = f"{100 * abs(value / right[name.endswith('train mode')] - 1):.2f} %"
        print(f"{name:<20}{seconds:>9.3g}{seconds / base:>7.2f}{processor:>11.3g}{products:>10g}{value:>12.5g}{off:>9}")


if __name__ == "__main__":
    main()
