"""A Llama of torch operations whose tensors have the names that engines load, and its training."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from pytest_llmperf.engines.models import Shape

EPSILON = 1e-5
ROPE_THETA = 10000.0


def rotated(values: Tensor) -> Tensor:
    """Rotary position embedding of [batch, heads, positions, head_dim], the two halves of a head as pairs."""
    positions, half = values.shape[2], values.shape[3] // 2
    frequencies = ROPE_THETA ** (-torch.arange(half) / half)
    angles = torch.arange(positions)[:, None] * frequencies
    cosine, sine = angles.cos().to(values.dtype), angles.sin().to(values.dtype)
    first, second = values[..., :half], values[..., half:]
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


class Attention(nn.Module):
    """Causal attention with grouped queries; `inputs` is the width of its input."""

    def __init__(self, shape: Shape, inputs: int) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(inputs, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(inputs, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(inputs, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        def heads(values: Tensor) -> Tensor:
            return values.unflatten(-1, (-1, self.shape.head_dim)).transpose(1, 2)

        repeats = self.shape.heads // self.shape.kv_heads
        queries, keys = rotated(heads(self.q_proj(hidden))), rotated(heads(self.k_proj(hidden)))
        keys, values = (part.repeat_interleave(repeats, dim=1) for part in (keys, heads(self.v_proj(hidden))))
        attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return self.o_proj(attended.transpose(1, 2).flatten(-2))


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden))


class Layer(nn.Module):
    """One decoder layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden, EPSILON)
        self.self_attn = Attention(shape, shape.hidden)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, EPSILON)
        self.mlp = Mlp(shape)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden))
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Decoder(nn.Module):
    """Embedding, layers and the last norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, EPSILON)

    def forward(self, tokens: Tensor) -> list[Tensor]:
        """The input of each layer, and the output of the last layer before the norm."""
        states = [self.embed_tokens(tokens)]
        for layer in self.layers:
            states.append(layer(states[-1]))
        return states


class Llama(nn.Module):
    """LlamaForCausalLM without a cache."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.model = Decoder(shape)
        self.lm_head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        for name, parameter in self.named_parameters():
            if not name.endswith("norm.weight"):
                embeds = "embed" in name or "head" in name
                nn.init.normal_(parameter, std=0.02 if embeds else parameter.shape[-1] ** -0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.lm_head(self.model.norm(self.model(tokens)[-1]))


def untied(shape: Shape, name: str, **sizes: int) -> Shape:
    """A smaller shape of the same tokens."""
    return replace(shape, name=name, **sizes)  # type: ignore[arg-type]


def train(model: nn.Module, loss_of: Callable[[int], Tensor], steps: int, rate: float, name: str) -> None:
    """Minimise `loss_of(step)` with a warm-up and a cosine decay of the learning rate."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    warm_up = min(100, steps // 10)
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimiser,
        [torch.optim.lr_scheduler.LinearLR(optimiser, 0.01, total_iters=warm_up),
         torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps - warm_up, eta_min=rate / 50)],
        [warm_up],
    )
    began = time.monotonic()
    for step in range(steps):
        loss = loss_of(step)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"{name}: step {step}, loss {loss.item():.4f}, {time.monotonic() - began:.0f} s", flush=True)
