"""Models and tokenizers by config: a folder or hub name that transformers can load, plus the `mini` architecture."""

from __future__ import annotations

import hashlib
import string
from pathlib import Path
from typing import Any

MINI = Path(__file__).parent / "mini"


def mini_tokenizer() -> Any:
    """One token per printable ASCII character, then <pad> and <eos>."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    characters = [*string.printable[:95], "\n"]
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<eos>", *characters])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", padding_side="left", clean_up_tokenization_spaces=False)


def mini_model(vocabulary: int, pad: int, eos: int) -> Any:
    """Qwen2 architecture at 3.2M parameters: hidden 256, 4 layers, 4 heads on 2 key-value heads, tied embeddings."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        pad_token_id=pad,
        eos_token_id=eos,
        bos_token_id=None,
    )
    return Qwen2ForCausalLM(config)


def load_tokenizer(path: str, trust_remote_code: bool = False) -> Any:
    """Left-padding tokenizer from a folder or hub name, as it was saved.

    AutoTokenizer ignores a generic tokenizer class where the folder also holds a model config, and rebuilds the
    vocabulary by the model family's rules; for `mini` that would lose spaces and line ends.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    generic = get_tokenizer_config(path).get("tokenizer_class") in ("PreTrainedTokenizerFast", "TokenizersBackend")
    if generic:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(path, padding_side="left")
    else:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code, padding_side="left")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load(path: str, *, tokenizer: str | None = None, dtype: str = "float32", trust_remote_code: bool = False) -> tuple[Any, Any]:
    """Model and left-padding tokenizer from a folder or hub name.

    Parameters
    ----------
    path : str
        Folder or hub name; relative folders are taken from the repository root.
    tokenizer : str, optional
        Another folder or hub name for the tokenizer.
    dtype : str
        Parameter dtype; float32 master weights unless asked otherwise, because small learning rates round away in bf16.
    """
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype), trust_remote_code=trust_remote_code)
    return model, load_tokenizer(tokenizer or path, trust_remote_code)


def weights_sha256(path: str) -> str | None:
    """sha256 of a local folder's model.safetensors, the identity of a start checkpoint; None for a hub name."""
    file = Path(path) / "model.safetensors"
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None
