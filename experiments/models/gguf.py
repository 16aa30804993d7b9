"""`python -m experiments.models.gguf FILE.gguf FOLDER --sha256 ...`: a quantised GGUF file as a folder that transformers loads.

Weights are dequantised to float32 and saved as safetensors with the tokenizer and chat template that the file carries. Where the
embeddings are tied the file may hold both matrices, at different precision: the output's is kept. Needs the `gguf` package.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

from twoclocks.errors import RecordsError


def sha256(file: Path) -> str:
    """Of a file, read in pieces."""
    digest = hashlib.sha256()
    with file.open("rb") as handle:
        for block in iter(lambda: handle.read(1 << 24), b""):
            digest.update(block)
    return digest.hexdigest()


def convert(file: Path, folder: Path, expected: str) -> int:
    """Write the folder; returns the number of parameters.

    Raises
    ------
    RecordsError
        If the file's sha256 is another, or the folder exists.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    if (found := sha256(file)) != expected:
        raise RecordsError(f"{file}: sha256 {found}, expected {expected}; fetch it again")
    folder.mkdir(parents=True, exist_ok=False)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32)
    model.set_input_embeddings(model.get_input_embeddings().__class__.from_pretrained(model.get_output_embeddings().weight.detach(), freeze=False))
    model.config.tie_word_embeddings = True
    model.tie_weights()
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sha256", required=True)
    arguments = parser.parse_args()
    print(f"{convert(arguments.file, arguments.folder, arguments.sha256):,} parameters in {arguments.folder}")


if __name__ == "__main__":
    main()
