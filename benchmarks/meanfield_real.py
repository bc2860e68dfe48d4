"""What `trimtab.predict` says of real architectures, predicted and measured (needs timm).

    python benchmarks/meanfield_cross.py inputs                                # images of CIFAR-10, to take along
    python benchmarks/meanfield_real.py --device cuda --shard 0/3 --out FILE   # but for what is in cross/real*.jsonl
    python benchmarks/meanfield_real.py --models resnet18 --networks 8 --out FILE   # and the mean of eight networks
    python benchmarks/meanfield_real.py --table FILE [FILE …]

Models of timm as it makes them, with ten classes, on 64×64 inputs: white noise, and CIFAR-10 at twice its size. Each is
measured once, with its own weights, in train mode, all outputs; beside it stand the mean of drawn networks and the
formulas of mean field, with all that each says of what it leaves out. What networks are drawn for is the mean over
fresh ones, so that the ratio to one of them has the difference between networks in it: with `--networks` several are
measured, each with weights of its own.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from json_lines import append_line
from meanfield_cross import read
from torch import Tensor, nn

MODELS = {
    "vit_tiny_patch16_224": {"img_size": 64},
    "swin_tiny_patch4_window7_224": {"img_size": 64, "window_size": 4},
    "resnet18": {},
    "resnet50": {},
    "resnet18d": {},
    "resnetv2_50": {},
    "densenet121": {},
    "vgg11_bn": {},
    "mobilenetv2_100": {},
    "mobilenetv3_small_100": {},
    "efficientnet_b0": {},
    "regnety_002": {},
    "convnext_atto": {},
    "mixer_s32_224": {"img_size": 64},
}
LOSSES = ("squared", "cross_entropy")
SAMPLES, SIZE = 32, 64


def make(name: str, seed: int = 0) -> nn.Module:
    """A model of timm with fresh weights."""
    import timm

    torch.manual_seed(seed)
    model: nn.Module = timm.create_model(name, num_classes=10, **MODELS[name])
    return model


def inputs(data: str, folder: Path) -> Tensor:
    """White noise, or standardized images."""
    if data == "white":
        return torch.randn(SAMPLES, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
    x = torch.from_numpy(np.load(folder / "inputs.npz")["cifar10"][:SAMPLES]).float()
    x = (x - x.mean((0, 2, 3), keepdim=True)) / x.std((0, 2, 3), keepdim=True)
    return F.interpolate(x, scale_factor=2, mode="bilinear")


def one(name: str, data: str, loss: Any, options: argparse.Namespace) -> dict[str, Any]:
    """One model on some data, with a loss."""
    import trimtab
    from trimtab.probes import CannotMeasure

    model, x = make(name).to(options.device), inputs(data, options.folder).to(options.device)
    record: dict[str, Any] = {"model": name, "data": data, "loss": loss, "samples": SAMPLES, "device": options.device}
    for kind, measure in (("measured", True), ("predicted", False)):
        begin = time.perf_counter()
        try:
            found = trimtab.predict(model, x.shape[1:], inputs=x, loss=loss, measure=measure)
        except (ValueError, ArithmeticError, RuntimeError, CannotMeasure) as error:
            record[f"{kind}_error"] = f"{type(error).__name__}: {error}"
            continue
        record |= {kind: found.lambda_max, f"{kind}_seconds": round(time.perf_counter() - begin, 2)}
        if not measure:
            draws = None if found.drawn is None else found.drawn.draws
            spread = None if found.drawn is None else round(found.drawn.spread, 3)
            record |= {"draws": draws, "spread": spread, "unseen": found.unseen}
            record |= {"formulas": found.predicted, "formulas_unseen": found.formulas_unseen}
    if options.networks > 1 and "measured" in record:
        others = (make(name, seed).to(options.device) for seed in range(1, options.networks))
        found = [trimtab.predict(other, x.shape[1:], inputs=x, loss=loss, measure=True) for other in others]
        record["networks"] = [record["measured"], *(each.lambda_max for each in found)]
    return record


def table(paths: list[Path]) -> None:
    """Ratios to what was measured, and in brackets how many sentences say what is left out."""
    rows = sorted(read(paths), key=lambda row: (list(MODELS).index(row["model"]), row["data"], row["loss"]))
    if all("networks" in row for row in rows):
        table_of_means(rows)
        return
    print("| model | data | loss | measured | drawn networks ÷ measured | spread | formulas ÷ measured |")
    print("|---|---|---|---|---|---|---|")
    sentences: dict[str, list[str]] = {}
    for row in rows:
        if "measured" not in row or "predicted" not in row:
            error = row.get("measured_error") or row.get("predicted_error")
            print(f"| {row['model']} | {row['data']} | {row['loss']} | {error} | – | – | – |")
            continue
        drawn = f"{row['predicted'] / row['measured']:.2f}" if row["draws"] else "–"
        drawn += f" ({len(row['unseen'])})" if row["draws"] and row["unseen"] else ""
        formulas = "–" if row["formulas"] is None else f"{row['formulas'] / row['measured']:.2f}"
        formulas += f" ({len(row['formulas_unseen'])})" if row["formulas_unseen"] else ""
        spread = f"{100 * row['spread']:.0f} %" if row["draws"] else "–"
        values = f"{row['measured']:.4g} | {drawn} | {spread} | {formulas}"
        print(f"| {row['model']} | {row['data']} | {row['loss'].replace('_', '-')} | {values} |")
        sentences.setdefault(row["model"], [])
        sentences[row["model"]] += [s for s in row["formulas_unseen"] if s not in sentences[row["model"]]]
    for model, said in sentences.items():
        print(f"\n{model}: " + " ".join(said))


def table_of_means(rows: list[dict[str, Any]]) -> None:
    """The mean over networks with fresh weights, its standard error, and the mean of drawn networks beside it."""
    print("| model | data | loss | networks | mean | standard error | first ÷ mean | drawn networks ÷ mean |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        values = np.array(row["networks"])
        mean, error = values.mean(), values.std(ddof=1) / len(values) ** 0.5
        drawn = f"{row['predicted'] / mean:.2f}" if row.get("draws") else "–"
        drawn += f" ({len(row['unseen'])})" if row.get("draws") and row["unseen"] else ""
        about = f"{row['model']} | {row['data']} | {row['loss'].replace('_', '-')} | {len(values)}"
        print(f"| {about} | {mean:.4g} | {100 * error / mean:.0f} % | {values[0] / mean:.2f} | {drawn} |")


def main() -> None:
    """Measure, or print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--folder", type=Path, default=Path("cross"))
    parser.add_argument("--out", type=Path, default=Path("cross/real.jsonl"))
    parser.add_argument("--table", type=Path, nargs="+")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--networks", type=int, default=1, help="so many fresh networks are measured")
    parser.add_argument("--limit-seconds", type=float, default=float("inf"))
    options = parser.parse_args()
    if options.table:
        table(options.table)
        return
    number, count = map(int, options.shard.split("/"))
    begin = time.perf_counter()
    done = {(one["model"], one["data"], one["loss"]) for one in read(sorted(options.folder.glob("real*.jsonl")))}
    for name in options.models[number::count]:
        for data in ("white", "cifar10"):
            for loss in LOSSES:
                if (name, data, loss) in done:
                    continue
                if time.perf_counter() - begin > options.limit_seconds:
                    return
                record = one(name, data, loss, options)
                append_line(options.out, record)
                print(json.dumps(record, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
