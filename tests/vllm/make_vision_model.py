"""Make a tiny LLaVA that a real vLLM can serve with random weights (`--load-format dummy`). Runs in vLLM's environment.

    python make_vision_model.py DIRECTORY

A CLIP tower of two layers that makes 16 tokens of an image, a Qwen2 of two layers, and the tokenizer of
loadgen/engine/model with a template that shows images where they are.
"""

import json
import shutil
import sys
from pathlib import Path

from transformers import (
    AutoTokenizer,
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlavaConfig,
    LlavaProcessor,
    Qwen2Config,
)

SOURCE = Path(__file__).resolve().parents[2] / "loadgen" / "engine" / "model"
IMAGE = "<|image_pad|>"
SIDE, PATCH = 56, 14  # pixels
TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}\
{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}\
{% endfor %}{% endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}"""


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(SOURCE / "tokenizer.json", directory)
    config = json.loads((SOURCE / "tokenizer_config.json").read_text("utf-8"))
    config.pop("chat_template", None)
    (directory / "tokenizer_config.json").write_text(json.dumps(config | {"image_token": IMAGE}))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    text = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=16384, tie_word_embeddings=False,
        bos_token_id=tokenizer.convert_tokens_to_ids("<|endoftext|>"),
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
    )  # fmt: skip
    text.architectures = ["Qwen2ForCausalLM"]
    vision = CLIPVisionConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=SIDE,
        patch_size=PATCH, projection_dim=64,
    )  # fmt: skip
    model = LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
        vision_feature_layer=-2, vision_feature_select_strategy="default", image_seq_length=(SIDE // PATCH) ** 2,
    )  # fmt: skip
    model.architectures = ["LlavaForConditionalGeneration"]
    model.save_pretrained(directory)
    size = {"height": SIDE, "width": SIDE}
    processor = LlavaProcessor(
        image_processor=CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size=size),
        tokenizer=tokenizer, patch_size=PATCH, vision_feature_select_strategy="default", image_token=IMAGE,
        num_additional_image_tokens=1,
    )  # fmt: skip
    processor.save_pretrained(directory)
    (directory / "tokenizer_config.json").write_text(json.dumps(config | {"image_token": IMAGE}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
