"""Run quantized GGUF models with speculative decoding."""

__version__ = "0.1.0"
