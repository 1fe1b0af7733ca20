"""``python -m gguf_spec``."""

from gguf_spec.cli.app import main

if __name__ == "__main__":
    main()
