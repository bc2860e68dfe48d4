"""BNP in the Trainer of transformers: a small GPT-2 learns to count, and goes on from a checkpoint.

It needs `pip install '.[transformers]'`, and is run by `python examples/trainer_bnp.py`.
"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from trimtab.integrations.transformers import BNPCallback, MonitorCallback
from trimtab.probes import Landscape

WORDS, LENGTH = 16, 12


def counting(samples):
    """Sequences a, a + d, a + 2d, ... modulo the number of words."""
    start, step = torch.randint(WORDS, (2, samples, 1))
    words = (start + step * torch.arange(LENGTH)) % WORDS
    return [{"input_ids": row, "labels": row} for row in words]


def gpt2():
    config = GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return GPT2LMHeadModel(config)


def train(data, steps, **resume):
    """Train to this step, and return the trainer and its callbacks."""
    args = TrainingArguments(
        "counting", max_steps=steps, per_device_train_batch_size=10, optim="sgd", learning_rate=0.3, save_steps=50,
        lr_scheduler_type="constant", use_cpu=True, report_to="none", disable_tqdm=True, logging_steps=50,
    )  # fmt: skip
    bnp = BNPCallback(tokens="samples")  # the loss is a mean over all tokens
    monitor = MonitorCallback(lambda optimizer: [Landscape(optimizer=optimizer)], every=50)
    trainer = Trainer(gpt2(), args, train_dataset=data, eval_dataset=counting(100), callbacks=[bnp, monitor])
    trainer.train(**resume)
    return trainer, bnp, monitor


if __name__ == "__main__":
    set_seed(0)
    data = counting(1000)
    train(data, steps=50)
    trainer, bnp, monitor = train(data, steps=100, resume_from_checkpoint=True)  # with BNP's, from bnp.pt
    print(bnp.report)
    found = monitor.results["landscape"]
    edge = ", an edge of the range" if found.smoothness_at_edge else ""
    print(f"smoothness {found.smoothness:.3g}, {found.smoothness_multiple:g} steps away{edge}")
    print(f"loss {trainer.evaluate()['eval_loss']:.3f}")
