"""Give the tokenizer of loadgen/engine/model random weights that a real vLLM can serve. Runs in vLLM's environment.

    python make_model.py DIRECTORY

Greedy decoding only ever yields whole words that re-tokenise to themselves (and the end of the turn): component 0 of
the hidden state is a constant that no layer writes to, and `lm_head` reads it as a bias for each token.
"""

import json
import re
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

SOURCE = Path(__file__).resolve().parents[2] / "loadgen" / "engine" / "model"
BIAS = 8.0  # component 0 of every embedding
UNREACHABLE = -60.0
END_OF_TURN = "<|im_end|>"

generator = torch.Generator().manual_seed(7)


def random(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, generator=generator) * scale


def without_bias(tensor: torch.Tensor) -> torch.Tensor:
    """A projection that does not write component 0 of the hidden state."""
    tensor[0] = 0
    return tensor


def weights(config: dict[str, int], tokenizer: Tokenizer) -> dict[str, torch.Tensor]:
    """A Qwen2 model's tensors."""
    vocabulary, hidden, inner = config["vocab_size"], config["hidden_size"], config["intermediate_size"]
    head = hidden // config["num_attention_heads"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    embedding = random(vocabulary, hidden)
    embedding[:, 0] = BIAS
    made = {"model.embed_tokens.weight": embedding, "model.norm.weight": torch.ones(hidden)}
    for number in range(config["num_hidden_layers"]):
        layer = {
            "input_layernorm.weight": torch.ones(hidden),
            "post_attention_layernorm.weight": torch.ones(hidden),
            "self_attn.q_proj.weight": random(queries, hidden, scale=0.35),
            "self_attn.q_proj.bias": random(queries, scale=0.3),
            "self_attn.k_proj.weight": random(keys, hidden, scale=0.35),
            "self_attn.k_proj.bias": random(keys, scale=0.3),
            "self_attn.v_proj.weight": random(keys, hidden, scale=0.25),
            "self_attn.v_proj.bias": torch.zeros(keys),
            "self_attn.o_proj.weight": without_bias(random(hidden, queries, scale=0.25)),
            "mlp.gate_proj.weight": random(inner, hidden, scale=0.2),
            "mlp.up_proj.weight": random(inner, hidden, scale=0.2),
            "mlp.down_proj.weight": without_bias(random(hidden, inner, scale=0.15)),
        }
        made |= {f"model.layers.{number}.{name}": tensor for name, tensor in layer.items()}
    ids = tokenizer.get_vocab()
    words = {token: id_ for token, id_ in ids.items() if re.fullmatch("Ġ[A-Za-z]{2,}", token)}
    reachable = [id_ for token, id_ in words.items() if tokenizer.encode(" " + token[1:]).ids == [id_]]
    output = random(vocabulary, hidden)
    output[:, 0] = UNREACHABLE
    output[reachable, 0] = 0.0
    output[ids[END_OF_TURN]] = random(hidden, scale=1.6)
    output[ids[END_OF_TURN], 0] = -1.2  # a reply ends now and then
    return made | {"lm_head.weight": output}


def main(directory: Path) -> None:
    shutil.copytree(SOURCE, directory, dirs_exist_ok=True)
    config = json.loads((directory / "config.json").read_text())
    tensors = weights(config, Tokenizer.from_file(str(directory / "tokenizer.json")))
    halved = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}
    save_file(halved, directory / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
