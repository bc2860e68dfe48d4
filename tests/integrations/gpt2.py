"""A tiny GPT-2 and words for it."""

from typing import Any

import torch
from torch import Tensor


def gpt2(**settings: Any) -> Any:
    """Without dropout, in float64."""
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=20, n_embd=8, n_layer=2, n_head=2, n_positions=8, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **settings,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).double()


def words(seed: int) -> Tensor:
    return torch.randint(20, (3, 6), generator=torch.Generator().manual_seed(seed))
