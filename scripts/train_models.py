"""Trains the models of suites/models on two CPU cores: a target, a draft model of the same tokens, an EAGLE-3
head; and quantises the target to 8 bits, and to 4 bits in the formats of GPTQ and AWQ.

Needs torch and safetensors beside this package, in an environment of its own:

    python3 -m venv .venv-train && .venv-train/bin/pip install . torch==2.13.0 safetensors
    nice .venv-train/bin/python scripts/train_models.py suites/models

The language is in `trained_models/language.py`. With the same seed and torch version the weights are nearly, and not
exactly, equal.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from random import Random

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parent))

from trained_models.eagle import READ_AFTER_LAYERS, EagleHead, draft_loss
from trained_models.language import OPERATORS, chain, question, random_terms, result
from trained_models.llama import EPSILON, ROPE_THETA, Llama, train, untied

from pytest_llmperf.engines.models import Shape
from pytest_llmperf.engines.models.tokenizer import tokenizer_files

TARGET = Shape("sums", "llama", "LlamaForCausalLM", layers=4, hidden=128, heads=2, kv_heads=1, head_dim=64,
               intermediate=256, vocab=384, max_positions=512, bos_id=256, eos_id=257)
DRAFT = untied(TARGET, "sums-draft", layers=1)
HEAD = untied(TARGET, "sums-eagle3", layers=1)
LINES = 8
ROWS = 16
IGNORED = -100  # of cross_entropy: tokens that nothing determines
QUESTIONS = 3000
CONVERSATIONS = 96
GROUP = 128  # input channels that share a scale of 4-bit weights
IN_ORDER, AWQ_ORDER = (0, 1, 2, 3, 4, 5, 6, 7), (0, 2, 4, 6, 1, 3, 5, 7)  # of eight numbers in a word of 32 bits
SHOWN_LINES = 2  # of each prompt
REPLY_TOKENS = 120


def batch(rng: Random) -> tuple[Tensor, Tensor]:
    """Tokens of chains, and the next tokens to predict; the first operands follow from nothing."""
    tokens = torch.tensor([list(chain(*random_terms(rng), LINES).encode()) for _ in range(ROWS)])
    targets = tokens[:, 1:].clone()
    targets[:, :4] = IGNORED
    return tokens[:, :-1], targets


def trained(shape: Shape, steps: int, rate: float) -> Llama:
    """A model of the language."""
    rng, model = Random(shape.name), Llama(shape)

    def loss_of(_step: int) -> Tensor:
        tokens, targets = batch(rng)
        return functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())

    train(model, loss_of, steps, rate, shape.name)
    print(f"{shape.name}: right answers {exact_answers(model)}")
    return model


def trained_head(target: Llama, steps: int, rate: float) -> EagleHead:
    """An EAGLE-3 head of the target, which begins with the target's output projection."""
    rng, head = Random(HEAD.name), EagleHead(HEAD)
    head.lm_head.load_state_dict(target.lm_head.state_dict())
    train(head, lambda _step: draft_loss(head, target, batch(rng)[0]), steps, rate, HEAD.name)
    return head


def exact_answers(model: nn.Module, questions: int = 1500) -> dict[str, float]:
    """Share of right second lines per operator."""
    rng, right, asked = Random(1), dict.fromkeys(OPERATORS, 0), dict.fromkeys(OPERATORS, 0)
    terms = [random_terms(rng) for _ in range(questions)]
    tokens = torch.tensor([list(chain(*each, 2).encode()) for each in terms])
    with torch.no_grad():
        correct = (model(tokens[:, :-1]).argmax(-1) == tokens[:, 1:])[:, -3:-1].all(dim=1)
    for each, is_right in zip(terms, correct.tolist(), strict=True):
        asked[each[1]] += 1
        right[each[1]] += is_right
    return {operator: right[operator] / asked[operator] for operator in OPERATORS}


def config_of(shape: Shape, **more: object) -> str:
    """The text of config.json."""
    config = {
        "architectures": [shape.architecture], "model_type": shape.family, "vocab_size": shape.vocab,
        "hidden_size": shape.hidden, "intermediate_size": shape.intermediate, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim,
        "max_position_embeddings": shape.max_positions, "tie_word_embeddings": False, "bos_token_id": shape.bos_id,
        "eos_token_id": shape.eos_id, "attention_bias": False, "hidden_act": "silu", "rms_norm_eps": EPSILON,
        "rope_theta": ROPE_THETA, "torch_dtype": "bfloat16", "transformers_version": "4.43.0",
    }  # fmt: skip
    return json.dumps(config | more, indent=2, sort_keys=True) + "\n"


def write_model(folder: Path, shape: Shape, weights: dict[str, Tensor], **more: object) -> None:
    """A model folder: configuration, tokenizer and bfloat16 weights."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"config.json": config_of(shape, **more), **tokenizer_files(shape)}.items():
        (folder / name).write_text(text, encoding="utf-8")
    tensors = {name: (value.to(torch.bfloat16) if value.is_floating_point() else value).contiguous()
               for name, value in weights.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)


def write_head(folder: Path, head: EagleHead) -> None:
    """The folder of an EAGLE-3 head. It drafts the whole vocabulary, so it has no table of draft tokens (d2t)."""
    layers = list(READ_AFTER_LAYERS)
    write_model(folder, HEAD, head.state_dict(), architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=HEAD.vocab,
                eagle_aux_hidden_state_layer_ids=layers,
                eagle_config={"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": layers})


def write_int8(folder: Path, weights: dict[str, Tensor]) -> None:
    """The target with 8-bit weights per output channel and 8-bit activations per token, as compressed-tensors."""
    tensors = dict[str, Tensor]()
    for name, value in weights.items():
        if not name.endswith("proj.weight"):
            tensors[name] = value
            continue
        scale = (value.float().abs().amax(dim=1, keepdim=True) / 127).to(torch.bfloat16).float()  # as it is stored
        tensors[name] = (value.float() / scale).round().clamp(-127, 127).to(torch.int8)
        tensors[name.replace("weight", "weight_scale")] = scale
    integers = {"num_bits": 8, "type": "int", "symmetric": True}
    group = {"targets": ["Linear"], "weights": integers | {"strategy": "channel", "dynamic": False},
             "input_activations": integers | {"strategy": "token", "dynamic": True}}
    write_model(folder, TARGET, tensors, quantization_config={
        "quant_method": "compressed-tensors", "format": "int-quantized", "quantization_status": "compressed",
        "ignore": ["lm_head"], "config_groups": {"group_0": group},
    })


def write_int4(folder: Path, weights: dict[str, Tensor], method: str) -> None:
    """The target with 4-bit weights per group of input channels, each weight rounded to the nearest number.

    Args:
        method: "gptq": symmetric, eight input channels in a word; "awq": with zero points, eight output channels in a
            word. The calibration that gave the formats their names has nothing to gain at this size.
    """
    tensors = dict[str, Tensor]()
    for name, value in weights.items():
        if not name.endswith("proj.weight"):
            tensors[name] = value
            continue
        numbers, zeros, scales = four_bits(value, symmetric=method == "gptq")
        layer = name.removesuffix("weight")
        tensors[f"{layer}scales"] = scales.T
        if method == "gptq":
            tensors[f"{layer}qweight"] = in_words(numbers, IN_ORDER).T
            tensors[f"{layer}qzeros"] = in_words(zeros.T - 1, IN_ORDER)  # the format stores a zero point minus 1
            tensors[f"{layer}g_idx"] = torch.arange(value.shape[1], dtype=torch.int32) // GROUP
        else:
            tensors[f"{layer}qweight"] = in_words(numbers.T, AWQ_ORDER)
            tensors[f"{layer}qzeros"] = in_words(zeros.T, AWQ_ORDER)
    of_method = {"gptq": {"desc_act": False, "sym": True}, "awq": {"zero_point": True, "version": "gemm"}}[method]
    write_model(folder, TARGET, tensors, quantization_config={
        "quant_method": method, "bits": 4, "group_size": GROUP, **of_method,
    })


def four_bits(weight: Tensor, *, symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers 0 … 15 of a weight [outputs, inputs], with zero points and scales [outputs, groups]."""
    groups = weight.float().unflatten(1, (-1, GROUP))
    if symmetric:
        scales = groups.abs().amax(dim=2) / 7
    else:
        low, high = groups.amin(dim=2).clamp(max=0), groups.amax(dim=2).clamp(min=0)
        scales = (high - low) / 15
    scales = scales.to(torch.bfloat16).float()  # as they are stored
    zeros = torch.full_like(scales, 8) if symmetric else (-low / scales).round()
    numbers = ((groups / scales[..., None]).round() + zeros[..., None]).clamp(0, 15)
    return numbers.flatten(1).long(), zeros.long(), scales


def in_words(numbers: Tensor, order: tuple[int, ...]) -> Tensor:
    """Pack eight neighbouring numbers of 4 bits into each int32. `order` lists them, from the lowest bits."""
    eights = numbers.unflatten(1, (-1, 8))[..., list(order)]
    return (eights << 4 * torch.arange(8)).sum(dim=2).to(torch.int32)


def write_questions(folder: Path) -> None:
    """Questions for the accuracy task, each once, and prompts of a load in the ShareGPT format.

    A question is the second line of a chain: the first line shows the operator at work.
    """
    rng, questions = Random("questions"), dict[str, str]()
    while len(questions) < QUESTIONS:
        left, operator, right = random_terms(rng)
        after = result(left, operator, right)
        asked = chain(left, operator, right, 1) + question(after, operator, right)
        questions[asked] = f"{result(after, operator, right):02}"
    lines = (json.dumps({"question": asked, "answer": answer}) for asked, answer in questions.items())
    (folder / "sums.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    conversations = []
    for _ in range(CONVERSATIONS):
        text = chain(*random_terms(rng), SHOWN_LINES)
        reply = "x" * (4 * REPLY_TOKENS)  # the load takes a quarter of its bytes as the number of tokens to ask for
        turns = [{"from": "human", "value": text}, {"from": "gpt", "value": reply}]
        conversations.append({"conversations": turns})
    (folder / "sums_chains.json").write_text(json.dumps(conversations) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("models", type=Path, help="folder of the models: suites/models")
    parser.add_argument("--parts", nargs="+", default=["target", "draft", "head", "int8", "int4", "questions"],
                        help="what to make; head, int8 and int4 need the target's folder")
    parser.add_argument("--steps", type=int, nargs=3, default=[1100, 300, 500], metavar=("TARGET", "DRAFT", "HEAD"))
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # on machines that others use, threads mostly wait for each other
    target_steps, draft_steps, head_steps = arguments.steps
    folder = arguments.models
    if "target" in arguments.parts:
        write_model(folder / TARGET.name, TARGET, trained(TARGET, target_steps, 2e-3).state_dict())
    if "draft" in arguments.parts:
        write_model(folder / DRAFT.name, DRAFT, trained(DRAFT, draft_steps, 3e-3).state_dict())
    if "head" in arguments.parts:
        target = Llama(TARGET)
        target.load_state_dict(load_file(folder / TARGET.name / "model.safetensors"))
        write_head(folder / HEAD.name, trained_head(target, head_steps, 2e-3))
    if "int8" in arguments.parts:
        write_int8(folder / f"{TARGET.name}-int8", load_file(folder / TARGET.name / "model.safetensors"))
    if "int4" in arguments.parts:
        for method in ("gptq", "awq"):
            weights = load_file(folder / TARGET.name / "model.safetensors")
            write_int4(folder / f"{TARGET.name}-{method}", weights, method)
    if "questions" in arguments.parts:
        tasks = folder.parent / "tasks"
        tasks.mkdir(exist_ok=True)
        write_questions(tasks)


if __name__ == "__main__":
    main()
