"""Every probe on a tiny transformer as Hugging Face makes it: dictionaries in, an object with a loss out."""

import inspect
import json
import math
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import trimtab
from tests.probes.untouched import untouched
from trimtab import probes
from trimtab.probes import Ablation, BatchNoise, Conditioning, Fisher
from trimtab.probes.batches import split_batch
from trimtab.probes.labelled import AccuracyProbe
from trimtab.probes.result import Probe
from trimtab.probes.surface import Surface

transformers = pytest.importorskip("transformers", reason="transformers is not installed; it is in the dev extra")

VOCABULARY, LENGTH, SAMPLES = 40, 7, 12


def every_probe() -> list[type[Probe[Any]]]:
    """Those that the package exports; accuracy is of classes of whole samples, see `test_units_of_a_transformer`."""
    exported = (getattr(probes, name) for name in probes.__all__)
    kinds = [each for each in exported if inspect.isclass(each) and issubclass(each, Probe)]
    return [kind for kind in kinds if not inspect.isabstract(kind) and not issubclass(kind, AccuracyProbe)]


def bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=16,
        num_labels=3,
    )
    return transformers.BertForSequenceClassification(config)


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def batch_for(kind: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(1, VOCABULARY, (SAMPLES, LENGTH), generator=generator)
    mask = torch.ones_like(words)
    mask[::3, -2:] = 0
    labels = torch.arange(SAMPLES) % 3 if kind == "bert" else words.masked_fill(mask == 0, -100)
    return {"input_ids": words, "attention_mask": mask, "labels": labels}


def loss_fn(model: Any, batch: Any) -> Tensor:
    return model(**batch).loss


@pytest.fixture(params=["bert", "gpt2"])
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    model = {"bert": bert, "gpt2": gpt2}[request.param]()
    return model.train(), batch_for(request.param)


def test_gradient(case: tuple[nn.Module, dict[str, Tensor]]) -> None:
    model, batch = case
    with untouched(model):
        value, gradient = Surface(model, loss_fn, batch).gradient()
    loss = loss_fn(model, batch)  # with the same dropout
    loss.backward()
    assert value == pytest.approx(loss.item())
    for name, parameter in model.named_parameters():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(gradient[name], expected)


def test_units_of_a_transformer() -> None:
    torch.manual_seed(0)
    model, batch = bert(), batch_for("bert")
    probe = Ablation(
        pair=lambda batch: (batch["input_ids"], batch["labels"]),
        forward=lambda model, ids: model(input_ids=ids).logits,
        layers="*.intermediate_act_fn",
        shares=(1.0,),
        orders=1,
    )
    found = probe(model, loss_fn, batch)
    assert found.problem is None and found.units == 2 * 48


@pytest.mark.parametrize("kind", every_probe(), ids=lambda kind: kind.__name__)
def test_every_probe(kind: type[Probe[Any]], case: tuple[nn.Module, dict[str, Tensor]]) -> None:
    model, batch = case
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.warns(UserWarning, match="BNP leaves these") if _tied(model) else nullcontext():
        bnp = trimtab.BNP(model).attach(optimizer)
    loss_fn(model, batch).backward()
    optimizer.step()
    offered = {"optimizer": optimizer, "bnp": bnp, "max_layers": 3, "units": 1}
    if kind is Fisher:
        offered["forward"] = lambda model, batch: model(**batch).logits
    probe = kind(**{name: value for name, value in offered.items() if name in inspect.signature(kind).parameters})
    with untouched(model, optimizer, bnp):
        found = probe(model, loss_fn, batch)
        again = probe(model, loss_fn, transformers.BatchEncoding(batch))
    assert found.problem is None
    assert json.dumps(again.to_dict()) == json.dumps(found.to_dict())
    bnp.detach()


def _tied(model: nn.Module) -> bool:
    return isinstance(model, transformers.GPT2LMHeadModel)


def test_our_probes_are_among_them() -> None:
    assert {Conditioning, BatchNoise} <= set(every_probe())


def test_conditioning_of_the_layers() -> None:
    torch.manual_seed(0)
    model, batch = bert().eval(), batch_for("bert")
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    found = Conditioning()(model, loss_fn, batch)
    assert found.left_out == {} and len(found.layers) == 14
    layers = dict(model.named_modules())
    for name in ("bert.encoder.layer.1.attention.self.key", "bert.encoder.layer.1.output.dense", "classifier"):
        seen: list[Tensor] = []
        handle = layers[name].register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0].detach()))
        loss_fn(model, batch)
        handle.remove()
        rows = seen[0].reshape(-1, seen[0].shape[-1]).double().numpy()
        values = np.linalg.svd(np.column_stack([np.ones(len(rows)), rows]), compute_uv=False)
        one = found.layers[name]
        assert one.rows == (SAMPLES if name == "classifier" else SAMPLES * LENGTH)
        assert one.inputs == pytest.approx(values[0] / values[one.rank - 1], rel=0.02)
    # After LayerNorm the features of a token sum to 0 (γ is 1 and β 0 at the start): a rank is missing.
    assert found.layers["bert.encoder.layer.1.attention.self.key"].rank == 32
    assert all(one.units == 3 and one.hessian > 1 for name, one in found.layers.items() if "self.key" not in name)


def test_what_conditioning_leaves_out() -> None:
    """Tied embeddings are not for BNP, nor for this; Conv1D is transformers' own, and only BNP knows it."""
    torch.manual_seed(0)
    found = Conditioning()(gpt2(), loss_fn, batch_for("gpt2"))
    assert found.left_out.pop("lm_head") == "it shares parameters with 'transformer.wte'" and not found.layers
    assert len(found.left_out) == 8 and {*found.left_out.values()} == {"the rows of Conv1D are not known"}


def test_noise_of_the_gradient() -> None:
    """By hand, the parts all beginning with the same random state."""
    torch.manual_seed(0)
    model, batch = bert().train(), batch_for("bert")
    found = BatchNoise(parts=3)(model, loss_fn, batch)
    assert (found.parts, found.part_size, found.layers, found.left_out) == (3, 4, {}, {})
    gradients = []
    for part in split_batch(batch, 3):
        with torch.random.fork_rng():
            grads = torch.autograd.grad(loss_fn(model, part), list(model.parameters()), materialize_grads=True)
        gradients.append(torch.cat([g.flatten() for g in grads]).double().numpy())
    trace = 4 * np.var(gradients, axis=0, ddof=1).sum()
    square = (np.mean(gradients, axis=0) ** 2).sum() - trace / SAMPLES
    assert found.gradient_trace == pytest.approx(trace, rel=1e-4)
    assert found.gradient_square == pytest.approx(square, rel=1e-4, abs=1e-4 * trace)
    assert found.noise_scale == pytest.approx(trace / square if square > 0 else math.nan, rel=1e-3, nan_ok=True)
