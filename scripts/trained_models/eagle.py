"""An EAGLE-3 head: one layer that reads hidden states of three of the target's layers and the next token."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from pytest_llmperf.engines.models import Shape
from trained_models.llama import EPSILON, Attention, Llama, Mlp

#: The head reads the target's hidden states after so many layers.
READ_AFTER_LAYERS = (1, 2, 3)
DRAFT_STEPS = 3


class MidLayer(nn.Module):
    """The layer of the head, under the names of EAGLE-3 checkpoints."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden, EPSILON)
        self.hidden_norm = nn.RMSNorm(shape.hidden, EPSILON)
        self.self_attn = Attention(shape, 2 * shape.hidden)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, EPSILON)
        self.mlp = Mlp(shape)

    def forward(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        both = torch.cat((self.input_layernorm(embedded), self.hidden_norm(hidden)), dim=-1)
        hidden = hidden + self.self_attn(both)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class EagleHead(nn.Module):
    """The head without the target's embedding, which engines share with it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.fc = nn.Linear(len(READ_AFTER_LAYERS) * shape.hidden, shape.hidden, bias=False)
        self.midlayer = MidLayer(shape)
        self.norm = nn.RMSNorm(shape.hidden, EPSILON)
        self.lm_head = nn.Linear(shape.hidden, shape.vocab, bias=False)


def draft_loss(head: EagleHead, target: Llama, tokens: Tensor) -> Tensor:
    """Cross entropy against the target's own greedy choices, over several draft steps.

    At position t the head has the target's hidden state of t and the token t + 1, and predicts token t + 2. From the
    second draft step on it has its own output of the step before in place of the target's hidden state.
    """
    with torch.no_grad():
        states = target.model(tokens)
        choices = target.lm_head(target.model.norm(states[-1])).argmax(-1)  # at t: the target's token t + 1
    embedded = target.model.embed_tokens(tokens).detach()
    hidden = head.fc(torch.cat([states[layers] for layers in READ_AFTER_LAYERS], dim=-1))
    losses = []
    for step in range(DRAFT_STEPS):
        # The hidden state belongs to t, its token to t + 1 + step.
        hidden = head.midlayer(embedded[:, 1 + step:], hidden[:, : hidden.shape[1] - 1])
        logits = head.lm_head(head.norm(hidden))
        losses.append(functional.cross_entropy(logits.flatten(0, 1), choices[:, 1 + step:].flatten()))
    return torch.stack(losses).mean()
